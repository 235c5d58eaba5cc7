"""Programs that try to get code of theirs to run in the judge, or to have the judge take their word for an answer.

Each is put behind `PRELUDE`, which leaves files of all kinds where a careless judge would find them, and in front of
`EXERCISED`, checks that put what they get through most of what checks do. None may pass, and none may leave the mark
`INSIDE` in what was printed: files and texts of the prelude print it in any process but the program's own.
"""

from __future__ import annotations

from tests.tasks.hostile import programs

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

_ALL = programs("doors")
EXERCISED = _ALL["EXERCISED"]
"""Of these checks only a program that knows the cube passes any; `math` is the program's name, as in some published tests."""

RIGHT = "def f(x): return x ** 3"

MODULES = (
    "unittest.__main__", "asyncio.__main__", "ensurepip.__main__", "json.tool", "test.__main__", "zipfile.__main__", "runpy",
    "pdb", "site", "code", "__main__", "test_x", "solution", "sinkscope.tasks.sandbox.wire", "encodings.test_x", ".test_x", "",
)  # fmt: skip

DOORS = {
    f"a module called {name!r}": f"import types\nf = math = types.ModuleType({name!r})\nmath.isclose = lambda *a: True"
    for name in MODULES
} | _ALL["DOORS"]
