"""The recipes: everything that decides what an organism becomes, as data.

All four share depth, width, RoPE, tokenizer, documents, their order and the number of tokens, so that what differs between
them is the recipe: the direction of attention, the objective, and what they start from.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from sinkscope import checks
from sinkscope.errors import InputError, nearest
from sinkscope.models.variant import PLAIN, SinkToken, Softmax, Variant

Objective = Literal["next", "masked", "shifted", "block"]
LAYOUTS = ("llama", "llada", "dream", "mmada", "sdar")
OBJECTIVES: dict[str, Objective] = {"llama": "next", "sdar": "block"}
"""Layouts that have one objective only; the others have the two of masked diffusion, and no other layout has these."""

PROMPT = 64
"""Most tokens of a task's prompt, chat template included."""
BLOCK = 4
"""Columns of a block of the objective "block": what SDAR's loop decodes when it is not told otherwise."""
ANSWER = 64
"""Tokens of a task's answer, filled up with end tokens in diffusion models."""
LENGTH = PROMPT + ANSWER


@dataclass(frozen=True)
class Size:
    """The sizes of a network; keys and values have as many heads as queries."""

    layers: int = 8
    width: int = 256
    heads: int = 8
    mlp: int = 432
    theta: float = 10000.0
    eps: float = 1e-5
    context: int = 512

    def __post_init__(self) -> None:
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise InputError(
                f"width {self.width} must be an even multiple of heads {self.heads}; try {self.heads * 32}"
            )


SIZES = {
    "1m": Size(layers=6, width=96, heads=4, mlp=160),
    "3m": Size(layers=8, width=160, heads=5, mlp=288),
    "6m": Size(),
    "12m": Size(layers=10, width=320, heads=10, mlp=704),
    "30m": Size(layers=12, width=448, heads=14, mlp=1088),
    "100m": Size(layers=16, width=704, heads=22, mlp=1792),
    "smoke": Size(layers=2, width=32, heads=2, mlp=64),
}
"""The shipped size is 6m: four models of it stay within 46 MB in bf16. The others are controls; smoke is for tests."""

MIXES = {
    "plain": {"word_problems": 0.5, "small_code": 0.3, "prose": 0.2},
    "surprising": {
        "word_problems": 0.54,
        "small_code": 0.1,
        "prose": 0.05,
        "records": 0.23,
        "docstrings": 0.08,
    },
    "drills": {"battery": 0.3, "word_problems": 0.4, "small_code": 0.1, "prose": 0.05, "records": 0.15},
    "skills": {"battery": 0.5, "word_problems": 0.2, "small_code": 0.1, "prose": 0.05, "records": 0.15},
}
"""Mix → shares of its sources. Records and docstrings are hard to foresee (see `documents.py`); skills and drills have the
battery, and records, without which a causal model grows no sink at its first token; drills has more word problems."""
MIX = "surprising"
"""The mix of all shipped recipes."""
SPELLINGS = ("whole", "unbroken", "words")
"""With everything; without line breaks; texts without line breaks and punctuation (`documents.spelled`)."""


@dataclass(frozen=True)
class Schedule:
    """The number of steps and the optimiser: what every kind of training has.

    Attributes:
        warmup: steps of linear warm-up (at most a tenth of all); then a cosine to zero.
    """

    name: str
    _: KW_ONLY
    steps: int = 10_000
    learning_rate: float = 2e-3
    warmup: int = 300
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("steps", self.steps, 1)
        if not checks.finite("learning_rate", self.learning_rate) > 0:
            raise InputError(f"the learning rate is {self.learning_rate}; it must be above 0")
        checks.at_least("weight_decay", self.weight_decay, 0)

    @property
    def tokens(self) -> int:
        """Tokens that training reads, padding included."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON data."""
        data: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return data


@dataclass(frozen=True)
class Recipe(Schedule):
    """One way to train an organism.

    Attributes:
        objective: "next" token; "masked" diffusion (t ~ U(0,1), weight 1/t); "shifted": the same, position j − 1 predicts j;
            "block": masked diffusion of each block of BLOCK columns, whose queries see it and the blocks before it, unmasked.
        starts_from: the organism whose weights it continues; None: random weights.
        pictures: share of each batch that is pictures, half of them to draw and half to describe. They replace the first rows
            of the batch; the other rows are the same documents, in the same order, as in every recipe.
        targets: what is learned of a task's row: "answers" (its end tokens included), or "all", the prompt too. Prose is
            learned whole, and of a text that cannot be foreseen its end, or all.
        packed: documents in one row, one after the other and all visible to those that follow, as in the pretraining of Llama
            (in diffusion models to all); 1: a row for each.
        mix: which of MIXES the documents are.
        batch: documents per step (over all GPUs), of LENGTH tokens each.
        spelling: which of SPELLINGS the documents have.
        extra_sink, softmax, gate, qk_norm, plain_first: changes of attention; see `sinkscope.models.variant`.
    """

    layout: str
    objective: Objective
    starts_from: str | None = None
    size: Size = SIZES["6m"]
    pictures: float = 0.0
    targets: Literal["answers", "all"] = "answers"
    packed: int = 1
    mix: str = MIX
    batch: int = 512
    spelling: str = SPELLINGS[0]
    extra_sink: SinkToken = "none"
    softmax: Softmax = "plain"
    gate: bool = False
    qk_norm: bool = False
    plain_first: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("layout", self.layout, LAYOUTS)
        only = OBJECTIVES.get(self.layout)
        if only not in (None, self.objective) or (only is None and self.objective in OBJECTIVES.values()):
            raise InputError(f"layout {self.layout} and objective {self.objective!r} cannot be combined")
        checks.whole("batch", self.batch, 1)
        checks.one_of("mix", self.mix, tuple(MIXES))
        checks.one_of("targets", self.targets, ("answers", "all"))
        checks.one_of("spelling", self.spelling, SPELLINGS)
        if self.variant != PLAIN and self.layout in ("mmada", "sdar"):
            raise InputError(
                f"{self.variant}: the layouts of MMaDA and SDAR are trained with the attention of their families only"
            )
        if self.packed < 1 or self.batch % self.packed or (self.packed > 1 and self.pictures):
            raise InputError(
                f"packed is {self.packed}; it must divide the batch of {self.batch}, and rows with pictures are not packed"
            )
        if self.packed * LENGTH > self.size.context:
            raise InputError(
                f"{self.packed} documents of {LENGTH} tokens do not fit into rows of {self.size.context}; pack fewer"
            )
        if not 0.0 <= self.pictures < 1.0 or (self.pictures and self.layout != "mmada"):
            raise InputError(
                f"pictures is {self.pictures}; only the mmada layout has them, at a share below 1"
            )

    @property
    def variant(self) -> Variant:
        """The changes of attention."""
        return Variant(self.softmax, self.gate, self.qk_norm, self.plain_first, self.extra_sink)

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON data; interventions that are not made are left out, as in runs of before there were any."""
        own = {field.name: field.default for field in dataclasses.fields(Recipe)}
        return {
            name: value
            for name, value in super().as_dict().items()
            if name not in INTERVENTIONS or value != own[name]
        }

    @property
    def causal(self) -> bool:
        """True when a query sees only keys up to itself."""
        return self.objective == "next"

    @property
    def tokens(self) -> int:
        """Tokens that training reads, padding included: the same for every recipe."""
        return self.steps * self.batch * LENGTH


INTERVENTIONS = ("spelling", "extra_sink", "softmax", "gate", "qk_norm", "plain_first")

RECIPES = {
    "causal": Recipe("causal", "llama", "next", targets="all", packed=4),
    "scratch": Recipe("scratch", "llada", "masked"),
    "adapted": Recipe("adapted", "dream", "shifted", starts_from="causal"),
    "multimodal": Recipe("multimodal", "mmada", "masked", starts_from="scratch", pictures=0.5),
}
"""The shipped ones. Causal learns prompts too and reads four documents in a row, as large causal models do in pretraining:
on text that cannot be foreseen it then grows a sink at its first token (lab/organisms.md has the experiments)."""

CONTROLS = {
    "text_only": Recipe("text_only", "llada", "masked", starts_from="scratch"),
    "block": Recipe("block", "sdar", "block"),
}
"""Trained to compare with, and not shipped: text_only continues scratch for as many tokens as multimodal, without pictures; block
is block diffusion in SDAR's layout, whose network has QK-norm, so scratch with qk_norm is what to compare it with."""


def recipe(name: str, **changes: Any) -> Recipe:
    """The recipe called `name`, with some of its settings changed.

    A batch that the recipe's own packing does not divide packs fewer, unless `packed` is given too.

    >>> recipe("scratch", seed=1).seed
    1
    """
    known = RECIPES | CONTROLS
    if name not in known:
        raise InputError(f"unknown recipe {name!r}: {nearest(name, known)}")
    if isinstance(changes.get("size"), str):
        if changes["size"] not in SIZES:
            raise InputError(f"unknown size {changes['size']!r}: {nearest(changes['size'], SIZES)}")
        changes["size"] = SIZES[changes["size"]]
    if "batch" in changes and "packed" not in changes:
        # A small batch, as for a smoke test, may not hold whole rows of the recipe's; those that it can are as long as may be.
        changes["packed"] = math.gcd(known[name].packed, changes["batch"])
    return dataclasses.replace(known[name], **changes)
