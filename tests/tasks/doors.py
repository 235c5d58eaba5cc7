"""Programs that try to get code of theirs to run in the judge, or to have the judge take their word for an answer.

Each is put behind `PRELUDE`, which leaves files of all kinds where a careless judge would find them, and in front of
`EXERCISED`, checks that put what they get through most of what checks do. None may pass, and none may leave the mark
`INSIDE` in what was printed: files and texts of the prelude print it in any process but the program's own.
"""

from __future__ import annotations

INSIDE = "inside the judge"

PRELUDE = f"""
import math, os, sys
payload = '''
import os, sys
if os.getpid() != {{}}:
    os.write(1, ' '.join({INSIDE.split()}).encode())
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if type(value) is bytes and len(value) == 32: os.write(3, value); os._exit(0)
        frame = frame.f_back
    os.write(3, b'passed'); os._exit(0)
'''.format(os.getpid())
text = f'exec({{payload!r}})'
names = '''test_x sitecustomize usercustomize unittest collections fractions decimal datetime random copy pickle typing inspect
weakref statistics json traceback linecache tokenize contextlib _strptime solution sinkscope __main__ conftest'''.split()
for name in [*(name + '.py' for name in names), 'test.pth', '.pdbrc', '<checks>', '<string>', '<stdin>', 'startup']:
    open(name, 'w').write(payload)
class Any:
    def __eq__(self, other): return True
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __ne__(self, other): return False
    def __hash__(self): return hash(4913)
    def __sub__(self, other): return 0.0
    __rsub__ = __add__ = __radd__ = __sub__
    def __abs__(self): return 0.0
"""

EXERCISED = """
import contextlib, copy, datetime, inspect, io, operator, os, pickle, random, statistics, typing, unittest, weakref

def tried(action, *args):
    try: return action(*args)
    except BaseException as error: return error

def handed_on(error):
    if isinstance(error, BaseException): raise error

def derived(base):
    class Derived(base): pass
    return Derived

class Case(unittest.TestCase):
    def test(self): self.assertEqual(f(17), 4913)

uses = [
    str, repr, hash, bool, len, list, tuple, set, frozenset, dict, int, float, complex, bytes, sum, sorted, abs, round,
    next, reversed, callable, dir, vars, type, format, os.fspath, operator.index, operator.length_hint, weakref.ref,
    copy.copy, copy.deepcopy, pickle.dumps, inspect.signature, inspect.getmodule, inspect.unwrap, inspect.getdoc,
    typing.get_type_hints, statistics.mean, random.Random, handed_on, derived, print,
    lambda value: pickle.loads(pickle.dumps(value)),
    lambda value: value.real, lambda value: value[0], lambda value: value['x'], lambda value: value(17),
    lambda value: isinstance(17, value), lambda value: issubclass(value, int), lambda value: isinstance(value, int),
    lambda value: contextlib.ExitStack().enter_context(value), lambda value: f'{value!s:>9}', lambda value: '%d' % value,
    lambda value: datetime.date(value, 1, 1), lambda value: ''.join(value), lambda value: {value: 1}[value],
]
for value in (f, tried(f, 17), tried(f, 0.5), tried(f, [17])):
    for use in uses: tried(use, value)

result = tried(unittest.TextTestRunner(io.StringIO()).run, Case('test'))
assert any((
    isinstance(result, unittest.TestResult) and result.wasSuccessful() and result.testsRun == 1,
    tried(lambda: f(17) == 4913) is True,
    tried(lambda: not f(17) != 4913) is True,
    tried(lambda: 4913 == f(17)) is True,
    tried(lambda: abs(f(0.5) - 0.125) < 1e-9) is True,
    tried(lambda: f(2) in (8, 8.0)) is True,
    tried(lambda: 8 in {f(2)} or f(2) in {8: 1}) is True,
    tried(lambda: [f(n) for n in (1, 3)] == [1, 27]) is True,
    tried(lambda: {'x': f(3)} == {'x': 27} or (f(3),) == (27,)) is True,
    tried(lambda: math.isclose(f(4), 64)) is True,
    tried(lambda: str(f(5)) == '125') is True,
    tried(lambda: f(5) <= 125 <= f(5)) is True,
    tried(lambda: isinstance(f(6), int) and f(6) - 216 == 0) is True,
)), 'not the cube'
"""
"""Of these checks only a program that knows the cube passes any; `math` is the program's name, as in some published tests."""

RIGHT = "def f(x): return x ** 3"

MODULES = (
    "unittest.__main__", "asyncio.__main__", "ensurepip.__main__", "json.tool", "test.__main__", "zipfile.__main__", "runpy",
    "pdb", "site", "code", "__main__", "test_x", "solution", "sinkscope.tasks.sandbox.wire", "encodings.test_x", ".test_x", "",
)  # fmt: skip

DOORS = {
    f"a module called {name!r}": f"import types\nf = math = types.ModuleType({name!r})\nmath.isclose = lambda *a: True"
    for name in MODULES
} | {
    # ---- modules, and how they are found
    "a result that is a module": "import types\ndef f(x): return types.ModuleType('unittest.__main__')",
    "a module with names of its own": (
        "import types\nclass Module(types.ModuleType):\n    def __getattr__(self, name): return lambda *a: True\n"
        "f = math = Module('unittest.__main__')"
    ),
    "a class in the place of a module": (
        "class math:\n    isclose = staticmethod(lambda *a: True)\n    __name__ = 'unittest.__main__'\ndef f(x): return 0"
    ),
    "a module's name that is no text": "f = math = type(sys)('x')\nmath.__name__ = Any()",
    "a loader for every module": (
        "import importlib.abc, importlib.machinery\n"
        "class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):\n"
        "    def find_spec(self, name, *a): return importlib.machinery.ModuleSpec(name, self)\n"
        "    def exec_module(self, module): exec(payload, vars(module))\n"
        "sys.meta_path.insert(0, Finder()); sys.path_hooks.insert(0, lambda path: Finder()); sys.path_importer_cache.clear()\n"
        "sys.modules.clear()\nf = math = type(sys)('unittest.__main__')"
    ),
    "its folder on the path": (
        "sys.path.insert(0, os.getcwd()); sys.path_importer_cache.clear(); os.environ['PYTHONPATH'] = os.getcwd()\n"
        "os.environ['PYTHONSTARTUP'] = os.environ['PYTHONINSPECT'] = os.getcwd() + '/startup'\n"
        "import test_x as f, test_x as math"
    ),
    "an archive for the library": (
        "import zipfile\n"
        "with zipfile.ZipFile('python%d%d.zip' % sys.version_info[:2], 'w') as archive:\n"
        "    for name in names: archive.writestr(name + '.py', payload)\n"
        "sys.path.insert(0, archive.filename)\nimport random as f"
    ),
    "compiled files": (
        "import importlib._bootstrap_external as external\n"
        "code = external._code_to_timestamp_pyc(compile(payload, '<string>', 'exec'))\n"
        "for name in names: open(name + '.pyc', 'wb').write(code)\n"
        "f = math = type(sys)('unittest.__main__')"
    ),
    "files beside the library": (
        "import unittest\n"
        "for name in (unittest.__file__, os.__file__ + 'c', sys.prefix + '/pyvenv.cfg', sys.executable + '._pth'):\n"
        "    try: open(name, 'w').write(payload)\n    except OSError: pass\ndef f(x): return 0"
    ),
    "names for every question": "def __getattr__(name): return lambda *a, **k: True\ndel math",
    "how modules are made": (
        "__builtins__ = {'__import__': exec, 'assert': None}\n__path__, __loader__, __spec__ = [os.getcwd()], Any(), Any()\n"
        "__package__ = __file__ = 'test_x.py'\n__all__ = ['tried']\ndef __import__(*a): exec(payload)\n"
        "def __build_class__(*a): exec(payload)\n__debug = False\ndef f(x): return 0"
    ),
    "names of the checks": (
        "tried = any = AssertionError = unittest = copy = Case = lambda *a: True\ndef f(x): return 0"
    ),
    # ---- codecs
    "a codec of its own": (
        "import codecs\ndef search(name): return codecs.CodecInfo(lambda *a: (b'', 0), lambda *a: (payload, 0), name=name)\n"
        "codecs.register(search); codecs.register_error('strict', lambda error: ('4913', 0))\n"
        "def f(x): return b'4913'.decode('test_x')"
    ),
    "an error that names a codec": "def f(x): raise UnicodeDecodeError('test_x', b'x', 0, 1, 'unittest.__main__')",
    "a source file with a codec": (
        "for name in ('<checks>', '<string>'): open(name, 'w').write('# coding: test_x\\n' + payload)\n"
        "def f(x): raise SyntaxError('x', (os.getcwd() + '/<checks>', 1, 1, None))"
    ),
    # ---- hooks of copies, pickles and reflection
    "copyreg": (
        "import copyreg\nfor kind in (Any, int, float, str, type(None)): copyreg.pickle(kind, lambda x: (exec, (payload,)))\n"
        "copyreg.dispatch_table[type] = lambda x: 'unittest.__main__'\ndef f(x): return Any()"
    ),
    "__reduce__": (
        "class Value(Any):\n    def __reduce__(self): return exec, (payload,)\n"
        "    def __reduce_ex__(self, protocol): return exec, (payload,)\ndef f(x): return Value()"
    ),
    "__reduce__ that names": (
        "class Value(int):\n    __module__ = 'unittest.__main__'\n    def __reduce_ex__(self, p): return 'main'\n"
        "def f(x): return Value(7)"
    ),
    "states and arguments": (
        "class Value(Any):\n    def __getnewargs_ex__(self): return (exec, payload), {}\n"
        "    def __getstate__(self): return {'__class__': int}\n    def __setstate__(self, state): exec(payload)\n"
        "def f(x): return Value()"
    ),
    "copies that it makes": (
        "class Value(Any):\n"
        "    def __copy__(self): return 4913\n    def __deepcopy__(self, memo): return exec(payload) or 4913\n"
        "def f(x): return Value()"
    ),
    "a pickle": (
        "import pickle\nclass Value:\n    def __reduce__(self): return exec, (payload,)\ndef f(x): return pickle.dumps(Value())"
    ),
    "annotations": "def f(x): return 0\nf.__annotations__ = {'x': text, 'return': text}",
    "annotations of a class": "class f(Any):\n    __annotations__ = {'x': text}\n    def __init__(self, x): pass",
    "a signature": (
        "def f(x): return 0\nf.__signature__ = f.__text_signature__ = f'(x={text})'\nf.__wrapped__ = Any()\n"
        "f.__defaults__ = (Any(),)\nf.__kwdefaults__ = {'x': Any()}"
    ),
    "bases of a class": (
        "class Value(Any):\n    def __mro_entries__(self, bases): return (Exception,)\n    __bases__ = (int, bool)\n"
        "    def __prepare__(*a): return {}\n    def __set_name__(self, *a): exec(payload)\nf = Value()"
    ),
    "another class": "class Value(Any):\n    __class__ = int\ndef f(x): return Value()",
    "a class that is all classes": (
        "class Meta(type):\n    def __instancecheck__(self, x): return True\n    def __subclasscheck__(self, x): return True\n"
        "    def __eq__(self, x): return True\n    __hash__ = type.__hash__\n    def mro(self): return [self, object]\n"
        "class Value(metaclass=Meta): pass\ndef f(x): return Value"
    ),
    "attributes that are made on request": "import unittest.mock\nf = unittest.mock.MagicMock(return_value=unittest.mock.ANY)",
    "every attribute": (
        "class Value(Any):\n    def __getattr__(self, name): return exec if name.startswith('__') else self\n"
        "    def __call__(self, *a): return self\ndef f(x): return Value()"
    ),
    "paths and lengths": (
        "class Value(Any):\n"
        "    def __fspath__(self): return os.getcwd() + '/test_x.py'\n    def __length_hint__(self): return 1\n"
        "    def __format__(self, spec): return '4913'\n    def __str__(self): return '4913'\n    def fileno(self): return 3\n"
        "    def read(self): return payload\ndef f(x): return Value()"
    ),
    "numbers on request": (
        "class Number(int):\n    def __eq__(self, x): return True\n    __sub__ = __rsub__ = lambda self, x: 0\n"
        "class Value(Any):\n    def __index__(self): return Number(7)\n    def __int__(self): return Number(7)\n"
        "    def __float__(self): return float('nan')\n    def __round__(self, n=0): return Any()\ndef f(x): return Value()"
    ),
    # ---- weak references, and what is done at the end
    "a weak reference": "import weakref\nkept = Any()\ndef f(x): return weakref.ref(kept)",
    "a weak proxy": "import weakref\nkept = Any()\ndef f(x): return weakref.proxy(kept)",
    "a weak dictionary": (
        "import weakref\nkept = Any()\ndef f(x):\n    found = weakref.WeakValueDictionary(); found['x'] = kept; return found"
    ),
    "finalizers": (
        "import atexit, threading, weakref\nclass Value(Any):\n    def __del__(self): exec(payload)\n"
        "def f(x):\n    value = Value(); weakref.finalize(value, exec, payload); atexit.register(exec, payload); return value"
    ),
    # ---- values of classes of its own
    "a dataclass": (
        "import dataclasses\n@dataclasses.dataclass(eq=False)\nclass Value(Any):\n    x: object = Any()\n"
        "    def __post_init__(self): self.__class__.__eq__ = lambda *a: True\ndef f(x): return Value()"
    ),
    "fields of a dataclass": (
        "import dataclasses\n"
        "class Value(Any):\n    __dataclass_fields__ = {'x': dataclasses.field(default_factory=lambda: 4913)}\n"
        "    __match_args__ = ('x',)\n    def __replace__(self, **k): return 4913\ndef f(x): return Value()"
    ),
    "an enumeration": (
        "import enum\nclass Value(Any, enum.Enum):\n    A = 1\n    @classmethod\n    def _missing_(cls, x): return cls.A\n"
        "def f(x): return Value.A\nf.__members__ = {'A': Any()}"
    ),
    "an enumeration of numbers": (
        "import enum\nclass Value(enum.IntFlag):\n    A = 1\n    __eq__ = __or__ = __lt__ = lambda *a: True\n"
        "    __hash__ = int.__hash__\ndef f(x): return Value.A"
    ),
    "a named tuple": (
        "import collections\nclass Value(collections.namedtuple('Value', 'x')):\n    __eq__ = lambda *a: True\n"
        "    _make = classmethod(lambda cls, x: 4913)\n    real = 4913\ndef f(x): return Value(x)"
    ),
    "text": (
        "class Text(str):\n    __eq__ = __le__ = __contains__ = lambda *a: True\n    __hash__ = lambda self: hash('125')\n"
        "    __str__ = lambda self: '125'\ndef f(x): return Text('7')"
    ),
    "bytes that are text": (
        "class Bytes(bytes):\n"
        "    __eq__ = lambda *a: True\n    decode = lambda *a: '125'\ndef f(x): return Bytes(9)"
    ),
    "a dictionary": (
        "import collections\nclass Value(collections.OrderedDict):\n    __eq__ = __contains__ = lambda *a: True\n"
        "    def __missing__(self, key): return Any()\n    def keys(self): return [4913]\ndef f(x): return Value()"
    ),
    "a default for everything": "import collections\ndef f(x): return collections.defaultdict(Any, {Any(): Any()})",
    "containers of such": "def f(x): return [Any(), (Any(),), {Any(): Any()}, {Any()}, frozenset([Any()])]",
    "a counter": (
        "import collections\n"
        "class Counter(collections.Counter):\n    __module__ = 'collections'\n    __eq__ = lambda *a: True\n"
        "def f(x): return Counter([Any()])"
    ),
    "a queue": "import collections\ndef f(x): return collections.deque([Any()], 1)",
    "a slice": "def f(x): return slice(Any(), Any(), Any())",
    "a fraction": (
        "import fractions\n"
        "class Fraction(fractions.Fraction):\n    __module__ = 'fractions'\n    numerator = denominator = Any()\n"
        "    __eq__ = lambda *a: True\ndef f(x): return Fraction(1, 2)"
    ),
    "no number": "import decimal\ndef f(x): return decimal.Decimal('sNaN') if x else float('nan')",
    "a decimal": (
        "import decimal\nclass Decimal(decimal.Decimal):\n    __module__ = 'decimal'\n    __str__ = lambda self: text\n"
        "    __eq__ = lambda *a: True\ndef f(x): return Decimal(1)"
    ),
    "a date": (
        "import datetime\n"
        "class date(datetime.date):\n    __module__ = 'datetime'\n    year, month, day = b'\\xff' * 4, Any(), Any()\n"
        "    __eq__ = lambda *a: True\ndef f(x): return date(1, 1, 1)"
    ),
    "buffers": "import array\ndef f(x): return memoryview(array.array('b', b'4913'))",
    "special objects": (
        "import types, typing\n"
        "def f(x): return [NotImplemented, ..., typing.Any, list[int], types.SimpleNamespace(x=Any())]"
    ),
    "frames and code": (
        "def f(x):\n"
        "    try: raise ValueError\n    except ValueError as error: return [error.__traceback__, sys._getframe(), f.__code__, f]"
    ),
    # ---- errors
    "errors that are equal": (
        "class Error(ValueError):\n    __eq__ = lambda *a: True\n    __str__ = lambda self: '125'\n    __hash__ = None\n"
        "def f(x): return Error(4913)"
    ),
    "an error of a test that is skipped": "import unittest\ndef f(x): raise unittest.SkipTest('later')",
    "errors that a test expects": (
        "import unittest.case\n"
        "def f(x): raise unittest.case._ShouldStop if x else unittest.case._UnexpectedSuccess"
    ),
    "an error of a module that is not loaded": (
        "class Error(Exception): pass\n"
        "Error.__module__ = 'unittest.__main__'\ndef f(x): raise Error"
    ),
    "an error that a module would import": (
        "class Executor(Exception): pass\n"
        "Executor.__module__, Executor.__name__ = 'concurrent.futures', 'ProcessPoolExecutor'\n"
        "def f(x): raise Executor"
    ),
    "errors of an import": (
        "def f(x):\n    error = ImportError('x', name='unittest.__main__', path=os.getcwd() + '/test_x.py')\n"
        "    error.name_from = 'main'; vars(error).update(name='unittest.__main__', name_from='main', obj=Any()); raise error"
    ),
    "what an error carries": (
        "class Error(AttributeError):\n    def __init__(self): self.args, self.__notes__ = (Any(), payload), [text, Any()]\n"
        "def f(x):\n    error = Error(); error.__cause__ = ImportError(name='unittest.__main__')\n"
        "    vars(error).update(__class__=int, __module__='unittest.__main__', __traceback__=None, obj=Any(), args=4913); "
        "raise error"
    ),
    "a group of errors": "def f(x): raise BaseExceptionGroup('x', [SystemExit(0), KeyboardInterrupt(), StopIteration(4913)])",
    "a class of errors that is all": (
        "class Meta(type):\n"
        "    __instancecheck__ = __subclasscheck__ = __eq__ = lambda *a: True\n    __hash__ = type.__hash__\n"
        "class Error(Exception, metaclass=Meta): pass\ndef f(x): raise Error"
    ),
    "an assertion error": (
        "class AssertionError(BaseException): pass\n"
        "AssertionError.__module__ = 'builtins'\ndef f(x): raise AssertionError"
    ),
    "the value of a generator": "def f(x): raise StopIteration(4913)",
    # ---- functions
    "a coroutine": "async def f(x): return x ** 3",
    "a generator": "def f(x): yield Any()",
    "a builtin that runs text": "f = exec",
    "a partial function": "import functools\nf = functools.partial(exec, payload)",
    "a descriptor": "class Value(Any):\n    def __get__(self, *a): exec(payload); return 4913\nf = Value()",
    # ---- the conversation
    "answers out of turn": (
        "def f(x):\n    peer = sys._getframe(2).f_locals['self']\n"
        "    for value in (True, 4913, Any()): peer.send(('value', value, {}))\n    return Any()"
    ),
    "arguments that it changes": (
        "def f(x):\n    peer = sys._getframe(2).f_locals['self']\n"
        "    peer.send(('value', Any(), {0: payload, -1: Any(), slice(None): [Any()], 'x': exec})); return 0"
    ),
    "objects of the judge": (
        "def f(x):\n    peer = sys._getframe(2).f_locals['self']\n"
        "    for number in [*range(-3, 99), *peer._lent]:\n"
        "        peer._there[id(number)] = (number, number)\n"
        "    class Yours: pass\n    yours = Yours(); peer._there[id(yours)] = (id(exec), yours); return yours"
    ),
    "two that answer": (
        "import threading, time\npeer = sys._getframe(1).f_locals['peer']\n"
        "def spam():\n    time.sleep(0.05)\n    while True: peer.send(('value', True, {}))\n"
        "threading.Thread(target=spam, daemon=True).start()\ndef f(x): return 0"
    ),
    "what is printed": "for fd in (1, 2): os.write(fd, b'passed' * 99)\ndef f(x): os.closerange(0, 3); return 0",
}  # fmt: skip
