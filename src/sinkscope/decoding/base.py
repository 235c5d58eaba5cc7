"""The base of every decoding: frozen options of one official loop, with a JSON form, and the loop itself.

Option names are those of the official loops. What depends on a model (special ids, the place of a picture) is None in the
options and looked up by the loop. A new decoding is one file and one `DECODINGS.add` (or `ss.register`, or an entry point).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from sinkscope.errors import InputError, nearest
from sinkscope.registry import Registry

if TYPE_CHECKING:
    from sinkscope.decoding.engine import Engine
    from sinkscope.decoding.step import Step
    from sinkscope.decoding.streams import Streams
    from sinkscope.models.model import Model

Twin = tuple[Tensor, Tensor | None]
"""Ids Long [B, S] and padding Bool [B, S] of the unconditional twin of a prompt."""


@dataclass(frozen=True)
class Decoding:
    """Base of all decodings.

    Attributes:
        kind: the name under which it is registered and written to JSON.
        families: names of the model families that it is for.
        causal: new tokens are appended one by one; else masks in a sequence of fixed length are replaced.
        replayable: whether `ss.replay` can compare candidates along it.
        cached: whether the official loop keeps finished blocks in a KV cache; None: it has no blocks to keep.
        generates: it writes tokens; readings do not.
        reusable: whether its loop says which columns it wants, so that a reuse rule can act.

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

    # ---- what it knows about itself

    @classmethod
    def fits(cls, family: str) -> bool:
        """Whether it is for models of a family."""
        return family in cls.families

    @property
    def new_tokens(self) -> int:
        """Columns that it adds to the prompt."""
        return int(getattr(self, "length", 0))

    def columns(self, prompt: int) -> int:
        """Columns of the state at most, for prompts of up to so many tokens."""
        return prompt + self.new_tokens

    def alone(self, rows: int, per_row: bool) -> bool:
        """Whether each of so many rows runs as in a batch of one; per_row: rows have random streams of their own."""
        return per_row or rows == 1

    def unseen(self, shortest: int) -> int:
        """Columns at the beginning of every prompt that the official loop never shows to the model."""
        return 0

    @property
    def own_pace(self) -> bool:
        """Whether rows with streams of their own reach blocks in different steps; under reuse they then run one by one."""
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
    def passes(self) -> int:
        """Forward passes of one row at most; a guided step counts two."""
        return self.max_steps * (2 if self.guided else 1)

    @property
    def draws(self) -> bool:
        """Whether it uses random numbers, so that another seed can give another answer."""
        return False

    def as_dict(self) -> dict[str, Any]:
        """The options by name, the kind of decoding first; those that came later (`parallel.later_option`) where set."""
        later = {item.name for item in dataclasses.fields(self) if item.metadata.get("later")}
        options = dataclasses.asdict(self).items()
        return {
            "kind": self.kind,
            **{name: value for name, value in options if value is not None or name not in later},
        }

    def to_json(self) -> str:
        """One line of JSON; `decoding_from_json` reads it back."""
        return json.dumps(self.as_dict())

    def check_ids(self, vocabulary: int) -> None:
        """Raise InputError when an id among the options is not in the vocabulary."""

    # ---- the loop

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """The first state Long [B, S] of a group of rows, and the loop over it, which yields one Step per step.

        Args:
            ids: Long [B, P]: the prompts. streams: None when the decoding draws nothing.
            per_row: every row decides by itself, as in a batch of one; else as the official loop does for a batch.
            twin: the unconditional prompt, for decodings that need one.
        """
        raise NotImplementedError

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
        return answer[answer >= 0]

    def filler(self, model: Model) -> int | None:
        """The token that fills a row once it has ended; None: rows keep what they have."""
        return None

    # ---- for replaying recorded states

    def alive(self, model: Model, x: Tensor, prompt: int, step: int, per_row: bool) -> Tensor:
        """Bool [B]: rows that had not ended before this step."""
        return torch.ones(len(x), dtype=torch.bool, device=x.device)

    def reachable(self, x: Tensor, prompt: int, step: int) -> Tensor:
        """Bool [1, S]: columns that the loop may decide in this step."""
        return torch.ones(1, x.shape[1], dtype=torch.bool, device=x.device)

    def hidden(self, engine: Engine, x: Tensor) -> Tensor:
        """Last hidden states [B, S, width] of a whole state Long [B, S], with the attention that the loop gives it."""
        return engine.hidden(x)

    def predictions(self, engine: Engine, x: Tensor, given: Tensor, masked: Tensor) -> Tensor:
        """Float [N, V]: logits that predict the masked positions of a state, guidance applied.

        Args:
            x: Long [B, S]. given: Bool [B, S]: what was given before the first step. masked: Bool [B, S], N of them.
        """
        hidden = self.hidden(engine, x)
        return engine.model.head(shifted(hidden, masked) if engine.model.spec.shifted else hidden[masked])

    def best(self, model: Model, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The best candidate for each row of logits [N, V] and the loop's confidence in it, without draws: Long, Float64 [N]."""
        confidence, candidate = logits.double().softmax(-1).max(-1)
        return candidate, confidence


def shifted(hidden: Tensor, masked: Tensor) -> Tensor:
    """Hidden states [N, width] whose logits predict the masked positions: those of the position before.

    Position 0 has none before it and keeps its own, as in the official shift.
    """
    row, column = masked.nonzero(as_tuple=True)
    return hidden[row, (column - 1).clamp(min=0)]


def _name_of(thing: object) -> str:
    if not (isinstance(thing, type) and issubclass(thing, Decoding) and dataclasses.is_dataclass(thing)):
        raise InputError(
            f"a decoding is registered as a frozen dataclass that derives from Decoding, got {thing!r}"
        )
    if not thing.kind or not thing.families:
        raise InputError(
            f"{thing.__name__} needs a kind, its name, and the families of models that it is for"
        )
    return thing.kind


DECODINGS: Registry[type[Decoding]] = Registry("decoding", "sinkscope.decodings", _name_of)


def default_decoding(family: str) -> Decoding:
    """The decoding a family gets when none is given: the first registered for it that generates."""
    return decoding_from_options(family, {})


def option_names(family: str) -> set[str]:
    """The options of all decodings of a family."""
    return {
        item.name for kind in DECODINGS.values() if kind.fits(family) for item in dataclasses.fields(kind)
    }


def decoding_from_options(family: str, options: Mapping[str, Any], where: str = "") -> Decoding:
    """The decoding of a family with these options: the first registered one that has them all, readings last.

    Args:
        where: what the options belong to, for messages.
    """
    prefix = f"{where}: " if where else ""
    fitting = sorted(
        (kind for kind in DECODINGS.values() if kind.fits(family)), key=lambda kind: not kind.generates
    )
    if not any(kind.generates for kind in fitting):
        families = {name for kind in DECODINGS.values() for name in kind.families}
        raise InputError(
            f"{prefix}there is no decoding for the family {family!r}; {nearest(family, families)}"
        )
    for kind in fitting:
        if {item.name for item in dataclasses.fields(kind)}.issuperset(options):
            return kind(**{name: _frozen(value) for name, value in options.items()})
    known = option_names(family)
    for option in options:
        if option not in known:
            raise InputError(f"{prefix}{family} models have no option {option!r}; {nearest(option, known)}")
    raise InputError(
        f"{prefix}no decoding of {family} models has all of {', '.join(options)}; "
        + "; ".join(
            f"{kind.__name__} has {', '.join(item.name for item in dataclasses.fields(kind))}"
            for kind in fitting
        )
    )


def decoding_from_json(text: str) -> Decoding:
    """Read what `to_json` wrote."""
    try:
        options = json.loads(text)
        kind = options.pop("kind")
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise InputError(f"a decoding in JSON is an object with a 'kind', got {text[:80]!r}") from error
    if kind not in DECODINGS:
        raise InputError(f"decoding kind {kind!r} is not known; {nearest(str(kind), DECODINGS)}")
    known = {item.name for item in dataclasses.fields(DECODINGS[kind])}
    for name in options:
        if name not in known:
            raise InputError(f"{kind} decoding has no option {name!r}; {nearest(name, known)}")
    return DECODINGS[kind](**{name: _frozen(value) for name, value in options.items()})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def in_vocabulary(name: str, value: int | None, vocabulary: int) -> None:
    """The id must be in the vocabulary."""
    if value is not None and value >= vocabulary:
        raise InputError(f"{name} {value} is not in the vocabulary of {vocabulary} ids")
