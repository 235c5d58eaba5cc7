"""One text form of frozen dataclasses: `word:argument@scope,name=value`.

Policies (`top:5@layer`), rules of approximate steps (`prefix:8,fresh=masks`), decodings (`llada,length=64,block=16`) and captures
(`capture:maps,every=4`) are written and read by their fields. The first field is the argument; every other one stands behind it
where it is not at its default, so that a field that comes later leaves the texts of earlier records as they are. A class that
writes its argument in a way of its own has `written_argument` and `read_argument`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from sinkscope.base.errors import InputError, nearest

LONGEST_RANGE = 100_000
"""A range of indices beyond this is a slip of the hand, and would fill the memory."""

WORDS = {"yes": True, "no": False, "none": None}
PLAIN = re.compile(r"[\w:+.-]+")
"""A text that can stand in a form as it is."""

HEAD = re.compile(r"(?P<word>[\w-]+)(?::(?P<argument>[^@,]*))?(?:@(?P<scope>\w+))?(?P<tail>(?:,.*)?)", re.S)
WRAPPED = re.compile(r"(?P<word>\w+)\((?P<inside>.*)\)(?P<tail>(?: *,[^)]*)?)")


class MisreadError(InputError):
    """A text that is not in the form."""


def write(thing: Any, word: str, argument: bool = True) -> str:
    """The text form of a dataclass; argument: its first field stands behind the word, whatever its value.

    Fields that are named in `inherited` follow from another one, and are left out; those in `written_first` go before others.
    """
    early = getattr(thing, "written_first", ())
    fields = sorted(dataclasses.fields(thing), key=lambda item: (item.name not in early, bool(item.kw_only)))
    text, left_out = word, getattr(thing, "inherited", ())
    if argument and fields and not fields[0].kw_only:
        first = fields.pop(0)
        value = getattr(thing, first.name)
        written = thing.written_argument() if hasattr(thing, "written_argument") else _written(value, first)
        text += f"({value})" if dataclasses.is_dataclass(value) else f":{written}"
    for item in fields:
        value = getattr(thing, item.name)
        if value != item.default and item.name not in left_out:
            text += f"@{value}" if item.name == "scope" else f",{item.name}={_written(value, item)}"
    return text


@dataclasses.dataclass(frozen=True)
class Notation:
    """How the things of one kind are read.

    Attributes:
        what: one of them in messages, such as "policy". kinds: word → class.
        allowed: says how they are written, for messages.
        inside: reads what stands in brackets, as in random(top:5), for a first field called `like`; None: nothing does.
    """

    what: str
    kinds: Mapping[str, type[Any]]
    allowed: Callable[[], str]
    inside: Callable[[str], Any] | None = None

    def read(self, text: str) -> Any:
        """The thing that a text stands for."""
        try:
            kind, values = self._values(text)
        except MisreadError as error:
            raise InputError(f"{self.what} {text!r}: {error} Allowed are {self.allowed()}") from error
        return kind(**values)

    def _values(self, text: str) -> tuple[type[Any], dict[str, Any]]:
        wrapped = WRAPPED.fullmatch(text) if self.inside else None
        match = wrapped or HEAD.fullmatch(text)
        word = match["word"] if match else re.split(r"[\W\d]", text, maxsplit=1)[0]
        if match is None or word not in self.kinds:
            problem = f"{word!r} is not known" if match else "it does not parse"
            raise MisreadError(f"{problem}; {nearest(word, self.kinds)}")
        kind = self.kinds[word]
        fields = {item.name: item for item in dataclasses.fields(kind)}
        first = next((item.name for item in fields.values() if not item.kw_only), "")
        values = {} if match["tail"].strip() == "" else read_options(match["tail"].strip()[1:], fields)
        # What a word takes in brackets is another policy; a word that takes none would swallow it as its argument.
        if (wrapped is None) == (first == "like"):
            raise MisreadError(f"{word} is written {word}{':…' if wrapped else '(…)'}.")
        if wrapped and self.inside:
            values["like"] = self.inside(wrapped["inside"])
        else:
            if match["argument"] is not None:
                read = getattr(kind, "read_argument", lambda argument: read_value(argument, fields.get(first)))
                values[first] = read(match["argument"])
            if match["scope"] is not None:
                values["scope"] = match["scope"]
        for name in values:
            if name not in fields:
                raise MisreadError(f"{word} has no option {name!r}; {nearest(name, fields)}")
        for item in fields.values():
            if item.name not in values and item.default is item.default_factory is dataclasses.MISSING:
                raise MisreadError(f"{word} is written {word}:{item.name.upper()}.")
        return kind, values


def read_options(text: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """`name=value,name=value` as values; a name that is no field is read by its look."""
    options = {}
    for option in text.split(","):
        name, equals, value = (side.strip() for side in option.partition("="))
        if not (name and equals and value):
            raise MisreadError(f"options are written as name=value, got {option!r}.")
        options[name] = read_value(value, fields.get(name))
    return options


def read_value(text: str, item: Any = None) -> Any:
    """A value as a field declares it: indices, a word, a number or a text; yes, no and none where it takes them."""
    text, declared = text.strip(), "" if item is None else str(item.type)
    if text.isidentifier():
        meant = text in WORDS and (not declared or ("None" if text == "none" else "bool") in declared)
        return WORDS[text] if meant else text
    if "tuple[int" in declared:
        return _indices(text)
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    if not declared or re.search(r"\bstr\b", declared):
        return text
    raise MisreadError(f"expected a number, got {text!r}.")


def _indices(text: str) -> tuple[int, ...]:
    """`0+3+8-11`: single indices and ranges, both ends included."""
    numbers: list[int] = []
    for item in text.split("+"):
        low, dash, high = item.partition("-")
        ends = [end.strip() for end in (low, high if dash else low)]
        if not all(end.isdecimal() for end in ends) or not 0 <= int(ends[1]) - int(ends[0]) <= LONGEST_RANGE:
            raise MisreadError(f"expected indices such as 0+3+8-11, at most {LONGEST_RANGE}, got {item!r}.")
        numbers += range(int(ends[0]), int(ends[1]) + 1)
    return tuple(numbers)


def _written(value: Any, item: Any) -> str:
    """A value inside a text form, exact; without a needless .0 where the field cannot be a whole number."""
    if value is None or isinstance(value, bool):
        return next(word for word, meant in WORDS.items() if meant is value)
    if isinstance(value, float) and value.is_integer() and not re.search(r"\bint\b", str(item.type)):
        return str(int(value))
    if isinstance(value, tuple) and all(type(number) is int for number in value):
        return "+".join(map(str, value))
    return value if isinstance(value, str) and PLAIN.fullmatch(value) else repr(value)
