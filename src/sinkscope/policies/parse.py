"""Policies as text: `top:5@layer`, `above:3,effect=silence`, `random(top:5),match=mass`, `first:1 & window:64,first=4`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sinkscope.errors import InputError, nearest
from sinkscope.policies.keep_top import KeepTop
from sinkscope.policies.mask_above import MaskAbove
from sinkscope.policies.mask_first import MaskFirst
from sinkscope.policies.mask_keys import MaskKeys
from sinkscope.policies.mask_random import MaskRandom
from sinkscope.policies.mask_top import MaskTop
from sinkscope.policies.policy import Policy, Rule
from sinkscope.policies.window import Window

RULES: dict[str, type[Rule]] = {
    rule.word: rule for rule in (MaskTop, MaskAbove, MaskFirst, MaskKeys, Window, KeepTop, MaskRandom)
}

ALLOWED = (
    "top:K, above:EPSILON, first:K, keys:LAYER=COL+COL/LAYER=COL, window:WIDTH, keep:FRACTION, each with @head, @layer or @model "
    "and ,option=value behind; random(POLICY) for its control; POLICY & POLICY for both"
)

LONGEST_RANGE = 100_000
"""A range of steps or layers beyond this is a slip of the hand, and would fill the memory."""


def parse_policy(text: str) -> Policy | None:
    """Reads the text form of a policy; "none" is no policy.

    >>> parse_policy("top:5@layer")
    MaskTop(effect='hide', layers=None, steps=None, regions=None, scores='raw', when='previous', k=5, scope='layer', epsilon=None)
    """
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"a policy is a text such as top:5@layer, got {text!r}; allowed are {ALLOWED}")
    if text.strip() == "none":
        return None
    policy: Policy | None = None
    for part in _split(text, "&"):
        rule = _rule(part.strip())
        policy = rule if policy is None else policy & rule
    return policy


def _rule(text: str) -> Rule:
    if text.startswith("random(") and ")" in text:
        inside, _, tail = text[len("random(") :].rpartition(")")
        like = parse_policy(inside)
        if not isinstance(like, Rule):
            raise InputError(f"random(…) is the control of one policy, got {inside!r}")
        if tail and not tail.lstrip().startswith(","):
            raise InputError(f"policy {text!r}: behind random(…) come ,match=mass or ,seed=1, got {tail!r}")
        return _made(MaskRandom, {"like": like, **_options(tail, text)}, text)
    match = re.fullmatch(r"(?P<word>\w+):(?P<argument>[^@,]*)(?:@(?P<scope>\w+))?(?P<tail>(?:,.*)?)", text)
    if match is None:
        near = nearest(re.split(r"[\W\d]", text, maxsplit=1)[0], RULES)
        raise InputError(f"policy {text!r} does not parse; {near} Allowed are {ALLOWED}")
    word = match["word"]
    if word not in RULES or word == "random":
        raise InputError(
            f"policy {text!r}: {word!r} is not known; {nearest(word, RULES)} Allowed are {ALLOWED}"
        )
    rule = RULES[word]
    names = [field.name for field in dataclasses.fields(rule) if not field.kw_only]
    options = {names[0]: _argument(rule, match["argument"], text), **_options(match["tail"], text)}
    if match["scope"] is not None:
        if "scope" not in names:
            raise InputError(f"policy {text!r}: {word} has no scope; leave out @{match['scope']}")
        options["scope"] = match["scope"]
    return _made(rule, options, text)


def _made(rule: type[Rule], options: dict[str, Any], text: str) -> Rule:
    known = {field.name for field in dataclasses.fields(rule)}
    for name in options:
        if name not in known:
            raise InputError(f"policy {text!r} has no option {name!r}; {nearest(name, known)}")
    return rule(**options)


def _argument(rule: type[Rule], text: str, whole: str) -> Any:
    if rule is MaskKeys:
        chosen: dict[int, list[int]] = {}
        for part in text.split("/") if text else ():
            layer, equals, columns = part.partition("=")
            if not equals:
                raise InputError(
                    f"policy {whole!r}: columns are written as layer=column+column, got {part!r}"
                )
            chosen[_whole(layer, whole)] = [_whole(column, whole) for column in columns.split("+")]
        return chosen
    return _number(text, whole)


def _options(tail: str, whole: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in tail.split(",")[1:] if tail else ():
        name, equals, value = part.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not value:
            raise InputError(f"policy {whole!r}: options are written as name=value, got {part!r}")
        if name in ("layers", "steps"):
            found[name] = _indices(value, whole)
        elif name in ("first", "future", "seed", "epsilon"):
            found[name] = _number(value, whole)
        else:
            found[name] = value
    return found


def _indices(text: str, whole: str) -> tuple[int, ...]:
    """`0+3+8-11`: single indices and ranges, both ends included."""
    found: list[int] = []
    for part in text.split("+"):
        low, dash, high = part.partition("-")
        if dash and _whole(high, whole) - _whole(low, whole) > LONGEST_RANGE:
            raise InputError(f"policy {whole!r}: the range {part!r} is longer than {LONGEST_RANGE} indices")
        found += range(_whole(low, whole), _whole(high, whole) + 1) if dash else [_whole(low, whole)]
    if not found:
        raise InputError(f"policy {whole!r}: {text!r} names no index")
    return tuple(found)


def _whole(text: str, whole: str) -> int:
    if not text.strip().isdecimal():
        raise InputError(f"policy {whole!r}: expected a whole number, got {text!r}")
    return int(text)


def _number(text: str, whole: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError as error:
            raise InputError(
                f"policy {whole!r}: expected a number, got {text!r}; allowed are {ALLOWED}"
            ) from error


def _split(text: str, at: str) -> list[str]:
    """Splits outside of brackets."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == at and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]
