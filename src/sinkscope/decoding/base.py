"""The base of every decoding: what it is, frozen options with a text form. What it does is its `Loop` (`step.py`).

Option names are those of the official loops. What depends on a model (special ids, the place of a picture) is None in the
options and looked up by the loop. A new decoding is one file and one `DECODINGS.add` (or `ss.register`, or an entry point).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from sinkscope.base.checks import at_least, declared, one_of, share, whole
from sinkscope.base.errors import InputError, nearest
from sinkscope.base.registry import Registry
from sinkscope.base.textform import Notation, write

if TYPE_CHECKING:
    from sinkscope.decoding.engine import Engine
    from sinkscope.decoding.step import Loop
    from sinkscope.models.model import Model


Ends = str | int | Sequence[int] | None
"""Ids that end an answer: "model": the model's own; None: none."""


def checked_ends(name: str, ends: object) -> str | tuple[int, ...] | None:
    """The option as a tuple, "model" or None."""
    if ends is None or ends == "model":
        return "model" if ends else None
    given = [ends] if isinstance(ends, int) else ends
    if not isinstance(given, (list, tuple)) or not given:
        raise InputError(f"{name} should be 'model', None, or token ids, got {ends!r}")
    return tuple(whole(name, number, 0) for number in given)


def end_ids(ends: Ends, model: Model | None) -> tuple[int, ...]:
    """The ids that a checked option names; those of the model only where it is given."""
    if ends == "model":
        return () if model is None else model.ids.eos
    return ends if isinstance(ends, tuple) else ()


def _each(check: Callable[[str, Any], object], names: str) -> dict[str, Callable[[str, Any], object]]:
    return dict.fromkeys(names.split(), check)


CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    **_each(partial(whole, least=1), "length steps block small_block steps_per_block timesteps canvas masks scored"),
    **_each(partial(whole, least=1), "minimal_topk num_to_transfer"),
    **_each(partial(whole, least=0), "max_post_steps stability_threshold top_k offset stop_at eot_id"),
    **_each(partial(whole, least=0), "max_thinking_tokens end_think_id"),
    **_each(partial(at_least, least=0.0), "temperature cfg guidance threshold editing_threshold confidence_threshold"),
    **_each(partial(at_least, least=0.0), "t_min t_max entropy_bound alg_temp eb_gamma"),
    "top_p": partial(share, hint="; 1.0 keeps all tokens, leave it out for what is usual"),
    "eos": checked_ends,
}
"""Option → what checks it where it is set, and gives it in the form that is kept. The same word means the same in all loops."""

IDS = ("eos", "stop", "stop_at", "eot_id", "end_think_id", "pad", "start")
"""Options that are token ids."""


def later_option(default: Any = None) -> Any:
    """A field that came after records were first written: its default is left out of JSON, so that those still match."""
    return dataclasses.field(default=default, kw_only=True, metadata={"later": True})


@dataclass(frozen=True)
class Decoding:
    """Base of all decodings. `str(decoding)` is its text form, which `parse_decoding` reads.

    Attributes:
        kind: the name under which it is registered and written to JSON.
        families: names of the model families that it is for.
        causal: new tokens are appended one by one; else masks in a sequence of fixed length are replaced.
        replayable: whether `ss.replay` can compare candidates along it.
        cached: whether the official loop keeps finished blocks in a KV cache; None: it has no blocks to keep.
        generates: it writes tokens; readings do not.
        reusable: whether its loop says which columns it wants, so that steps can be approximate.
        mask_tokens: its states hold mask tokens, so that the model must have one.
        brief: options for answers of at most 64 tokens, as those of the generated tasks are; empty: its defaults.
        whole_blocks: its length must be whole blocks.
        written_first: options that its text and JSON begin with, wherever they stand among its arguments.
        checks: of its options, beside what their declarations say.

    >>> decoding = ss.LladaDecoding(length=16, block=8)
    >>> decoding.kind, decoding.new_tokens, decoding.steps
    ('llada', 16, 16)
    """

    kind: ClassVar[str] = ""
    families: ClassVar[tuple[str, ...]] = ()
    causal: ClassVar[bool] = False
    replayable: ClassVar[bool] = True
    cached: ClassVar[bool | None] = None
    generates: ClassVar[bool] = True
    reusable: ClassVar[bool] = False
    mask_tokens: ClassVar[bool] = True
    brief: ClassVar[Mapping[str, Any]] = {}
    whole_blocks: ClassVar[bool] = False
    written_first: ClassVar[tuple[str, ...]] = ()
    checks: ClassVar[Mapping[str, Callable[[str, Any], object]]] = CHECKS

    def __post_init__(self) -> None:
        declared(self)
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if value is not None or "None" not in str(item.type):
                checked = self.checks[item.name](item.name, value) if item.name in self.checks else value
                object.__setattr__(self, item.name, tuple(checked) if isinstance(checked, list) else checked)

    # ---- what it knows about itself

    @classmethod
    def fits(cls, family: str) -> bool:
        """Whether it is for models of a family; those for causal models are for every family that is causal."""
        from sinkscope.models.family import FAMILIES

        return family in cls.families or ("causal" in cls.families and family in FAMILIES and FAMILIES[family].causal)

    @classmethod
    def fitting_block(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """A block for a length that the usual one does not fill: of the sizes that do, the nearest as a ratio."""
        length, usual = options.get("length"), getattr(cls, "block", 0)
        if not cls.whole_blocks or not isinstance(length, int) or length < 1 or not length % usual:
            return {}
        sizes = (size for size in range(1, length + 1) if not length % size)
        return {"block": min(sizes, key=lambda size: abs(math.log(size / usual)))}

    @classmethod
    def stored_options(cls, model: Model) -> dict[str, Any]:
        """Options that the checkpoint's own files name, for those that a caller leaves out."""
        return {}

    @property
    def new_tokens(self) -> int:
        """Columns that it adds to the prompt."""
        return int(getattr(self, "length", 0))

    def columns(self, prompt: int) -> int:
        """Columns of the state at most, for prompts of up to so many tokens."""
        return prompt + self.new_tokens

    def suited(self, model: Model) -> Decoding:
        """The same with what only the model knows filled in."""
        return self

    def prompted(self, model: Model, prompts: Any) -> Any:
        """The prompts of a user as the loop takes them, before they are checked."""
        return prompts

    def laid_out(self, model: Model, ids: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor | None] | None:
        """Prompts Long [B, P] and padding Bool [B, P], on the left, as the loop wants them; None: as the family has them."""
        return None

    def padded_length(self, length: int) -> int:
        """Columns that a prompt of so many tokens takes where its row runs alone."""
        return length

    def attention_kind(self, model: Model) -> str:
        """See Model.attention_kind; a loop that stores finished blocks reads its prompt apart."""
        return "block" if self.cached else model.attention_kind

    def alone(self, rows: int, per_row: bool) -> bool:
        """Whether each of so many rows runs as in a batch of one; per_row: rows have random streams of their own."""
        return per_row or rows == 1

    def unseen(self, shortest: int) -> int:
        """Columns at the beginning of every prompt that the official loop never shows to the model."""
        return 0

    @property
    def own_pace(self) -> bool:
        """Whether rows with streams of their own reach blocks in different steps; approximate steps of theirs run one by one."""
        return False

    @property
    def edits(self) -> bool:
        """Whether a token that was written or given may change again; traces then count it (`edited`)."""
        return False

    @property
    def max_steps(self) -> int:
        """Steps at most."""
        return int(getattr(self, "steps", self.new_tokens))

    @property
    def guided(self) -> bool:
        """Whether every step also runs an unconditional twin."""
        return float(getattr(self, "cfg", 0.0)) > 0

    @property
    def reads(self) -> int:
        """Forwards of a row between its steps."""
        return 0

    @property
    def passes(self) -> int:
        """Forward passes of one row at most; a guided one counts two."""
        return (self.max_steps + self.reads) * (2 if self.guided else 1)

    @property
    def draws(self) -> bool:
        """Whether it uses random numbers, so that another seed can give another answer: above temperature 0, if nothing else."""
        return getattr(self, "temperature", 0.0) > 0 or getattr(self, "remasking", "") == "random"

    def as_dict(self) -> dict[str, Any]:
        """The options by name, the kind of decoding first; those that came later (`later_option`) where set."""
        later = {item.name: item.default for item in dataclasses.fields(self) if item.metadata.get("later")}
        first = {name: getattr(self, name) for name in ("kind", *self.written_first)}
        options = {**first, **dataclasses.asdict(self)}
        return {name: value for name, value in options.items() if name not in later or value != later[name]}

    def to_json(self) -> str:
        """One line of JSON; `decoding_from_json` reads it back."""
        return json.dumps(self.as_dict())

    def __str__(self) -> str:
        return write(self, self.kind, argument=False)

    def check_ids(self, vocabulary: int) -> None:
        """Raise InputError when an id among the options is not in the vocabulary."""
        for name in IDS:
            given = getattr(self, name, None)
            for number in given if isinstance(given, (tuple, list)) else (given,):
                if isinstance(number, int) and number >= vocabulary:
                    raise InputError(f"{name} {number} is not in the vocabulary of {vocabulary} ids")

    # ---- what becomes of it

    @property
    def loop(self) -> type[Loop[Any]]:
        """What it does."""
        raise NotImplementedError

    def on(self, engine: Engine) -> Loop[Any]:
        """Its loop, with a model."""
        return self.loop(self, engine)

    def answer_columns(self, model: Model, ids: Tensor) -> tuple[int, int | None]:
        """The first column of the answer and the one behind its last (None: the end of the sequence)."""
        return ids.shape[1], None

    def output(self, model: Model, states: Tensor, starts: list[int], alone: bool) -> list[Tensor]:
        """What the official function returns for each row: Long [n].

        Args:
            states: Long [steps + 1, B, S], −1 where a row has no column. starts: the first column behind each prompt.
            alone: each row ran as in a batch of one.
        """
        return [row[row >= 0] for row in states[-1]]

    def answer(self, model: Model, sequence: Tensor, start: int) -> Tensor:
        """The tokens of the answer in the last state Long [S] of a row whose prompt ends before column `start`: Long [n]."""
        answer = sequence[start:]
        return until(answer[answer >= 0], self.answer_ends(model))

    def answer_ends(self, model: Model) -> tuple[int, ...]:
        """The ids behind which an answer is cut."""
        return ()

    def filler(self, model: Model) -> int | None:
        """The token that fills a row once it has ended; None: rows keep what they have."""
        return None

    def alive(self, model: Model, x: Tensor, prompt: int, step: int, per_row: bool) -> Tensor:
        """Bool [B]: rows that had not ended before this step."""
        return torch.ones(len(x), dtype=torch.bool, device=x.device)

    def reachable(self, x: Tensor, prompt: int, step: int) -> Tensor:
        """Bool [1, S]: columns that the loop may decide in this step."""
        return torch.ones(1, x.shape[1], dtype=torch.bool, device=x.device)


@dataclass(frozen=True)
class BlockwiseDecoding(Decoding):
    """Options of loops that go from block to block, and may keep the finished ones in a KV cache.

    Attributes:
        length: new tokens. block: tokens of a block.
        rounded: blocks are counted from the first column, and the canvas of prompt and answer is rounded up to whole ones.
    """

    length: int = 256
    block: int = 32

    replayable: ClassVar[bool] = False
    cached: ClassVar[bool | None] = True
    rounded: ClassVar[bool] = False

    @property
    def blocks(self) -> int:
        """Blocks with an answer: one more than it fills where the prompt need not end with a block."""
        return -(-self.length // self.block) + self.rounded

    def columns(self, prompt: int) -> int:
        columns = prompt + self.new_tokens
        return -(-columns // self.block) * self.block if self.rounded else columns


def _name_of(thing: object) -> str:
    if not (isinstance(thing, type) and issubclass(thing, Decoding) and dataclasses.is_dataclass(thing)):
        raise InputError(f"a decoding is registered as a frozen dataclass that derives from Decoding, got {thing!r}")
    if not thing.kind or not thing.families:
        raise InputError(f"{thing.__name__} needs a kind, its name, and the families of models that it is for")
    return thing.kind


DECODINGS: Registry[type[Decoding]] = Registry("decoding", "sinkscope.decodings", _name_of, __package__)

NOTATION = Notation("decoding", DECODINGS, lambda: f"KIND,name=value; kinds: {', '.join(DECODINGS)}")


def default_decoding(family: str) -> Decoding:
    """The decoding a family gets when none is given: the first registered for it that generates."""
    return decoding_from_options(family, {})


def kinds(family: str) -> list[type[Decoding]]:
    """The decodings of a family in the order of their registration, those that name it first, readings last."""
    fitting = (kind for kind in DECODINGS.values() if kind.fits(family))
    return sorted(fitting, key=lambda kind: (not kind.generates, family not in kind.families))


def option_fields(family: str) -> dict[str, dataclasses.Field[Any]]:
    """The options of all decodings of a family; where two have one, that of the first."""
    return {item.name: item for kind in reversed(kinds(family)) for item in dataclasses.fields(kind)}


def decoding_from_options(
    family: str, options: Mapping[str, Any], where: str = "", model: Model | None = None
) -> Decoding:
    """The decoding of a family with these options: the first registered one that has them all, readings last.

    Where a length is given and no block, blocks fill it: 40 tokens are one block of 40, 100 are four of 25.

    Args:
        where: what the options belong to, for messages.
        model: whose checkpoint may name options that are left out.
    """
    prefix = f"{where}: " if where else ""
    fitting = kinds(family)
    if not any(kind.generates for kind in fitting):
        families = {name for kind in DECODINGS.values() for name in kind.families}
        raise InputError(f"{prefix}there is no decoding for the family {family!r}; {nearest(family, families)}")
    for kind in fitting:
        if {item.name for item in dataclasses.fields(kind)}.issuperset(options):
            stored = {} if model is None else kind.stored_options(model)
            return kind(**{**kind.fitting_block(options), **stored, **options})
    for option in options:
        one_of(f"{prefix}option of {family} models", option, option_fields(family))
    has = (f"{kind.__name__} has {', '.join(f.name for f in dataclasses.fields(kind))}" for kind in fitting)
    raise InputError(f"{prefix}no decoding of {family} models has all of {', '.join(options)}; {'; '.join(has)}")


def decoding_from_json(text: str) -> Decoding:
    """Read what `to_json` wrote."""
    try:
        options = json.loads(text)
        kind = options.pop("kind")
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise InputError(f"a decoding in JSON is an object with a 'kind', got {text[:80]!r}") from error
    made = DECODINGS[one_of("decoding kind", kind, DECODINGS)]
    for name in options:
        one_of(f"option of a {kind} decoding", name, (item.name for item in dataclasses.fields(made)))
    decoding: Decoding = made(**options)
    return decoding


def parse_decoding(text: str) -> Decoding:
    """Read the text form of a decoding.

    >>> str(parse_decoding("llada,length=64,block=16"))
    'llada,length=64,steps=64,block=16'
    """
    decoding: Decoding = NOTATION.read(text)
    return decoding


def until(answer: Tensor, ends: tuple[int, ...]) -> Tensor:
    """Tokens Long [n] up to and including the first that ends an answer."""
    found = torch.isin(answer, torch.tensor(ends, dtype=torch.long, device=answer.device)).nonzero()
    return answer[: int(found[0]) + 1] if len(found) else answer
