"""How to generate: frozen options of each official loop, validated, with a JSON form that every result carries.

Option names are those of the official loops. A decoding knows nothing of a model; what depends on one (special ids, image
offset) is None here and filled in by the loop.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sinkscope.errors import InputError, nearest

REMASKING = ("low_confidence", "random")
ALGORITHMS = ("origin", "maskgit_plus", "topk_margin", "entropy")


@dataclass(frozen=True)
class Decoding:
    """Base of all decodings: JSON round trip."""

    kind: ClassVar[str] = ""
    families: ClassVar[tuple[str, ...]] = ()

    def as_dict(self) -> dict[str, Any]:
        """The options by name, with the kind of decoding first."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """One line of JSON; `decoding_from_json` reads it back."""
        return json.dumps(self.as_dict())

    def check_ids(self, vocabulary: int) -> None:
        """Raises InputError when an id among the options is not in the vocabulary."""


@dataclass(frozen=True)
class LladaDecoding(Decoding):
    """LLaDA's generate.py: blocks from left to right, masks decided by confidence inside them.

    Attributes:
        length: new tokens; a multiple of block.
        steps: forward passes in all; a multiple of the number of blocks.
        block: tokens per block; block = length is pure diffusion.
        temperature: 0 takes the arg max; above, Gumbel noise in float64.
        cfg: classifier-free guidance; above 0 every step runs the model with and without the prompt.
        remasking: what confidence means: the probability of the candidate, or a random number.
        logits_eos_inf: the end token is never a candidate.
        confidence_eos_eot_inf: end tokens are candidates with no confidence (see facts in docs: at temperature 0 both
            end columns leave the softmax, above it only the end of turn).
        eot_id: the end-of-turn id; None: the tokenizer's, else the official one.
    """

    length: int = 128
    steps: int = 128
    block: int = 32
    temperature: float = 0.0
    cfg: float = 0.0
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    eot_id: int | None = None

    kind: ClassVar[str] = "llada"
    families: ClassVar[tuple[str, ...]] = ("llada",)

    def __post_init__(self) -> None:
        _blocks(self.length, self.steps, self.block)
        _at_least("temperature", self.temperature, 0.0)
        _at_least("cfg", self.cfg, 0.0)
        _one_of("remasking", self.remasking, REMASKING)
        if self.eot_id is not None:
            _whole("eot_id", self.eot_id, 0)

    def check_ids(self, vocabulary: int) -> None:
        """The end-of-turn id must be in the vocabulary."""
        _in_vocabulary("eot_id", self.eot_id, vocabulary)


@dataclass(frozen=True)
class DreamDecoding(Decoding):
    """Dream's diffusion_generate: no blocks, any masked position may be decided.

    Attributes:
        algorithm: origin (random positions), maskgit_plus (probability), topk_margin (p1 − p2), entropy (its negative).
        top_p, top_k: candidates outside are cut off, and confidence is that of the truncated distribution; None: off.
            (The official loop takes top_k = 50 when a caller leaves it out; here None means none.)
        alg_temp: above 0 positions are drawn by softmax(confidence / alg_temp) instead of taken from the top.
        eps: where the time schedule ends.
    """

    length: int = 128
    steps: int = 128
    algorithm: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] = "entropy"
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    alg_temp: float | None = 0.0
    eps: float = 1e-3

    kind: ClassVar[str] = "dream"
    families: ClassVar[tuple[str, ...]] = ("dream",)

    def __post_init__(self) -> None:
        _whole("length", self.length, 1)
        _whole("steps", self.steps, 1)
        _one_of("algorithm", self.algorithm, ALGORITHMS)
        _at_least("temperature", self.temperature, 0.0)
        _top_p(self.top_p)
        if self.top_k is not None:
            _whole("top_k", self.top_k, 1)
        if self.alg_temp is not None:
            _at_least("alg_temp", self.alg_temp, 0.0)
        if not _number(self.eps) or not 0 < self.eps < 1:
            raise InputError(f"eps should lie between 0 and 1, got {self.eps!r}; the official value is 1e-3")


@dataclass(frozen=True)
class MmadaDecoding(Decoding):
    """MMaDA's text loop (generate, mmu_generate, mmu_generate_fast): LLaDA's of February 2025, confidence in float64.

    Attributes:
        stop_at: a token id; after a block whose last token it is, generation ends and later blocks stay masked. With one
            random stream for the batch all rows must agree, as in the official code; with a stream per row each row stops
            by itself.
    """

    length: int = 128
    steps: int = 128
    block: int = 32
    temperature: float = 0.0
    cfg: float = 0.0
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    stop_at: int | None = None

    kind: ClassVar[str] = "mmada"
    families: ClassVar[tuple[str, ...]] = ("mmada",)

    def __post_init__(self) -> None:
        _blocks(self.length, self.steps, self.block)
        _at_least("temperature", self.temperature, 0.0)
        _at_least("cfg", self.cfg, 0.0)
        _one_of("remasking", self.remasking, REMASKING)
        if self.stop_at is not None:
            _whole("stop_at", self.stop_at, 0)

    def check_ids(self, vocabulary: int) -> None:
        """The stop token must be in the vocabulary."""
        _in_vocabulary("stop_at", self.stop_at, vocabulary)


@dataclass(frozen=True)
class MmadaImageDecoding(Decoding):
    """MMaDA's t2i_generate: MaskGIT over the image slots of a given sequence.

    Attributes:
        timesteps: forward passes.
        guidance: above 0, logits are (1 + g)·conditional − g·unconditional; needs `unconditional=` in generate.
        temperature: scale of the Gumbel noise on confidence; it is multiplied by (1 − ratio) cumulatively, as officially.
        offset: id of image code 0; None: len(tokenizer), else the official 126349.
    """

    timesteps: int = 18
    guidance: float = 0.0
    temperature: float = 1.0
    offset: int | None = None

    kind: ClassVar[str] = "mmada_image"
    families: ClassVar[tuple[str, ...]] = ("mmada",)

    def __post_init__(self) -> None:
        _whole("timesteps", self.timesteps, 1)
        _at_least("guidance", self.guidance, 0.0)
        _at_least("temperature", self.temperature, 0.0)
        if self.offset is not None:
            _whole("offset", self.offset, 0)


@dataclass(frozen=True)
class GreedyDecoding(Decoding):
    """A causal model's most likely token at every step, with a KV cache.

    Attributes:
        eos: "model": stop at the model's end ids; None: never stop; or the id(s) to stop at.
    """

    length: int = 128
    eos: str | int | tuple[int, ...] | None = "model"

    kind: ClassVar[str] = "greedy"
    families: ClassVar[tuple[str, ...]] = ("causal",)

    def __post_init__(self) -> None:
        _whole("length", self.length, 1)
        object.__setattr__(self, "eos", _eos(self.eos))

    def check_ids(self, vocabulary: int) -> None:
        """The ids to stop at must be in the vocabulary."""
        for number in self.eos if isinstance(self.eos, tuple) else ():
            _in_vocabulary("eos", number, vocabulary)


@dataclass(frozen=True)
class SamplingDecoding(GreedyDecoding):
    """Sampling from a causal model: temperature first, then the smallest set of tokens with probability top_p."""

    length: int = 128
    temperature: float = 1.0
    top_p: float | None = 1.0
    eos: str | int | tuple[int, ...] | None = "model"

    kind: ClassVar[str] = "sampling"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_p is None:  # as in DreamDecoding: no truncation
            object.__setattr__(self, "top_p", 1.0)
        if not _number(self.temperature) or self.temperature <= 0:
            raise InputError(
                f"temperature should be above 0, got {self.temperature!r}; use GreedyDecoding for the most likely"
            )
        _top_p(self.top_p)


KINDS: dict[str, type[Decoding]] = {
    one.kind: one
    for one in (
        LladaDecoding,
        DreamDecoding,
        MmadaDecoding,
        MmadaImageDecoding,
        GreedyDecoding,
        SamplingDecoding,
    )
}


def default_decoding(family: str) -> Decoding:
    """The decoding a family gets when none is given."""
    kinds: dict[str, type[Decoding]] = {
        "llada": LladaDecoding,
        "dream": DreamDecoding,
        "mmada": MmadaDecoding,
    }
    return kinds.get(family, GreedyDecoding)()


def decoding_from_json(text: str) -> Decoding:
    """Reads what `to_json` wrote."""
    try:
        options = json.loads(text)
        kind = options.pop("kind")
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise InputError(f"a decoding in JSON is an object with a 'kind', got {text[:80]!r}") from error
    if kind not in KINDS:
        raise InputError(f"decoding kind {kind!r} is not known; {nearest(str(kind), KINDS)}")
    known = {field.name for field in dataclasses.fields(KINDS[kind])}
    for name in options:
        if name not in known:
            raise InputError(f"{kind} decoding has no option {name!r}; {nearest(name, known)}")
    return KINDS[kind](
        **{key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    )


def _blocks(length: object, steps: object, block: object) -> None:
    length, steps, block = _whole("length", length, 1), _whole("steps", steps, 1), _whole("block", block, 1)
    if length % block:
        fits = [size for size in range(1, length + 1) if length % size == 0]
        near = min(fits, key=lambda size: abs(size - block))
        raise InputError(
            f"length {length} is not a multiple of block {block}; try block={near}, or length={-(-length // block) * block}"
        )
    blocks = length // block
    if steps % blocks:
        raise InputError(
            f"steps {steps} is not a multiple of the {blocks} blocks (length {length} / block {block}); "
            f"try steps={max(1, round(steps / blocks)) * blocks}"
        )


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _whole(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} should be a whole number of at least {least}, got {value!r}")
    return value


def _at_least(name: str, value: object, least: float) -> None:
    if not _number(value) or not least <= value < float("inf"):  # type: ignore[operator]
        raise InputError(f"{name} should be a number of at least {least:g}, got {value!r}")


def _top_p(value: object) -> None:
    if value is not None and (not _number(value) or not 0 < value <= 1):  # type: ignore[operator]
        raise InputError(
            f"top_p should lie above 0 and at most at 1, got {value!r}; leave it out to keep all tokens"
        )


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name} {value!r} is not known; {nearest(str(value), allowed)}")


def _in_vocabulary(name: str, value: int | None, vocabulary: int) -> None:
    if value is not None and value >= vocabulary:
        raise InputError(f"{name} {value} is not in the vocabulary of {vocabulary} ids")


def _eos(value: object) -> str | tuple[int, ...] | None:
    if value is None:
        return None
    if value == "model":
        return "model"
    many = [value] if isinstance(value, int) else value
    if not isinstance(many, (list, tuple)) or not many:
        raise InputError(f"eos should be 'model', None, or token ids, got {value!r}")
    return tuple(_whole("eos", number, 0) for number in many)
