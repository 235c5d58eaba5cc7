r"""Finding the number in an answer, and deciding whether it is the right one: each evaluation's own rules, kept as they are.

lm-eval takes a match of a regular expression, then compares text after removing commas, dollar signs, everything up to `#### `
and a final full stop. OpenCompass takes the last number before a new `Question:` and compares values. They disagree on many
outputs: "1,000" is 1000 for lm-eval and 0 for OpenCompass; "4.0" equals 4 for OpenCompass only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sinkscope.base.checks import one_of


@dataclass(frozen=True)
class Extractor:
    """An evaluation's way to read a number out of an output.

    `select`: which match, 0 the first and −1 the last; of a match with several groups, the first that is not empty.
    """

    pattern: str
    select: int
    fallback: str  # what is returned when nothing matches
    form: str  # how an answer says its number so that it is found
    before: str = ""  # only the text before the first of these
    by_value: bool = False  # compare numbers instead of text


_ANY_NUMBER = r"(-?[$0-9.,]{2,})|(-?[0-9]+)"

EXTRACTORS = {
    # lm-eval: gsm8k, and (flexible) every GSM8K variant
    "gsm8k-strict": Extractor(r"#### (\-?[0-9\.\,]+)", 0, "[invalid]", "#### {}"),
    "gsm8k-flexible": Extractor(_ANY_NUMBER, -1, "[invalid]", "{}"),
    # lm-eval: gsm8k_cot (the last dot of the pattern is any character, as published), gsm8k_cot_llama
    "gsm8k-cot-strict": Extractor(r"The answer is (\-?[0-9\.\,]+).", 0, "[invalid]", "The answer is {}."),
    "gsm8k-llama-strict": Extractor(rf"The final answer is ({_ANY_NUMBER})", -1, "[invalid]", "The final answer is {}"),
    # OpenCompass: gsm8k_postprocess and Gsm8kEvaluator
    "gsm8k-opencompass": Extractor(
        r"\-?\d+\.\d+|\-?\d+", -1, "NULL", "The answer is {}", before="Question:", by_value=True
    ),
}


def extract(name: str, output: str) -> str:
    """The answer that extractor `name` finds in an output, or its fallback text."""
    rule = EXTRACTORS[one_of("extraction", name, EXTRACTORS)]
    if rule.before:
        output = output.split(rule.before)[0]
    matches = re.findall(rule.pattern, output)
    if not matches:
        return rule.fallback
    match: str | tuple[str, ...] = matches[rule.select]
    if isinstance(match, tuple):
        match = next((group for group in match if group), rule.fallback)
    return match.strip()


def is_right(name: str, answer: str, gold: str) -> bool:
    """True when an answer that `extract` gave is the gold one; `gold`: a worked answer that ends in `#### N`."""
    if EXTRACTORS[one_of("extraction", name, EXTRACTORS)].by_value:
        expected = gold.split("#### ")[1].replace(",", "")
        try:
            return answer == expected or abs(float(answer) - int(expected)) < 1e-6
        except ValueError:
            return False
    return _normal(answer) == _normal(gold)


def _normal(text: str) -> str:
    """The text without what lm-eval's GSM8K tasks ignore, in their order.

    Its pattern `(?s).*#### ` takes a time that grows with the square of the text; this is the same in linear time.
    """
    text = text.replace(",", "").replace("$", "").rpartition("#### ")[2]
    return re.sub(r"\.$", "", text).lower()
