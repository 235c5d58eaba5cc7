"""The numbers of "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731), tables 1 and 2, to show beside ours.

Accuracy or pass@1 with the paper's ±, which is lm-eval's standard error with digits cut off. The paper does not state which
scores rank the sinks, whether they come from masked or unmasked attention, its prompts, or its seeds: our policies are
readings of its text, and agreement or not says as much about these choices as about the models.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

_DATA = tomllib.loads((Path(__file__).parent / "paper.toml").read_text(encoding="utf-8"))
MODELS: dict[str, list[str]] = _DATA["models"]
"""The paper's name → hub ids."""

POLICIES = ("none", "top:1", "top:5", "top:10")
TABLE: dict[str, dict[str, list[tuple[float, float]]]] = _DATA["table"]
"""Table 1: task → the paper's name → value and ± for each of POLICIES."""


class Published(NamedTuple):
    """A number of the paper's table."""

    value: float
    plus_minus: float


def published_tokens(source: str) -> tuple[tuple[str, float], ...]:
    """Table 2 for a model, by its hub id; empty where the paper has none.

    >>> published_tokens("Dream-org/Dream-v0-Instruct-7B")[0]
    ('<|mask|>', 0.321)
    """
    return tuple((text, share) for text, share in _DATA["tokens"].get(_name(source), ()))


def published(source: str, task: str, policy: str) -> Published | None:
    """The paper's number for a model (by its hub id), task and policy; None where it has none.

    >>> published("GSAI-ML/LLaDA-8B-Instruct", "gsm8k", "top:10")
    Published(value=0.55, plus_minus=0.01)
    """
    rows = TABLE.get(task, {}).get(_name(source))
    return None if rows is None or policy not in POLICIES else Published(*rows[POLICIES.index(policy)])


def is_published(source: str) -> bool:
    """Whether a model, by its hub id, is one of the paper's."""
    return bool(_name(source))


def _name(source: str) -> str:
    return next((name for name, ids in MODELS.items() if source in ids), "")
