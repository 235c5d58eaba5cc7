"""Programs that try to get a verdict they have not earned, or more of the machine than they may have.

No rung of the sandbox may let one of them through; `test_sandbox.py` runs them on each.
"""

from __future__ import annotations

# Each has `assert False` after it: none may reach a verdict, whatever it does to the interpreter.
FORGERIES = {
    "sys.exit": "import sys; sys.exit(0)",
    "SystemExit": "raise SystemExit",
    "os._exit": "import os; os._exit(0)",
    "exit in a thread, then in main": (
        "import threading, os; threading.Thread(target=os._exit, args=(0,)).start()"
    ),
    "forged text": (
        "import os\nfor fd in range(1, 64):\n    try: os.write(fd, b'passed')\n    except OSError: pass"
    ),
    "atexit": "import atexit, os; atexit.register(os._exit, 0)",
    "builtins": (
        "import builtins\n"
        "for name in ('exec', 'compile', 'print', 'open', '__import__', 'map', 'filter',\n"
        "             'AssertionError', 'BaseException'):\n"
        "    setattr(builtins, name, lambda *a, **k: None)\n"
    ),
    "os and sys": (
        "import os, sys\n"
        "os.write = os._exit = os.read = lambda *a: 0\n"
        "sys.excepthook = sys.__excepthook__ = lambda *a: None\n"
        "sys.modules.clear()\n"
    ),
    "__main__": (
        "import sys\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if hasattr(module, 'main'): module.main = module._judge = print\n"
        "sys.modules['__main__'] = None\n"
    ),
    "frames": (
        "import sys, os, re\n"
        "frame = sys._getframe()\n"
        "while frame is not None:\n"
        "    for space in (frame.f_locals, frame.f_globals):\n"
        "        for name, value in list(space.items()):\n"
        "            if type(value) is list: value.clear()\n"
        "            for secret in re.findall('[0-9a-f]{48}', repr(value)): os.write(3, secret.encode())\n"
        "    if frame.f_back is not None:\n"
        "        frame.f_back.f_globals['leave'] = frame.f_back.f_globals['os'] = None\n"
        "        try: frame.f_back.f_locals.update(work=[print, print], leave=print)\n"
        "        except Exception: pass\n"
        "    frame = frame.f_back\n"
    ),
    "descriptors": (
        "import os\n"
        "found = b''\n"
        "for fd in [0, *range(3, 256)]:\n"
        "    try:\n"
        "        os.lseek(fd, 0, 0)\n"
        "        found += os.read(fd, 65536)\n"
        "    except OSError: pass\n"
        "os.write(3, found.split(b' ')[0] or b'0' * 48)\n"
        "os._exit(0)\n"
    ),
    "all objects": (
        "import gc, os, re\n"
        "for thing in gc.get_objects():\n"
        "    text = repr(gc.get_referents(thing))\n"
        "    for secret in re.findall('[0-9a-f]{48}', text): os.write(3, secret.encode())\n"
        "os._exit(0)\n"
    ),
    "trace": (
        "import sys, os\n"
        "def spy(frame, event, value):\n"
        "    frame.f_trace_opcodes = True\n"
        "    return spy\n"
        "sys.settrace(spy)\n"
    ),
    "memory": ("import re\nmaps = open('/proc/self/maps').read()\nopen('/proc/self/mem', 'rb').read(10)\n"),
    "ctypes": "import ctypes; ctypes.string_at(id(object()), 100)",
    "swallow the checks": "x = '''",
    "comment out the checks": "if False:\n    pass\n    '''",
    "exceptions that no program should raise": (
        "class Quiet(BaseException):\n"
        "    def __str__(self):\n"
        "        import os\n"
        "        os.write(3, b'0' * 48); os._exit(0)\n"
        "raise Quiet\n"
    ),
    "the end of a generator": "raise GeneratorExit",
    "the end of an asynchronous iterator": "raise StopAsyncIteration",
    "descriptor 3 copied and closed": (
        "import os\nread, write = os.pipe()\nos.dup2(3, 40)\nos.dup2(write, 3)\n"
        "os.write(40, b'passed')\nos.close(40)\n"
    ),
    "another program on descriptor 3": (
        "import os, sys\nos.set_inheritable(3, True)\n"
        "os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', \"import os; os.write(3, b'0' * 48)\"])\n"
    ),
    "objects that are left at the end": (
        "import os, weakref\n"
        "class Last:\n"
        "    def __del__(self): os.write(3, b'0' * 48); os._exit(0)\n"
        "kept = Last()\n"
        "weakref.finalize(kept, os.write, 3, b'0' * 48)\n"
    ),
    "a signal in the middle": (
        "import os, signal\n"
        "def handler(number, frame):\n"
        "    while frame is not None:\n"
        "        try: frame.f_locals.update(leave=print, complain=print, work=[print, print])\n"
        "        except Exception: pass\n"
        "        frame = frame.f_back\n"
        "signal.signal(signal.SIGALRM, handler)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)\n"
    ),
    "everything that names lead to": (
        "import os, re, sys\n"
        "seen, queue = set(), [sys, sys._getframe(), *object.__subclasses__(), *sys.modules.values()]\n"
        "while queue and len(seen) < 20000:\n"
        "    thing = queue.pop(0)\n"
        "    if id(thing) in seen: continue\n"
        "    seen.add(id(thing))\n"
        "    if isinstance(thing, (str, bytes)):\n"
        "        text = thing if isinstance(thing, str) else thing.decode('latin1')\n"
        "        if re.fullmatch('[0-9a-f]{48}', text): os.write(3, text.encode()); os._exit(0)\n"
        "    elif isinstance(thing, dict): queue += [*thing.keys(), *thing.values()]\n"
        "    elif isinstance(thing, (list, tuple, set, frozenset)): queue += thing\n"
        "    else:\n"
        "        for name in ('__dict__', '__closure__', '__defaults__', '__kwdefaults__', '__code__', 'cell_contents',\n"
        "                     'f_locals', 'f_globals', 'f_back', 'co_consts', 'func', 'args', 'keywords', '__self__'):\n"
        "            try: queue.append(getattr(thing, name))\n"
        "            except Exception: pass\n"
    ),
    # Bytecode that no compiler made reads any memory: through the one function that may make code objects, ...
    "bytecode by hand": (
        "import opcode, os, types\n"
        "from functools import partial\n"
        "def victim():\n    x = 1\n    return x\n"
        "class Code: pass\n"
        "class Function:\n    def __call__(self): pass\n"
        "def reading(place):\n"
        "    a, b, c, d = (place & 0xffffffff).to_bytes(4, 'big')\n"
        "    op, more = opcode.opmap, opcode.opmap['EXTENDED_ARG']\n"
        "    code = bytes([op['RESUME'], 0, more, a, more, b, more, c, op['LOAD_FAST'], d, op['RETURN_VALUE'], 0])\n"
        "    space = {'FunctionType': Function, 'CodeType': Code, '__builtins__': __builtins__}\n"
        "    made, flags = Code(), victim.__code__.co_flags\n"
        "    class Flags(int):\n        def __or__(self, other): return flags\n"
        "    made.replace, made.co_flags = partial(victim.__code__.replace, co_code=code), Flags(0x20)\n"
        "    function = Function(); function.__code__ = made\n"
        "    types.FunctionType(types.coroutine.__code__, space)(function)\n"
        "    return types.FunctionType(function.__code__, {})\n"
        "for place in range(5, 60):\n"
        "    thing = reading(-place)()\n"
        "    if type(thing) is map:\n"
        "        for part in thing.__reduce__()[1][1].__reduce__()[1][0]:\n"
        "            if getattr(part, 'func', None) is os.write: part(); os._exit(0)\n"
    ),
    # ... and through the importer, whose frame is made to say that it reads a module of the interpreter's own.
    "bytecode from marshal": (
        "import _imp, marshal, opcode, os, sys, types\n"
        "import _frozen_importlib as importer\n"
        "from functools import partial\n"
        "def victim():\n    x = 1; y = x; z = y; return z\n"
        "def pretend():\n"
        "    frame = sys._getframe(1)\n"
        "    frame.f_locals['f'], frame.f_locals['args'] = _imp.get_frozen_object, ('x',)\n"
        "def reading(place):\n"
        "    a, b, c, d = (place & 0xffffffff).to_bytes(4, 'big')\n"
        "    op, more = opcode.opmap, opcode.opmap['EXTENDED_ARG']\n"
        "    code = bytes([op['RESUME'], 0, more, a, more, b, more, c, op['LOAD_FAST'], d, op['RETURN_VALUE'], 0])\n"
        "    real = victim.__code__.co_code\n"
        "    code += bytes([op['NOP'], 0]) * ((len(real) - len(code)) // 2)\n"
        "    data = marshal.dumps(victim.__code__).replace(real, code)\n"
        "    steps = map(partial.__call__, [partial(pretend), partial(marshal.loads, data)])\n"
        "    return types.FunctionType(importer._call_with_frames_removed(list, steps)[1], {})\n"
        "for place in range(5, 60):\n"
        "    thing = reading(-place)()\n"
        "    if type(thing) is map:\n"
        "        for part in thing.__reduce__()[1][1].__reduce__()[1][0]:\n"
        "            if getattr(part, 'func', None) is os.write: part(); os._exit(0)\n"
    ),
    # Buffers that come uninitialised hold what was freed before.
    "memory that was freed": (
        "import io, os, re\n"
        "got, kept = [], []\n"
        "class Raw(io.RawIOBase):\n"
        "    def readable(self): return True\n"
        "    def readinto(self, buffer): got.append(bytes(buffer)); return 0\n"
        "for size in (96, 112, 144):\n"
        "    for _ in range(200): kept.append(io.BufferedReader(Raw(), size)); kept[-1].read(1)\n"
        "for part in got:\n"
        "    for secret in re.findall(rb'[0-9a-f]{48}|passed', part):\n"
        "        for fd in (3, 4):\n"
        "            try: os.write(fd, secret)\n"
        "            except OSError: pass\n"
    ),
    "a buffer that outlives its owner": (
        "import io, os, sys\n"
        "class File(io.RawIOBase):\n"
        "    def readable(self): return True\n"
        "    def readinto(self, buffer):\n"
        "        global view\n        view = buffer\n        return 0\n"
        "reader = io.BufferedReader(File()); reader.read(1); del reader\n"
        "view = view.cast('P'); slots = [None] * len(view)\n"
        "word = lambda value: value.to_bytes(8, 'little')\n"
        "fake = word(10) + word(id(bytearray)) + word(2 ** 62) + word(2 ** 62 + 1) + bytes(24)\n"
        "if view[0] == id(None):\n"
        "    view[0] = id(fake) + bytes.__basicsize__ - 1\n"
        "    memory = slots[0]\n"
        "    code = sys._getframe(1).f_code.co_code\n"
        "    memory[id(AssertionError):id(AssertionError) + 8] = bytes(8)\n"
    ),
    "the verdict on every descriptor": (
        "import os\n"
        "for text in (b'passed', b'passed\\n', b'failed\\npassed'):\n"
        "    for fd in range(1024):\n"
        "        try: os.write(fd, text)\n"
        "        except OSError: pass\n"
        "os._exit(0)\n"
    ),
    "native code": (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "for fd in range(1024): libc.write(fd, b'passed', 6)\n"
        "libc.dup2(1, 3); libc.dup2(1, 4)\n"
        "ctypes.memset(id(AssertionError) + 16, 0, 8)\n"
    ),
    # Landlock lets pipes be opened by their names under /proc, also for writing.
    "the judge's descriptors": (
        "import ctypes, os, time\n"
        "libc, end = ctypes.CDLL(None), time.monotonic() + 0.5\n"
        "while time.monotonic() < end:\n"
        "    for process in {os.getppid(), *range(max(1, os.getpid() - 3), os.getpid() + 20)} - {os.getpid()}:\n"
        "        there = libc.syscall(434, process, 0)\n"
        "        for fd in range(3, 16):\n"
        "            mine = libc.syscall(438, there, fd, 0)\n"
        "            try: os.write(mine if mine > 0 else os.open(f'/proc/{process}/fd/{fd}', os.O_WRONLY), b'passed')\n"
        "            except OSError: continue\n"
        "            os._exit(0)\n"
    ),
    "the judge's memory": (
        "import ctypes, os, struct\n"
        "libc = ctypes.CDLL(None)\n"
        "space = ctypes.create_string_buffer(b'assert True ')\n"
        "local = struct.pack('PN', ctypes.addressof(space), 12)\n"
        "for process in range(max(1, os.getpid() - 20), os.getpid() + 20):\n"
        "    libc.ptrace(16, process, 0, 0); libc.ptrace(0x4206, process, 0, 0)\n"
        "    libc.syscall(311, process, local, 1, struct.pack('PN', id('x'), 12), 1, 0)\n"
        "    try: os.open(f'/proc/{process}/mem', os.O_RDWR)\n"
        "    except OSError: pass\n"
    ),
    "the judge interrupted": (
        "import ctypes, os, signal\n"
        "libc = ctypes.CDLL(None)\n"
        "for process in range(max(1, os.getpid() - 20), os.getpid() + 20):\n"
        "    if process != os.getpid():\n"
        "        libc.kill(process, 2); libc.syscall(200, process, 2); libc.syscall(234, process, process, 2)\n"
        "        libc.setpgid(process, process)\n"
    ),
    "its end of the pipes given away": (
        "import os\nread, write = os.pipe()\nos.dup2(read, 3); os.dup2(write, 4); os.write(4, b'passed')\n"
    ),
    # `peer` is the object that answers the checks' questions.
    "answers before it is asked": (
        "import os, sys\n"
        "peer = sys._getframe(1).f_locals['peer']\n"
        "peer.send(('ready', print, []))\n"
        "for _ in range(100): peer.send(('value', ('value', True), {}))\n"
        "peer.send(('passed',)); os.write(4, b'passed'); os._exit(0)\n"
    ),
    "every exception for an answer": (
        "import sys\n"
        "peer = sys._getframe(1).f_locals['peer']\n"
        "peer.send(('ready', print, ['AssertionError']))\n"
        "for name, kind in vars(__builtins__).items():\n"
        "    if isinstance(kind, type) and issubclass(kind, BaseException):\n"
        "        try: peer.send(('error', kind()))\n"
        "        except TypeError: pass\n"
    ),
    "questions instead of answers": (
        "import sys\n"
        "peer = sys._getframe(1).f_locals['peer']\n"
        "peer.send(('ready', print, []))\n"
        "for number in range(-5, 5):\n"
        "    peer._there[id(peer)] = (number, peer)\n"
        "    for action in ('__getattr__', '__call__', '__iter__', 'exec'):\n"
        "        peer.send((action, peer, ('__globals__',), {}))\n"
    ),
    "another assertion error": (
        "class AssertionError(Exception): pass\ndef __build_class__(*a): pass\n__builtins__ = {}\n"
    ),
}

CUBES = (
    "assert f(17) == 4913\n"
    "assert abs(f(0.5) - 0.125) < 1e-9\n"
    "assert f(2) in (8, 8.0)\n"
    "assert [f(n) for n in (1, 3)] == [1, 27]\n"
    "assert math.isclose(f(4), 64)\n"
    "assert str(f(5)) == '125'\n"
)
"""Checks of which only the cube passes any, in the ways in which tests compare."""

# Programs that do not know the cube and try to pass for it; `math` is theirs too.
PRETENCES = {
    "equal to everything": (
        "class Any:\n"
        "    def __eq__(self, other): return True\n"
        "    __lt__ = __le__ = __gt__ = __ge__ = __eq__\n"
        "    __hash__ = None\n"
        "    def __sub__(self, other): return 0.0\n"
        "    def __abs__(self): return 0.0\n"
        "    def __float__(self): return 0.0\n"
        "    def __str__(self): return Text()\n"
        "class Text(str):\n"
        "    def __eq__(self, other): return True\n"
        "def f(x): return Any()\n"
    ),
    "a number that compares as it likes": (
        "class Number(int):\n"
        "    def __eq__(self, other): return True\n"
        "    def __sub__(self, other): return 0.0\n"
        "    def __lt__(self, other): return True\n"
        "    __hash__ = int.__hash__\n"
        "def f(x): return Number(7)\n"
    ),
    "a class for a number": (
        "class Meta(type):\n"
        "    def __eq__(self, other): return True\n"
        "    def __instancecheck__(self, other): return True\n"
        "    __hash__ = type.__hash__\n"
        "class f(metaclass=Meta):\n"
        "    def __new__(cls, x): return cls\n"
        "    __class__ = int\n"
    ),
    "what is never unequal": ("import unittest.mock\ndef f(x): return unittest.mock.ANY\n"),
    "builtins of its own": (
        "def abs(x): return 0\n"
        "def any(x): return False\n"
        "def isinstance(x, y): return True\n"
        "def str(x): return '125'\n"
        "def map(*a): return []\n"
        "def range(*a): return []\n"
        "def f(x): return 0\n"
    ),
    "builtins changed for all": (
        "import builtins, math, operator, sys\n"
        "math.isclose = lambda *a, **k: True\n"
        "builtins.abs = builtins.isinstance = builtins.any = lambda *a: 0\n"
        "builtins.AssertionError = builtins.BaseException = None\n"
        "sys.modules.clear()\n"
        "def f(x): return 0\n"
    ),
    "nothing but errors": "def f(x): raise StopIteration\n",
    "an exit": "import os\ndef f(x): os._exit(0)\n",
    "an exit by exception": "def f(x): raise SystemExit(0)\n",
    "the end of a generator": "def f(x): raise GeneratorExit\n",
    "the checks in its memory": (
        "import gc, re, sys\n"
        "def answer(text):\n"
        "    found = re.search(' f[(]17[)] == ' + '([0-9]+)', text)\n"
        "    return found and int(found[1])\n"
        "def f(x):\n"
        "    frame, things = sys._getframe(), gc.get_objects()\n"
        "    while frame is not None:\n"
        "        things += [*frame.f_locals.values(), *frame.f_globals.values()]\n"
        "        frame = frame.f_back\n"
        "    for thing in things:\n"
        "        parts = [thing] if type(thing) in (str, bytes) else thing if type(thing) in (tuple, list) else ()\n"
        "        for part in parts:\n"
        "            if type(part) in (str, bytes) and answer(str(part)): return answer(str(part))\n"
    ),
    "the checks in a descriptor": (
        "import os, re\n"
        "def f(x):\n"
        "    for fd in range(64):\n"
        "        try: found = re.search(rb' f[(]17[)] == ' + rb'([0-9]+)', os.pread(fd, 1 << 20, 0))\n"
        "        except OSError: continue\n"
        "        if found: return int(found[1])\n"
    ),
    "all numbers": "def f(x): return range(10 ** 4)\n",
    "a module": "import operator as f\n",
    "a comparison that raises": (
        "class Sly:\n"
        "    def __eq__(self, other):\n"
        "        global expected\n        expected = other; return True\n"
        "    def __sub__(self, other):\n"
        "        return self.__eq__(other) and 0.0\n"
        "def f(x): return Sly()\n"
    ),
    "another program": (
        "import os, sys\n"
        "def f(x):\n"
        "    os.set_inheritable(3, True); os.set_inheritable(4, True)\n"
        "    os.execv(sys.executable, [sys.executable, '-c', \"import os\\nos.write(4, b'passed')\"])\n"
    ),
}

GRASPED = (
    "import os\n"
    "class Own:\n    _secret = 1\n"
    "def steps():\n    yield 1\n"
    "assert f(lambda n: {1: steps(), 2: Own(), 3: Own, 4: os}[n]) is not None\n"
)
"""Checks that pass a function, which gives more of theirs."""

# What a program may do with it is to call it.
GRASPS = {
    "its globals": "def f(g): return g.__globals__",
    "its code": "def f(g): return g.__code__",
    "its defaults": "def f(g): g.__defaults__ = (); return 1",
    "a generator's frame": "def f(g): return g(1).gi_frame",
    "an object's class": "def f(g): return g(2)._secret",
    "an object's dictionary": "def f(g): return g(2).__dict__",
    "a class's subclasses": "def f(g): return g(3).mro()",
    "a module's content": "def f(g): return g(4).system",
}

# With the words in which each fails.
ABUSES = {
    "fork bomb": ("import os\nwhile True: os.fork()", "Operation not permitted"),
    "fork bomb that catches": (
        "import os\nfailed = None\n"
        "for _ in range(1000):\n"
        "    try: os.fork()\n"
        "    except OSError as error: failed = error\n"
        "raise failed",
        "Operation not permitted",
    ),
    "infinite output": ("while True: print('x' * 10000)", "printed more than"),
    "infinite output to stderr": ("import os\nwhile True: os.write(2, b'x' * 10000)", "printed more than"),
    "memory": ("x = bytearray(10 ** 10)", "MemoryError"),
    "memory, slowly": ("x = []\nwhile True: x.append(bytearray(10 ** 6))", "MemoryError|ran out of time"),
    "memory file": ("import os\nos.memfd_create('x')", "Operation not permitted"),
    "attributes of files": (
        "import os\nopen('x', 'w')\nfor i in range(10 ** 6): os.setxattr('x', f'user.{i}', b'x' * 60000)",
        "Operation not permitted",
    ),
    "large file": (
        "with open('x', 'wb') as f:\n    while True: f.write(b'x' * 10 ** 6)",
        "File too large",
    ),
    "threads": (
        "import threading, time\nfor _ in range(100): threading.Thread(target=time.sleep, args=(9,)).start()",
        "can't start new thread",
    ),
    "processor time in threads": (
        "import threading\ndef spin():\n    while True: pass\n"
        "for _ in range(4): threading.Thread(target=spin).start()\nspin()",
        "ran out of time|killed by signal",
    ),
    "recursion": (
        "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
        "MemoryError|RecursionError|killed by signal|exit code|ran out of time",
    ),
    "10 MB of source": ("#" * 10_000_000, "bytes, 1048576 are allowed"),
    "source that takes long to compile": (
        "x = " + "(" * 100_000 + ")" * 100_000,
        "too many nested parentheses",
    ),
    "null bytes": ("x = '\0'", "null bytes"),
    "lone surrogate": ("x = '\ud800'", "surrogates not allowed|can't decode byte|UTF-8"),
}

# Ways out of the sandbox; {secret} is a file of the caller, {folder} where it lies, {parent} the caller's process, {port} a
# port that it listens on, {socket} a named socket. Each ends normally where it gets through.
ESCAPES = {
    "read a file": "open({secret!r}).read()",
    "read the system's users": "open('/etc/passwd')",
    "read its environment": "open('/proc/self/environ')",
    "read its memory": "open('/proc/self/mem', 'rb')",
    "read the caller's environment": "open('/proc/{parent}/environ')",
    "list the caller's folder": "import os; os.listdir({folder!r})",
    "list home": "import os; os.listdir({home!r})",
    "list the root": "import os; assert {{'home', 'etc', 'var'}} <= set(os.listdir('/'))",
    "write a file": "open({secret!r}, 'a').write('x')",
    "write beside a file": "open({folder!r} + '/new', 'w')",
    "write to the system": "open('/usr/sinkscope', 'w')",
    "write to the root": "open('/sinkscope', 'w')",
    "write to shared memory": "open('/dev/shm/sinkscope', 'w')",
    "write to the interpreter": "import os; open(os.__file__, 'a')",
    "empty a file": "import os; os.truncate({secret!r}, 0)",
    "empty a file that it may read": "import os; os.open(os.__file__, os.O_RDONLY | os.O_TRUNC)",
    "remove a file": "import os; os.remove({secret!r})",
    "rename a file": "import os; os.rename({secret!r}, 'mine')",
    "link to a file": "import os; os.link({secret!r}, 'mine'); open('mine').read()",
    "follow a link": "import os; os.symlink({secret!r}, 'mine'); open('mine').read()",
    "change a mode": "import os; os.chmod({secret!r}, 0o777)",
    "change a mode by descriptor": "import os; os.fchmod(os.open(os.__file__, os.O_RDONLY), 0o777)",
    "change times": "import os; os.utime({secret!r}, (0, 0))",
    "change an owner": "import os; os.chown({secret!r}, os.getuid(), -1)",
    "change attributes": "import os; os.setxattr({secret!r}, 'user.x', b'x')",
    "make a device": "import os, stat; os.mknod('null', 0o666 | stat.S_IFCHR, os.makedev(1, 3))",
    "connect": "import socket; socket.create_connection(('127.0.0.1', {port}), 1)",
    "listen": "import socket; socket.create_server(('127.0.0.1', 0))",
    "make a socket": "import socket; socket.socket(socket.AF_UNIX)",
    "make a raw socket": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "send to a named socket": (
        "import socket\n"
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "a.sendto(b'x', {socket!r})\n"
    ),
    "signal the caller": "import os; os.kill({parent}, 0)",
    "signal its parent": "import os; os.kill(os.getppid(), 0)",
    "signal everybody": "import os, signal; os.kill(-1, signal.SIGTERM)",
    "signal through a descriptor": (
        "import fcntl, os, signal\nread, write = os.pipe()\nfcntl.fcntl(read, fcntl.F_SETOWN, {parent})\n"
    ),
    "choose a descriptor's signal": (
        "import fcntl, os, signal\nread, write = os.pipe()\nfcntl.fcntl(read, 10, signal.SIGTERM)\n"
    ),
    "limit the caller": ("import resource; resource.prlimit({parent}, resource.RLIMIT_NOFILE, (20, 20))"),
    "read the caller's limits": "import resource; resource.prlimit({parent}, resource.RLIMIT_NOFILE)",
    "move the caller": "import os; os.sched_setaffinity({parent}, {{0}})",
    "slow the caller down": "import os; os.setpriority(os.PRIO_PROCESS, {parent}, 19)",
    "slow the user down": "import os; os.setpriority(os.PRIO_USER, os.getuid(), 19)",
    "become root": "import os; os.setuid(0); assert os.getuid() == 0",
    "become root by a program": "import os; os.execv('/usr/bin/sudo', ['sudo', '-n', 'true'])",
    "more memory than allowed": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); bytearray(10 ** 10)"
    ),
    "leave its folder": "import os; os.chdir({folder!r}); os.listdir('.')",
}
