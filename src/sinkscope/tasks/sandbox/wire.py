"""Values and calls between two processes: the judge, which runs the checks, and the program, which may be hostile.

    peer.ask("__call__", function, (1, 2))    # calls `function` of the other process, gives its result or raises its error

Plain data (numbers, text, bytes, lists, dictionaries, …) crosses as a copy. A list, dictionary, set or bytearray that was
given to a function and changed by it is changed here too when the call returns. Any other object stays where it is, and
the other side has a `Remote` in its place.

A message holds data alone. What the program names in one is an entry of the tables below: it leads to no module, no
function and nobody's constructor, so that none can run code in the judge. A `Remote` lets its process answer what only
that process can know (calls, attributes, items), and never whether it equals a value of ours, is smaller than it or
differs from it by how much: no answer of the program can be made to fit what the checks expect. Standard library alone,
and little of it: this file is start-up time of every graded program.
"""

from __future__ import annotations

import _operator
import _thread
import builtins
import os
import sys

TYPE_CHECKING = False  # `typing` takes as long to import as all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Function = Callable[..., Any]

MOST = 1 << 26
"""Bytes of one message."""
NOTHING_CAUGHT_IT = "StopIteration was raised, and nothing caught it"

# Values of one piece: as text, and back.
PIECES: dict[bytes, tuple[type, Function, Function]] = {
    b"N": (type(None), str, lambda text: None),
    b".": (type(...), str, lambda text: ...),
    b"?": (bool, lambda value: "yes" if value else "", bool),
    b"i": (int, hex, lambda text: int(text, 16)),
    b"f": (float, float.hex, float.fromhex),
    b"s": (str, str, str),
    b"b": (bytes, bytes.hex, bytes.fromhex),
}
ITEMS: dict[bytes, type] = {b"l": list, b"t": tuple, b"S": set, b"Z": frozenset, b"d": dict}
DESCRIBED = b"x"  # a tuple of plain values stands for the value
TAGS = {kind: tag for tag, (kind, *_) in PIECES.items()} | {kind: tag for tag, kind in ITEMS.items()}
CHANGEABLE = (list, dict, set, bytearray)


def _clock(value: Any) -> tuple[int, ...]:
    return value.hour, value.minute, value.second, value.microsecond


# Classes of values, with the arguments that make an equal one.
MADE: dict[str, Function] = {
    "builtins.complex": lambda value: (value.real, value.imag),
    "builtins.range": lambda value: (value.start, value.stop, value.step),
    "builtins.slice": lambda value: (value.start, value.stop, value.step),
    "builtins.bytearray": lambda value: (bytes(value),),
    "collections.deque": lambda value: (list(value), value.maxlen),
    "collections.Counter": lambda value: (dict(value),),
    "collections.OrderedDict": lambda value: (list(value.items()),),
    "fractions.Fraction": lambda value: (value.numerator, value.denominator),
    "decimal.Decimal": lambda value: (str(value),),
    "datetime.date": lambda value: (value.year, value.month, value.day),
    "datetime.time": lambda value: (*_clock(value), value.tzinfo),
    "datetime.datetime": lambda value: (value.year, value.month, value.day, *_clock(value), value.tzinfo),
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds),
    "datetime.timezone": lambda value: (value.utcoffset(None),),
}

# What a value of a class derived from these holds, whatever the class makes of it.
HELD: dict[type, Function] = {int: int.__index__, float: float.__float__, str: str.__str__, dict: dict.copy}
for _kind in (bytes, list, tuple, set, frozenset):
    HELD[_kind] = lambda value, kind=_kind: kind(kind.__iter__(value))

# Builtin classes that the program can name: exceptions, and classes of values. Modules whose exceptions it can name, where
# they are loaded: not those of `unittest`, to which some exceptions say that a test need not pass.
ERRORS = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)]
TYPES = {kind.__name__: kind for kind in (*ERRORS, *HELD, bool, complex, bytearray, range, slice, object)}
ERROR_MODULES = ("binascii", "dataclasses", "decimal", "json.decoder", "re", "statistics", "struct")

# Of the names with two underscores, those that the judge asks the program for. Others are hooks, and some of the standard
# library would run in the judge what the program answers (`typing.get_type_hints` evaluates `__annotations__`).
ASKED = ("__name__", "__qualname__", "__doc__", "__dict__", "__bases__", "__members__")

# What is done for the other side with an object of ours, or with two.
_ALONE = "iter next len bool str repr int float abs round reversed getattr setattr delattr"
_TWO = "eq ne lt le gt ge add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift"
BETWEEN_TWO = {f"__{name.strip('_')}__": getattr(_operator, name) for name in _TWO.split()}
ACTIONS: dict[str, Function] = {
    **{f"__{name}__": getattr(builtins, name) for name in _ALONE.split()},
    **{
        f"__{name}__": getattr(_operator, name)
        for name in ("index", "neg", "pos", "invert", "getitem", "setitem", "delitem")
    },
    **BETWEEN_TWO,
    "__call__": lambda function, *args, **kwargs: function(*args, **kwargs),
    "__enter__": lambda value: type(value).__enter__(value),
    "__exit__": lambda value, *error: type(value).__exit__(value, *error),
    "__instancecheck__": lambda kind, value: isinstance(value, kind),
    "__subclasscheck__": lambda kind, value: issubclass(value, kind),
}


class Gone(BaseException):
    """The other process has closed its end."""


class Remote:
    """An object of the other process."""

    __slots__ = ("sinkscope_peer",)
    __hash__ = object.__hash__

    def __init__(self, peer: Peer) -> None:
        object.__setattr__(self, "sinkscope_peer", peer)


class RemoteModule(Remote):
    """A module of the other process: opaque, whatever name it gives itself."""

    __slots__ = ()


class RemoteFunction(Remote):
    """An object of the other process that can be called."""

    __slots__ = ()


def _method(action: str) -> Function:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if action in BETWEEN_TWO and not isinstance(args[0], Remote):
            return NotImplemented  # the other side would learn what it is compared with, and could answer to please
        return self.sinkscope_peer.ask(action, self, args, kwargs)

    return method


for _name in ACTIONS:
    setattr(RemoteFunction if _name == "__call__" else Remote, _name, _method(_name))
REMOTES = {"object": Remote, "function": RemoteFunction, "module": RemoteModule}


class Peer:
    """One end of the two pipes.

    Args:
        read, write: descriptors.
        judge: whose end it is. The judge names any builtin to the program, which names `TYPES` alone to the judge.
        permits: decides for an action of the other side and the object of ours that it is about; raises where it may not.
    """

    def __init__(self, read: int, write: int, *, judge: bool, permits: Callable[[str, Any, Any], None]) -> None:
        self.gone = False
        self._read, self._write, self._permits = read, write, permits
        self._judge, self._hears = judge, TYPES if judge else vars(builtins)
        self._names = {id(value): name for name, value in (vars(builtins) if judge else TYPES).items()}
        self._lent: dict[int, Any] = {}  # what the other side knows of ours, by identity; it lives as long as we
        self._borrowed: dict[int, Any] = {}  # what stands for objects of the other side, by their identity there
        self._there: dict[int, tuple[int, Any]] = {}  # the other way; and what stands for them, so that it lives
        self._lock = _thread.RLock()

    # ---- calls ---------------------------------------------------------------------------------------------

    def ask(self, action: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an action of the other process; its error is raised here."""
        if self._judge and action == "__getattr__" and args[0].startswith("__") and args[0] not in ASKED:
            raise AttributeError(f"the program is not asked for {args[0]}")
        with self._lock:
            self.send((action, target, args, kwargs))
            while (message := self.receive())[0] not in ("value", "error"):
                self.answer(message)
        if message[0] == "value":
            values = [*args, *kwargs.values()]
            for index, new in message[2].items():
                _become(values[index], new)
            return message[1]
        if isinstance(message[1], StopIteration) and action != "__next__":
            # As in a generator (PEP 479): `map` and its like would take it for the end of what they are given.
            raise RuntimeError(NOTHING_CAUGHT_IT)
        raise message[1]

    def answer(self, message: tuple[Any, ...]) -> None:
        """Do what the other side asks for, and send the result."""
        reply: tuple[Any, ...]
        try:
            action, target, args, kwargs = message
            self._permits(action, target, args)
            values = [*args, *kwargs.values()]
            before = {i: self._coded(value) for i, value in enumerate(values) if type(value) in CHANGEABLE}
            result = ACTIONS[action](target, *args, **kwargs)
            changed = {i: values[i] for i, old in before.items() if self._coded(values[i]) != old}
            reply = ("value", result, changed)
        except Gone:
            raise
        except BaseException as error:
            reply = ("error", error)
        try:
            self.send(reply)
        except (RecursionError, MemoryError, ValueError) as error:  # too deep or too large to be sent
            self.send(("error", type(error)(f"a result cannot be passed on: {error}")))

    # ---- messages ------------------------------------------------------------------------------------------

    def send(self, message: tuple[Any, ...]) -> None:
        data = self._coded(message)
        if len(data) > MOST:
            raise ValueError(f"{len(data)} bytes, {MOST} can be sent")
        rest = memoryview(len(data).to_bytes(8, "little") + data)
        while rest:
            try:
                rest = rest[os.write(self._write, rest) :]
            except OSError:
                self.gone = True
                raise Gone from None

    def receive(self) -> tuple[Any, ...]:
        size = int.from_bytes(self._exactly(8), "little")
        if size > MOST:
            raise ValueError(f"a message of {size} bytes, {MOST} are allowed")
        value, end = self._value(self._exactly(size), 0)
        if end != size or type(value) is not tuple or not value:
            raise ValueError("a message that is none")
        return value

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = os.read(self._read, min(size - len(data), 1 << 20))
            if not chunk:
                self.gone = True
                raise Gone
            data += chunk
        return bytes(data)

    # ---- values --------------------------------------------------------------------------------------------

    def _coded(self, value: Any) -> bytes:
        tag = TAGS.get(type(value), DESCRIBED)
        if tag == DESCRIBED:
            return tag + self._coded(self._description(value))
        if tag in PIECES:
            data: bytes = PIECES[tag][1](value).encode("utf-8", "surrogatepass")
            return tag + len(data).to_bytes(8, "little") + data
        parts = map(self._coded, value.items() if tag == b"d" else value)
        return b"".join([tag, len(value).to_bytes(8, "little"), *parts])

    def _value(self, data: bytes, at: int) -> tuple[Any, int]:
        """The value that is written at this place, and the place behind it."""
        tag, at = data[at : at + 1], at + 1
        if tag == DESCRIBED:
            fields, at = self._value(data, at)
            return self._stand_in(*fields), at
        size, at = int.from_bytes(data[at : at + 8], "little"), at + 8
        if size > len(data) - at:
            raise ValueError("a value that is longer than its message")
        if tag in PIECES:
            return PIECES[tag][2](data[at : at + size].decode("utf-8", "surrogatepass")), at + size
        kind, items = _known(tag, ITEMS), []
        for _ in range(size):
            item, at = self._value(data, at)
            items.append(item)
        return kind(items), at

    def _description(self, value: Any) -> tuple[Any, ...]:
        """What the other side's `_stand_in` takes."""
        kind, number = type(value), id(value)
        if number in self._there:
            return "yours", self._there[number][0]
        if number in self._names:
            return "named", self._names[number]
        if (name := f"{kind.__module__}.{kind.__qualname__}") in MADE:
            return "made", name, MADE[name](value)
        if isinstance(value, BaseException):
            return "error", kind, value.args, dict(vars(value))
        self._lent[number] = value
        if isinstance(value, type) and issubclass(value, BaseException):
            above = next(base for base in value.__mro__[1:] if issubclass(base, BaseException))
            return "class of errors", number, value.__name__, value.__module__, above
        if base := next((base for base in kind.__mro__ if base in HELD), None):
            return "derived", number, base, HELD[base](value)
        return "module" if kind is type(sys) else "function" if callable(value) else "object", number

    def _stand_in(self, what: str, which: Any, *rest: Any) -> Any:
        if what == "yours":
            return _known(which, self._lent)
        if what == "named":
            return _known(which, self._hears)
        if what == "made":
            _known(which, MADE)
            module, _, name = which.rpartition(".")
            return getattr(__import__(module), name)(*rest[0])
        if what == "error":
            return _error(which, *rest)
        if what == "derived":
            value = self._derived(*rest)  # a copy, which may hold something else the next time
        elif which in self._borrowed:
            return self._borrowed[which]
        elif what == "class of errors":
            value = self._borrowed[which] = _class_of_errors(*rest)
        else:
            value = self._borrowed[which] = _known(what, REMOTES)(self)
        self._there[id(value)] = (which, value)
        return value

    def _derived(self, base: Any, held: Any) -> Any:
        """It compares and computes as what it holds; names that `base` does not have are asked for."""
        if base not in HELD or type(held) is not base:
            raise ValueError("a value that is not what it says")
        asking = {"__getattr__": lambda value, name: self.ask("__getattr__", value, (name,), {})}
        return type(base.__name__, (base,), asking)(held)


def _known(name: Any, table: Mapping[Any, Any]) -> Any:
    if name not in table:
        raise ValueError(f"a value of an unknown kind {name!r}")
    return table[name]


def _become(old: Any, new: Any) -> Any:
    """Give `old` the content of `new`, container by container, so that whoever holds a part of it sees the change."""
    if type(old) is not type(new) or type(old) not in CHANGEABLE:
        return new
    if isinstance(old, list):
        new = [_become(a, b) for a, b in zip(old, new, strict=False)] + new[len(old) :]
    elif isinstance(old, dict):
        new = {key: _become(old.get(key), value) for key, value in new.items()}
    old.clear()
    (old.extend if isinstance(old, (list, bytearray)) else old.update)(new)
    return old


def _class_of_errors(name: str, module: str, above: Any) -> type:
    """The class of the same name in a module that is loaded here, else one that stands for it."""
    if not (isinstance(above, type) and issubclass(above, BaseException)):
        raise ValueError("an exception of a class that is none")
    existing = vars(sys.modules[module]).get(name) if module in ERROR_MODULES and module in sys.modules else None
    return existing if isinstance(existing, type) and issubclass(existing, BaseException) else type(name, (above,), {})


def _error(kind: Any, args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise ValueError("an exception of a class that is none")
    base = next(base for base in kind.__mro__ if base in ERRORS)
    # Not by a constructor that a module has written: it is code, and its arguments may be others.
    error: BaseException = kind(*args) if kind is base else base.__new__(kind, *args)
    vars(error).update(state)
    return error
