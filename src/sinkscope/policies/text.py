"""Policies as text: `top:5@layer`, `above:3,effect=silence`, `random(top:5),match=mass`, `first:1 & window:64,first=4`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sinkscope.errors import InputError, nearest
from sinkscope.policies.policy import POLICIES, Policy, Rule

ALLOWED = (
    "top:K, above:EPSILON, first:K, kind:PUNCTUATION, token:ID+ID, keys:LAYER=COL+COL/LAYER=COL, window:WIDTH, keep:FRACTION, "
    "each with @head, @layer or @model and ,option=value behind; random(POLICY) for its control; POLICY & POLICY for both"
)

LONGEST_RANGE = 100_000
"""A range of steps or layers beyond this is a slip of the hand, and would fill the memory."""


def allowed() -> str:
    """How policies are written, with the words that were registered from outside."""
    added = [word for word in POLICIES if not re.search(rf"\b{word}\b", ALLOWED)]
    return f"{ALLOWED}; registered here: {', '.join(added)}" if added else ALLOWED


def parse_policy(text: str) -> Policy | None:
    """Read the text form of a policy; "none" is no policy.

    >>> str(parse_policy("top:5@layer"))
    'top:5@layer'
    """
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"a policy is a text such as top:5@layer, got {text!r}; allowed are {allowed()}")
    if text.strip() == "none":
        return None
    policy: Policy | None = None
    for part in _split(text, "&"):
        rule = _rule(part.strip())
        policy = rule if policy is None else policy & rule
    return policy


def as_policy(policy: Policy | str | None) -> Policy | None:
    """A policy, given as one or as its text."""
    return parse_policy(policy) if isinstance(policy, str) else policy


def _rule(text: str) -> Rule:
    wrapped = re.fullmatch(r"(?P<word>\w+)\((?P<like>.*)\)(?P<tail>[^)]*)", text)
    plain = re.fullmatch(
        r"(?P<word>\w+)(?::(?P<argument>[^@,]*))?(?:@(?P<scope>\w+))?(?P<tail>(?:,.*)?)", text
    )
    match = wrapped or plain
    word = match["word"] if match else re.split(r"[\W\d]", text, maxsplit=1)[0]
    if match is None or word not in POLICIES:
        raise InputError(
            f"policy {text!r}: {word!r} is not known; {nearest(word, POLICIES)} Allowed are {allowed()}"
            if match
            else f"policy {text!r} does not parse; {nearest(word, POLICIES)} Allowed are {allowed()}"
        )
    rule = POLICIES[word]
    names = [item.name for item in dataclasses.fields(rule) if not item.kw_only]
    given: dict[str, Any] = {}
    if wrapped:
        like = parse_policy(wrapped["like"])
        if "like" not in names:
            raise InputError(f"policy {text!r}: {word} is written {word}:…, without brackets")
        if not isinstance(like, Rule):
            raise InputError(f"{word}(…) is the control of one policy, got {wrapped['like']!r}")
        if wrapped["tail"].strip() and not wrapped["tail"].lstrip().startswith(","):
            raise InputError(
                f"policy {text!r}: behind {word}(…) come ,match=mass or ,seed=1, got {wrapped['tail']!r}"
            )
        given["like"] = like
    elif names and names[0] == "like":
        raise InputError(f"policy {text!r}: {word} is written {word}(POLICY). Allowed are {allowed()}")
    elif names:
        given[names[0]] = _argument(rule, match["argument"] or "", text)
    if plain and match["scope"] is not None:
        if "scope" not in names:
            raise InputError(f"policy {text!r}: {word} has no scope; leave out @{match['scope']}")
        given["scope"] = match["scope"]
    given |= _options(rule, match["tail"], text)
    known = {item.name for item in dataclasses.fields(rule)}
    for name in given:
        if name not in known:
            raise InputError(f"policy {text!r} has no option {name!r}; {nearest(name, known)}")
    return rule(**given)


def _argument(rule: type[Rule], text: str, whole: str) -> Any:
    """The value in front of the scope and the options; a rule that writes it in a way of its own has `read_argument`."""
    read = getattr(rule, "read_argument", None)
    if read is None:
        first = next(item.name for item in dataclasses.fields(rule) if not item.kw_only)
        return _indices(text, whole) if first in _index_lists(rule) else _number(text, whole)
    try:
        return read(text)
    except InputError as error:
        raise InputError(f"policy {whole!r}: {error}") from error


def _options(rule: type[Rule], tail: str, whole: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in tail.split(",")[1:] if tail else ():
        name, equals, value = part.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not value:
            raise InputError(f"policy {whole!r}: options are written as name=value, got {part!r}")
        if name in _index_lists(rule):
            options[name] = _indices(value, whole)
        else:
            options[name] = value if value.isidentifier() else _number(value, whole)
    return options


def _index_lists(rule: type[Rule]) -> set[str]:
    """The options that are tuples of whole numbers, such as `layers` and `steps`."""
    return {item.name for item in dataclasses.fields(rule) if "tuple[int" in str(item.type).lower()}


def _indices(text: str, whole: str) -> tuple[int, ...]:
    """`0+3+8-11`: single indices and ranges, both ends included."""
    numbers: list[int] = []
    for part in text.split("+"):
        low, dash, high = part.partition("-")
        if dash and _whole(high, whole) - _whole(low, whole) > LONGEST_RANGE:
            raise InputError(f"policy {whole!r}: the range {part!r} is longer than {LONGEST_RANGE} indices")
        numbers += range(_whole(low, whole), _whole(high, whole) + 1) if dash else [_whole(low, whole)]
    if not numbers:
        raise InputError(f"policy {whole!r}: {text!r} names no index")
    return tuple(numbers)


def _whole(text: str, whole: str) -> int:
    if not text.strip().isdecimal():
        raise InputError(f"policy {whole!r}: expected a whole number, got {text!r}")
    return int(text)


def _number(text: str, whole: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise InputError(f"policy {whole!r}: expected a number, got {text!r}; allowed are {allowed()}")


def _split(text: str, at: str) -> list[str]:
    """Split outside of brackets."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == at and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]
