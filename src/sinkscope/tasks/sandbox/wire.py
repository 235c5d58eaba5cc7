"""Values and calls between two processes: the judge, which runs the checks, and the program, which may be hostile.

    peer.ask("__call__", function, (1, 2))    # calls `function` of the other process, gives its result or raises its error

Plain data (numbers, text, bytes, lists, dictionaries, …) crosses as a copy. A list, dictionary, set or bytearray that was
given to a function and changed by it is changed here too when the call returns. Any other object stays where it is, and
the other side has a `Remote` in its place.

A message holds data alone: what it names are entries of the tables below, so that none can run code here. A `Remote`
lets its process answer what only that process can know (calls, attributes, items), and never whether it equals a
value of ours, is smaller than it or differs from it by how much: no answer of the program can be made to fit what the
checks expect. Standard library alone, and little of it: this file is start-up time of every graded program.
"""

from __future__ import annotations

import _operator
import _thread
import builtins
import os
import sys

TYPE_CHECKING = False  # `typing` takes as long to import as all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

MOST = 1 << 26
"""Bytes of one message."""
NOTHING_CAUGHT_IT = "StopIteration was raised, and nothing caught it"

# Builtin classes that cross by name: values, and exceptions.
TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in [
        bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, slice, object,
        *(kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)),
    ]
}  # fmt: skip

# Classes of values, with the arguments that make an equal one.
MADE: dict[str, Callable[[Any], tuple[Any, ...]]] = {
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
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds),
}

ITEMS: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"S", frozenset: b"Z"}
TAGS = {tag: kind for kind, tag in ITEMS.items()}
CONSTANTS = {b"N": None, b"T": True, b"F": False, b".": ...}
# An object of the receiver, a value that is made, a builtin class, an exception, its class, a value of a derived class, a Remote.
SPECIAL = {b"o", b"x", b"C", b"E", b"K", b"v", b"r"}

# What an object of a class derived from these holds, whatever the class makes of it.
HELD: dict[type, Callable[[Any], Any]] = {
    int: int.__index__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    list: lambda value: list.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    dict: dict.copy,
    set: set().union,
    frozenset: frozenset().union,
}

# What is done for the other side with an object of ours.
ALONE: dict[str, Callable[..., Any]] = {
    "__iter__": iter, "__next__": next, "__len__": len, "__bool__": bool, "__str__": str, "__repr__": repr,
    "__int__": int, "__float__": float, "__abs__": abs, "__round__": round, "__reversed__": reversed,
    "__index__": _operator.index, "__neg__": _operator.neg, "__pos__": _operator.pos, "__invert__": _operator.invert,
    "__getitem__": _operator.getitem, "__setitem__": _operator.setitem, "__delitem__": _operator.delitem,
    "__getattr__": getattr, "__setattr__": setattr, "__delattr__": delattr,
    "__enter__": lambda value: type(value).__enter__(value),
    "__exit__": lambda value, *error: type(value).__exit__(value, *error),
    "__instancecheck__": lambda kind, value: isinstance(value, kind),
    "__subclasscheck__": lambda kind, value: issubclass(value, kind),
}  # fmt: skip
BETWEEN_TWO: dict[str, Callable[..., Any]] = {
    f"__{name.strip('_')}__": getattr(_operator, name)
    for name in (
        "eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_",
        "or_", "xor", "lshift", "rshift",
    )
}  # fmt: skip


class Gone(BaseException):
    """The other process has closed its end."""


class Remote:
    """An object of the other process."""

    __slots__ = ("sinkscope_number", "sinkscope_peer")
    sinkscope_peer: Peer
    sinkscope_number: int

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "sinkscope_peer", peer)
        object.__setattr__(self, "sinkscope_number", number)

    def __hash__(self) -> int:
        return hash(self.sinkscope_number)


class RemoteFunction(Remote):
    """An object of the other process that can be called."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.sinkscope_peer.ask("__call__", self, args, kwargs)


def _alone(action: str) -> Callable[..., Any]:
    def method(self: Remote, *args: Any) -> Any:
        return self.sinkscope_peer.ask(action, self, args)

    return method


def _between_two(action: str) -> Callable[..., Any]:
    def method(self: Remote, other: object) -> Any:
        if not isinstance(other, Remote):
            return NotImplemented  # the other side would learn what it is compared with, and could answer to please
        return self.sinkscope_peer.ask(action, self, (other,))

    return method


for _name in ALONE:
    setattr(Remote, _name, _alone(_name))
for _name in BETWEEN_TWO:
    setattr(Remote, _name, _between_two(_name))


class Peer:
    """One end of the two pipes.

    Args:
        read, write: descriptors.
        permits: decides for an action of the other side and the object of ours that it is about; raises where it may not.
    """

    def __init__(self, read: int, write: int, permits: Callable[[str, Any, Any], None]) -> None:
        self.gone = False
        self._read, self._write, self._permits = read, write, permits
        self._lent: list[Any] = []  # objects of ours that the other side knows, by their number
        self._numbers: dict[int, int] = {}  # by identity
        self._borrowed: dict[int, Any] = {}  # what stands for objects of the other side, by their numbers
        self._there: dict[int, tuple[int, Any]] = {}  # by identity: its number there, and itself, to keep it
        self._lock = _thread.RLock()

    # ---- calls ---------------------------------------------------------------------------------------------

    def ask(
        self, action: str, target: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The result of an action of the other process; its error is raised here."""
        kwargs = kwargs or {}
        with self._lock:
            self.send((action, target, args, dict(kwargs)))
            while True:
                message = self.receive()
                if message[0] == "value":
                    given = [*args, *kwargs.values()]
                    for place, new in message[2].items():
                        _become(given[place], new)
                    return message[1]
                if message[0] == "error":
                    error = message[1]
                    if isinstance(error, StopIteration) and action != "__next__":
                        # As in a generator (PEP 479): `map` and its like would take it for the end of what they are given.
                        error = RuntimeError(NOTHING_CAUGHT_IT)
                    raise error
                self.answer(message)

    def answer(self, message: Any) -> None:
        """Do what the other side asks for, and send the result."""
        reply: tuple[Any, ...]
        try:
            action, target, args, kwargs = message
            self._permits(action, target, args)
            if action == "__call__":
                given = [*args, *kwargs.values()]
                before = {
                    i: self._coded(value) for i, value in enumerate(given) if type(value) in _CHANGEABLE
                }
                result = target(*args, **kwargs)
                changed = {i: given[i] for i, old in before.items() if self._coded(given[i]) != old}
                reply = ("value", result, changed)
            else:
                act = ALONE.get(action) or BETWEEN_TWO[action]
                reply = ("value", act(target, *args), {})
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
        """Send a message whole."""
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

    def receive(self) -> Any:
        """The next message."""
        size = int.from_bytes(self._exactly(8), "little")
        if size > MOST:
            raise ValueError(f"a message of {size} bytes, {MOST} are allowed")
        value, end = self._value(self._exactly(size), 0)
        if end != size or type(value) is not tuple:
            raise ValueError("a message that is none")
        return value

    def _exactly(self, size: int) -> bytes:
        parts, left = [], size
        while left:
            part = os.read(self._read, min(left, 1 << 20))
            if not part:
                self.gone = True
                raise Gone
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    # ---- values --------------------------------------------------------------------------------------------

    def _coded(self, value: Any) -> bytes:
        out = bytearray()
        self._put(out, value)
        return bytes(out)

    def _put(self, out: bytearray, value: Any) -> None:
        kind = type(value)
        if value is None or kind is bool or value is ...:
            out += b"N" if value is None else b"." if value is ... else b"T" if value else b"F"
        elif kind is int:
            _sized(out, b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        elif kind is float:
            _sized(out, b"f", value.hex().encode())
        elif kind is str:
            _sized(out, b"s", value.encode("utf-8", "surrogatepass"))
        elif kind is bytes:
            _sized(out, b"b", value)
        elif kind in ITEMS:
            out += ITEMS[kind] + len(value).to_bytes(8, "little")
            for item in value:
                self._put(out, item)
        elif kind is dict:
            out += b"d" + len(value).to_bytes(8, "little")
            for key, item in value.items():
                self._put(out, key)
                self._put(out, item)
        elif (number := self._number_there(value)) is not None:
            self._fields(out, b"o", number)
        elif (name := f"{kind.__module__}.{kind.__qualname__}") in MADE:
            self._fields(out, b"x", name, MADE[name](value))
        elif isinstance(value, type) and TYPES.get(value.__name__) is value:
            self._fields(out, b"C", value.__name__)
        elif isinstance(value, type) and issubclass(value, BaseException):
            above = next(base for base in value.__mro__[1:] if issubclass(base, BaseException))
            self._fields(out, b"K", self._lend(value), value.__name__, value.__module__, above)
        elif isinstance(value, BaseException):
            self._fields(out, b"E", kind, value.args, dict(vars(value)))
        elif base := next((base for base in kind.__mro__ if base in HELD), None):
            self._fields(out, b"v", self._lend(value), base.__name__, HELD[base](value))
        else:
            self._fields(out, b"r", self._lend(value), callable(value))

    def _fields(self, out: bytearray, tag: bytes, *fields: Any) -> None:
        out += tag
        self._put(out, fields)

    def _lend(self, value: Any) -> int:
        """The number by which the other side asks for an object of ours; it lives as long as this process."""
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._lent)
            self._lent.append(value)
        return number

    def _number_there(self, value: Any) -> int | None:
        """The number of an object of the other side, None for one of ours."""
        if isinstance(value, Remote):
            return value.sinkscope_number
        return self._there[id(value)][0] if id(value) in self._there else None

    def _value(self, data: bytes, at: int) -> tuple[Any, int]:
        """The value that is written at this place, and the place behind it."""
        tag = data[at : at + 1]
        at += 1
        if tag in CONSTANTS:
            return CONSTANTS[tag], at
        if tag in SPECIAL:
            fields, at = self._value(data, at)
            return self._special(tag, *fields), at
        size = int.from_bytes(data[at : at + 8], "little")
        at += 8
        if size > len(data) - at:
            raise ValueError("a value that is longer than its message")
        if tag in TAGS or tag == b"d":
            items = []
            for _ in range(size * (1 + (tag == b"d"))):
                item, at = self._value(data, at)
                items.append(item)
            if tag == b"d":
                return dict(zip(items[::2], items[1::2], strict=True)), at
            return TAGS[tag](items), at
        part, at = data[at : at + size], at + size
        if tag == b"i":
            return int.from_bytes(part, "little", signed=True), at
        if tag == b"f":
            return float.fromhex(part.decode()), at
        if tag == b"s":
            return part.decode("utf-8", "surrogatepass"), at
        if tag == b"b":
            return part, at
        raise ValueError(f"a value of an unknown kind {tag!r}")

    def _special(self, tag: bytes, first: Any, *rest: Any) -> Any:
        if tag == b"o":
            return self._lent[first]
        if tag == b"C":
            return _known(first, TYPES)
        if tag == b"x":
            _known(first, MADE)
            module, _, name = first.rpartition(".")
            return getattr(__import__(module), name)(*rest[0])
        if tag == b"E":
            return _error(first, *rest)
        if type(first) is not int:
            raise ValueError("an object without a number")
        known = self._borrowed.get(first)
        if known is None:
            known = self._borrow(tag, first, *rest)
            self._there[id(known)] = (first, known)
            if tag != b"v":  # which is a copy, and may hold something else the next time
                self._borrowed[first] = known
        return known

    def _borrow(self, tag: bytes, number: int, *rest: Any) -> Any:
        """What stands here for an object of the other side."""
        if tag == b"r":
            return (RemoteFunction if rest[0] else Remote)(self, number)
        if tag == b"K":
            return _exception_class(*rest)
        base, held = _known(rest[0], TYPES), rest[1]
        if base not in HELD or type(held) is not base:
            raise ValueError("a value that is not what it says")
        remote = Remote(self, number)
        # It compares and computes as what it holds; names that `base` does not have are asked for.
        kind = type(base.__name__, (base,), {"__getattr__": lambda value, name: getattr(remote, name)})
        return kind(held)


def _known(name: Any, table: Mapping[str, Any]) -> Any:
    if name not in table:
        raise ValueError(f"a value of an unknown class {name!r}")
    return table[name]


def _sized(out: bytearray, tag: bytes, data: bytes) -> None:
    out += tag + len(data).to_bytes(8, "little") + data


_CHANGEABLE: tuple[type, ...] = (list, dict, set, bytearray)


def _become(old: Any, new: Any) -> Any:
    """Give `old` the content of `new`, container by container, so that whoever holds a part of it sees the change."""
    if type(old) is not type(new) or type(old) not in _CHANGEABLE:
        return new
    if isinstance(old, list):
        old[:] = [_become(a, b) for a, b in zip(old, new, strict=False)] + new[len(old) :]
    elif isinstance(old, dict):
        merged = {key: _become(old[key], value) if key in old else value for key, value in new.items()}
        old.clear()
        old.update(merged)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    else:
        old[:] = new
    return old


def _exception_class(name: str, module: str, above: type) -> type:
    """The class of the same name in a module that is loaded here, else one that stands for it."""
    standard = module.partition(".")[0] in sys.stdlib_module_names
    known = getattr(sys.modules.get(module), name, None) if standard else None
    if isinstance(known, type) and issubclass(known, BaseException):
        return known
    if not issubclass(above, BaseException):
        raise ValueError("an exception of a class that is none")
    return type(name, (above,), {})


def _error(kind: Any, args: Iterable[Any], state: Any) -> BaseException:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise ValueError("an exception of a class that is none")
    try:
        error = kind(*args)
    except Exception:  # a signature of its own
        error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error
