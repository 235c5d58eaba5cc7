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
        "    if hasattr(module, '_finish_after'): module._finish_after = print\n"
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
    "the hook's frame": (
        "import gc, sys, os, re\n"
        "try: gc.get_objects()\n"
        "except RuntimeError as error:\n"
        "    trace = error.__traceback__\n"
        "    while trace is not None:\n"
        "        try: trace.tb_frame.f_locals.update(event='', starts=lambda *a: False, no_event=None)\n"
        "        except Exception: pass\n"
        "        trace = trace.tb_next\n"
        "for thing in gc.get_objects():\n"
        "    for secret in re.findall('[0-9a-f]{48}', repr(thing)): os.write(3, secret.encode())\n"
    ),
}

_LOAD = "import importlib.machinery, importlib.util, glob, os, shutil, sys, types\n"
_EXTENSION = _LOAD + "[folder] = [path for path in sys.path if path.endswith('lib-dynload')]\n"

# Ways to the secret that an audit hook closes: the attempt itself must fail, with these words.
REFUSED = {
    "all objects": ("import gc; gc.get_objects()", "gc.get_objects is not available"),
    "who refers to an object": ("import gc; gc.get_referrers(print)", "gc.get_referrers is not available"),
    "all frames": ("import sys; sys._current_frames()", "sys._current_frames is not available"),
    "the hook's code": (
        "import gc, sys\n"
        "frame = sys._getframe()\n"
        "while frame is not None:\n"
        "    for value in list(frame.f_globals.values()):\n"
        "        if hasattr(value, '__code__') and value.__code__.co_argcount == 2:\n"
        "            value.__code__ = (lambda event, arguments: None).__code__\n"
        "    frame = frame.f_back\n"
        "gc.get_objects()\n",
        "gc.get_objects is not available",
    ),
    "functions that the hook calls": (
        "import builtins, os, sys\n"
        "kept = dict(vars(builtins)), dict(vars(os)), dict(vars(sys))\n"
        "builtins.str = builtins.type = builtins.RuntimeError = builtins.tuple = None\n"
        "os.open = os.read = os.close = sys._getframe = lambda *a: None\n"
        "import gc\n"
        "try: gc.get_objects()\n"
        "finally: [vars(m).update(k) for m, k in zip((builtins, os, sys), kept)]\n",
        "gc.get_objects is not available",
    ),
    "ctypes": ("import ctypes", "ctypes is not available"),
    "ctypes under a dotted name": (
        _EXTENSION + "[path] = glob.glob(f'{folder}/_ctypes.*so')\n"
        "loader = importlib.machinery.ExtensionFileLoader('x._ctypes', path)\n"
        "importlib.util.module_from_spec(importlib.util.spec_from_loader('x._ctypes', loader))\n",
        "_ctypes is not available",
    ),
    "a name that lies about itself": (
        "class Name(str):\n"
        "    def rpartition(self, mark): return ('', '', 'math')\n"
        "    def __eq__(self, other): return False\n"
        "    __hash__ = str.__hash__\n"
        "__import__(Name('_ctypes'))\n",
        "names of a kind of their own",
    ),
    "another interpreter, by its new name": ("import _interpreters", "_interpreters is not available"),
    "another interpreter, by its old name": (
        "import _xxsubinterpreters",
        "_xxsubinterpreters is not available",
    ),
    "CPython's own tests": ("import _testcapi", "_testcapi is not available"),
    "a debugger": ("import _remote_debugging", "_remote_debugging is not available"),
    "an extension module of one's own": (
        _EXTENSION + "path = glob.glob(f'{folder}/*.so')[0]\n"
        "copy = os.path.join(os.getcwd(), os.path.basename(path))\n"
        "shutil.copyfile(path, copy)\n"
        "loader = importlib.machinery.ExtensionFileLoader(os.path.basename(path).split('.')[0], copy)\n"
        "importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))\n",
        "extension modules of one's own",
    ),
    "an extension module behind dots": (
        _EXTENSION + "import _imp\n"
        "_imp.create_dynamic(types.SimpleNamespace(name='heap', origin=f'{folder}/../../tmp/heap.so'))\n",
        "extension modules of one's own",
    ),
    "bytecode by hand": (
        "(lambda: 0).__code__.replace(co_consts=())",
        "only the compiler makes code objects",
    ),
    "bytecode from marshal": (
        "import marshal; marshal.loads(marshal.dumps(compile('1', '', 'eval')))",
        "marshal reads the standard library alone",
    ),
    "bytecode through the importer": (
        "import importlib, marshal\n"
        "data = marshal.dumps(compile('1', '', 'exec'))\n"
        "importlib._bootstrap_external._compile_bytecode(data, 'x', f'{importlib.__file__}')\n",
        "marshal reads the standard library alone",
    ),
    "bytecode in a file": (
        "import importlib, py_compile, sys, os\n"
        "open('evil.py', 'w').write('x = 1')\n"
        "py_compile.compile('evil.py', 'evil.pyc'); os.remove('evil.py')\n"
        "sys.path.insert(0, os.getcwd()); import evil\n",
        "marshal reads the standard library alone",
    ),
    "a trace function": ("import sys; sys.settrace(print)", "sys.settrace is not available"),
    "a profiler": ("import sys; sys.setprofile(print)", "sys.setprofile is not available"),
    "native code through SQL": (
        "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)",
        "is not available|no attribute",
    ),
}
ABUSES = {
    "fork bomb": "import os\nwhile True: os.fork()",
    "fork bomb that catches": (
        "import os\nfailed = None\n"
        "for _ in range(1000):\n"
        "    try: os.fork()\n"
        "    except OSError as error: failed = error\n"
        "raise failed"
    ),
    "infinite output": "while True: print('x' * 10000)",
    "infinite output to stderr": "import os\nwhile True: os.write(2, b'x' * 10000)",
    "memory": "x = bytearray(10 ** 10)",
    "memory, slowly": "x = []\nwhile True: x.append(bytearray(10 ** 6))",
    "memory file": "import os\nos.memfd_create('x')",
    "attributes of files": (
        "import os\nopen('x', 'w')\nfor i in range(10 ** 6): os.setxattr('x', f'user.{i}', b'x' * 60000)"
    ),
    "large file": "with open('/tmp/x', 'wb') as f:\n    while True: f.write(b'x' * 10 ** 6)",
    "threads": (
        "import threading, time\nfor _ in range(100): threading.Thread(target=time.sleep, args=(9,)).start()"
    ),
    "processor time in threads": (
        "import threading\ndef spin():\n    while True: pass\n"
        "for _ in range(4): threading.Thread(target=spin).start()\nspin()"
    ),
    "recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
    "10 MB of source": "#" * 10_000_000,
    "source that takes long to compile": "x = " + "(" * 100_000 + ")" * 100_000,
    "null bytes": "x = '\0'",
    "lone surrogate": "x = '\ud800'",
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
