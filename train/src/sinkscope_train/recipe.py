"""What is trained, as data: the recipes of the small models (data/recipes.toml), and the adaptation of a causal checkpoint.

All four shipped recipes share depth, width, RoPE, tokenizer, documents, their order and the number of tokens, so that what
differs between them is the recipe: the direction of attention, the objective, and what they start from. Nothing here imports
torch, so that the command line's help answers at once.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sinkscope import InputError
from sinkscope.base import checks

if TYPE_CHECKING:
    from sinkscope_train.variant import SinkToken, Softmax, Variant

DATA = Path(__file__).parent / "data"
TABLES = tomllib.loads((DATA / "recipes.toml").read_text(encoding="utf-8"))
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


SIZES = {name: Size(**sizes) for name, sizes in TABLES["sizes"].items()}
MIXES: dict[str, dict[str, float]] = TABLES["mixes"]
"""Mix → shares of its sources."""
MIX = "surprising"
"""The mix of all shipped recipes."""
INTERVENTIONS = ("extra_sink", "softmax", "gate", "qk_norm", "plain_first", "window", "future")
"""Changes of attention, which a run names only where they are made; see `sinkscope_train.variant`."""


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
        batch: documents per step (over all GPUs), of LENGTH tokens each.
        extra_sink, softmax, gate, qk_norm, plain_first, window, future: changes of attention; see `sinkscope_train.variant`.
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
    extra_sink: SinkToken = "none"
    softmax: Softmax = "plain"
    gate: bool = False
    qk_norm: bool = False
    plain_first: bool = False
    window: int | None = None
    future: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("layout", self.layout, LAYOUTS)
        only = OBJECTIVES.get(self.layout)
        if only not in (None, self.objective) or (only is None and self.objective in OBJECTIVES.values()):
            raise InputError(f"layout {self.layout} and objective {self.objective!r} cannot be combined")
        checks.whole("batch", self.batch, 1)
        checks.one_of("mix", self.mix, tuple(MIXES))
        checks.one_of("targets", self.targets, ("answers", "all"))
        changes = [name for name in INTERVENTIONS if getattr(self, name) != _default(name)]
        if changes and self.variant and self.layout in ("mmada", "sdar"):  # a variant refuses unknown words
            raise InputError(
                f"{', '.join(changes)}: the layouts of MMaDA and SDAR are trained with the attention of their families only"
            )
        if self.future is not None and self.causal:
            raise InputError("future was given for a causal model, which sees nothing ahead; leave it out")
        if self.packed < 1 or self.batch % self.packed or (self.packed > 1 and self.pictures):
            raise InputError(
                f"packed is {self.packed}; it must divide the batch of {self.batch}, and rows with pictures are not packed"
            )
        if self.packed * LENGTH > self.size.context:
            raise InputError(
                f"{self.packed} documents of {LENGTH} tokens do not fit into rows of {self.size.context}; pack fewer"
            )
        if not 0.0 <= self.pictures < 1.0 or (self.pictures and self.layout != "mmada"):
            raise InputError(f"pictures is {self.pictures}; only the mmada layout has them, at a share below 1")

    @property
    def variant(self) -> Variant:
        """The changes of attention."""
        from sinkscope_train.variant import Variant

        return Variant(**{name: getattr(self, name) for name in INTERVENTIONS})

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON data; interventions that are not made are left out, as in runs of before there were any."""
        data = super().as_dict()
        return {n: value for n, value in data.items() if n not in INTERVENTIONS or value != _default(n)}

    @property
    def causal(self) -> bool:
        """True when a query sees only keys up to itself."""
        return self.objective == "next"

    @property
    def tokens(self) -> int:
        """Tokens that training reads, padding included: the same for every recipe."""
        return self.steps * self.batch * LENGTH


def _default(name: str) -> Any:
    return Recipe.__dataclass_fields__[name].default


RECIPES, CONTROLS = (
    {name: Recipe(name, **settings) for name, settings in TABLES[kind].items()} for kind in ("recipes", "controls")
)
"""Those that are shipped, and those that are trained to compare with."""


def recipe(name: str, **changes: Any) -> Recipe:
    """The recipe called `name`, with some of its settings changed.

    A batch that the recipe's own packing does not divide packs fewer, unless `packed` is given too.

    >>> recipe("scratch", seed=1).seed
    1
    """
    chosen = (RECIPES | CONTROLS)[checks.one_of("recipe", name, RECIPES | CONTROLS)]
    if isinstance(changes.get("size"), str):
        changes["size"] = SIZES[checks.one_of("size", changes["size"], SIZES)]
    if "batch" in changes and "packed" not in changes:
        # A small batch, as for a smoke test, may not hold whole rows of the recipe's; those that it can are as long as may be.
        changes["packed"] = math.gcd(chosen.packed, changes["batch"])
    return dataclasses.replace(chosen, **changes)


@dataclass(frozen=True)
class Adaptation(Schedule):
    """One way to adapt a causal checkpoint; biases stay as they are.

    Attributes:
        objective: "diffusion", or "causal": go on as it was, for a twin to compare with.
        shift: diffusion: position j − 1 predicts j, and the checkpoint has Dream's layout; otherwise LLaDA's.
        lora: rank of the adapters; 0: all weights are trained. lora_scale: what B · A is multiplied with.
        mask_token: a token that the text does not hold; None: the tokenizer's own, else one is added.
        separator: the token before every document and row; None: `<|endoftext|>`, else the tokenizer's bos, else its eos.
        length: tokens of a row. batch: rows per step (over all GPUs).
    """

    source: str
    _: KW_ONLY
    objective: Literal["diffusion", "causal"] = "diffusion"
    shift: bool = True
    lora: int = 0
    lora_scale: float = 2.0
    mask_token: str | None = None
    separator: str | None = None
    length: int = 512
    batch: int = 128
    steps: int = 1200
    learning_rate: float = 4e-4
    warmup: int = 50
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("objective", self.objective, ("diffusion", "causal"))
        for name, least in (("lora", 0), ("batch", 1), ("length", 8)):
            checks.whole(name, getattr(self, name), least)

    @property
    def tokens(self) -> int:
        """Tokens that training reads."""
        return self.steps * self.batch * self.length

    @property
    def layout(self) -> str:
        """The layout of the checkpoint: dream, llada, or as the source has it."""
        return "source" if self.objective == "causal" else "dream" if self.shift else "llada"


def adaptation(source: str, **changes: Any) -> Adaptation:
    """An adaptation with some settings changed; the learning rate follows what is trained, unless it is given.

    >>> adaptation("smollm2", lora=16).learning_rate
    0.002
    """
    if "learning_rate" not in changes:
        rate = 2e-3 if changes.get("lora") else 2e-4 if changes.get("objective") == "causal" else 4e-4
        changes["learning_rate"] = rate
    return Adaptation("adapt", source, **changes)
