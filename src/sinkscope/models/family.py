"""The base of every model family: how its checkpoints are read and what its forward pass means.

A family is one frozen object in a file of its own and one `FAMILIES.add` (or `ss.register`, or an entry point). Nothing here
assumes that a mask token exists.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sinkscope.attention.visibility import Padded
from sinkscope.base.errors import InputError
from sinkscope.base.registry import Registry
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.probe import number_layers

Padding = Literal["left", "right", "apart"]


@dataclass(frozen=True)
class SpecialIds:
    """Token ids with a meaning of their own. None or empty: the model has no such token.

    Attributes:
        eos: every id that ends a text (some models have several).
        eot: the end of a turn, where it differs from eos.
    """

    mask: int | None = None
    eos: tuple[int, ...] = ()
    bos: int | None = None
    pad: int | None = None
    eot: int | None = None


@dataclass(frozen=True)
class KnownCheckpoint:
    """A released checkpoint, and what its authors evaluated it with; scores are as published there, not measured by us.

    Attributes:
        size: layers, query heads and parameters, for plans on machines that do not have it.
    """

    source: str
    settings: str
    size: tuple[int, int, int]


@dataclass(frozen=True)
class Family:
    """Base of all families: how checkpoints are read, and what a forward pass means.

    Attributes:
        name: what `model.family` says.
        about: the family in a sentence. label: in a few words, for a report.
        model_types: `model_type` of the config.json files that belong to it.
        causal: a query sees only keys up to itself.
        padded: what padded queries attend to in the official code.
        padding: where rows of unequal length are padded. "apart": on the right, and in generation not at all: rows of
            another length run by themselves (blocks and learned positions count from the first column).
        optional_blocks: attention may stand in blocks, where a decoding has them (BD3LM); padding may then stand anywhere.
        blocks: attention stands in blocks, whose size a decoding chooses.
        bounded: positions are learned, so that no sequence can be longer than the context.
        modes: names of the families as which one checkpoint can be read, the diffusion model first (see Model.mode).
        mixed: attention modules say themselves whether they are causal: an encoder is, and what it is read by is not.
        passes: attention calls of a layer in a plain forward.
        probed: transformers chose the network, so what it does with attention is tried at load (see models.probe).
        shifted: the raw logits at position j predict token j + 1, as a causal model's do.
        counts_padding: positions are 0..S−1 whatever is padded; otherwise they count from the first real token, padding at 1.
        chat_template: replaces the tokenizer's; None: the tokenizer's own.
        ids, texts, orders: official special ids, texts of their tokens, and where they are looked for (see `read_ids`).
    """

    name: str = ""
    about: str = ""
    label: str = ""
    model_types: tuple[str, ...] = ()
    causal: bool = False
    padded: Padded = "none"
    padding: Padding = "left"
    optional_blocks: bool = False
    blocks: bool = False
    bounded: bool = False
    modes: tuple[str, ...] = ()
    mixed: bool = False
    passes: int = 1
    probed: bool = False
    shifted: bool = False
    counts_padding: bool = False
    chat_template: str | None = None
    ids: Mapping[str, int] = field(default_factory=dict, hash=False)
    texts: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict, hash=False)
    orders: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def known(self) -> tuple[KnownCheckpoint, ...]:
        """Released checkpoints, from known.toml; none of a family that comes from elsewhere."""
        entries = _released().get(self.name, ())
        return tuple(KnownCheckpoint(entry["source"], entry["settings"], tuple(entry["size"])) for entry in entries)

    @property
    def counted_as(self) -> str:
        """The family that studies and records count a model to: a causal mode is a causal model among others."""
        return "causal" if self.causal and self.modes else self.name

    def claims(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is of this family, from its config alone."""
        return checkpoint.model_type in self.model_types

    def config(self, checkpoint: Checkpoint) -> Any:
        """transformers' config of the network: its sizes, before any weight is read."""
        raise NotImplementedError

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The network with its weights, on its device and in its dtype, in eval mode."""
        raise NotImplementedError

    def adopt(self, network: nn.Module) -> None:
        """Number the attention modules of a network that transformers built, where they do not say their layer."""
        if self.probed:
            number_layers(network)

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Special ids, from the checkpoint first, then the tokenizer, then the official ones, unless `orders` says otherwise."""
        return read_ids(checkpoint, tokenizer, self.ids, {"eot": "<|im_end|>", **self.texts}, self.orders)

    def block(self, checkpoint: Checkpoint) -> int | None:
        """Columns of the blocks that a plain forward's attention stands in; None: it looks at everything."""
        return None

    def states(self, network: Any, ids: Tensor, real: Tensor | None, positions: Tensor, cache: Any = None) -> Tensor:
        """The last hidden states [B, Q, width] of ids, Long [B, Q], or whatever `head` makes logits of.

        Args:
            real: Bool [B, K] or None: padding, which attention knows already (see ForwardContext).
            positions: Long [B|1, Q]. cache: transformers' KV cache, to which the keys and values of ids are added; None: none.
        """
        output = network.model(
            input_ids=ids,
            attention_mask=None,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        states: Tensor = output.last_hidden_state
        return states

    @property
    def divisible(self) -> bool:
        """Whether a forward can be divided: run for single columns at their own positions, and begun in the middle.

        A family with `states` of its own has to say so itself; it may need an `onward` of its own too.
        """
        return type(self).states is Family.states

    def onward(self, network: Any, stream: Tensor, positions: Tensor) -> Tensor:
        """`states` of a residual stream [B, Q, width], where the network has been cut down to the layers that it enters."""
        output = network.model(inputs_embeds=stream, attention_mask=None, position_ids=positions, use_cache=False)
        states: Tensor = output.last_hidden_state
        return states

    def head(self, network: Any, hidden: Tensor) -> Tensor:
        """Logits [..., V] of what `states` gave, [..., width]."""
        logits: Tensor = network.lm_head(hidden)
        return logits

    def positions(self, real: Tensor | None, shape: tuple[int, int], device: torch.device) -> Tensor:
        """Long [B|1, S]: position ids as the official code computes them for left-padded input."""
        if real is None or self.counts_padding:
            return torch.arange(shape[1], device=device)[None]
        return (real.long().cumsum(-1) - 1).masked_fill(~real, 1)


@cache
def _released() -> Mapping[str, list[dict[str, Any]]]:
    return tomllib.loads((Path(__file__).parent / "known.toml").read_text(encoding="utf-8"))


class FullPrecisionRotary(nn.Module):
    """RoPE angles as LLaDA computes and uses them: cosine and sine stay in float32.

    q and k are then rotated in float32 by type promotion and cast back by our attention function; transformers' own module
    would round the angles to the activations' dtype first, which changes bf16 results.
    """

    inv_freq: Tensor

    def __init__(self, head_dim: int, theta: float, device: torch.device) -> None:
        super().__init__()
        exponent = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
        self.register_buffer("inv_freq", 1.0 / theta**exponent, persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Float32 cos, sin [B|1, S, head_dim] at the given positions."""
        angles = position_ids[..., None].float() * self.inv_freq
        angles = torch.cat((angles, angles), -1)
        return angles.cos(), angles.sin()


def _name_of(thing: object) -> str:
    if not isinstance(thing, Family) or not thing.name:
        raise InputError(f"a family is registered as an object that derives from Family and has a name, got {thing!r}")
    return thing.name


FAMILIES: Registry[Family] = Registry("family", "sinkscope.families", _name_of, __package__)


def family_of(checkpoint: Checkpoint, name: str | None = None) -> Family:
    """The family that is named, or else of a checkpoint: the first that claims it; causal models, which claim the rest, last."""
    if name is not None and name not in FAMILIES:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise InputError(f"family {name!r} is one of transformers' causal models; did you mean causal?")
    if name is not None:
        return in_mode(FAMILIES.find(name), checkpoint.causal, checkpoint.source)
    claims = (family for family in FAMILIES.values() if not family.causal and family.claims(checkpoint))
    return in_mode(next(claims, FAMILIES["causal"]), checkpoint.causal, checkpoint.source)


def in_mode(family: Family, causal: bool, source: str) -> Family:
    """The family, or that of its causal mode, which it must have."""
    if causal and not family.modes:
        raise InputError(f"{source} is a {family.name} model, which has one mode; leave out @causal")
    return FAMILIES[family.modes[True]] if causal else family


ID_ORDERS = {"mask": "cgto", "eos": "cgtop", "bos": "cgt", "pad": "cgte", "eot": "t"}
"""Where each special id is looked for, first to last. c: config.json, x: its text_config, g: generation_config.json, t: the
tokenizer (its attribute, else a token's text), o: the official id, where the vocabulary has it, p: the pad of config.json, e: the
ids that end a text."""
TEXT_ORDERS = {"mask": "", "eos": "gcxt", "bos": "gcxt", "pad": "gcxt"}
"""Those of models without a mask token, whose generation_config.json may name several ids that end a text."""


def read_ids(
    checkpoint: Checkpoint,
    tokenizer: Any,
    official: Mapping[str, int],
    texts: Mapping[str, str | tuple[str, ...]],
    orders: Mapping[str, str],
) -> SpecialIds:
    """The special ids of a checkpoint: the first that is found.

    Args:
        official: name → id. texts: name → text of the token, or several. orders: what differs from ID_ORDERS.
    """
    orders, inner = {**ID_ORDERS, **orders}, checkpoint.config.get("text_config")
    files = {"c": checkpoint.config, "g": checkpoint.generation_config, "x": inner if isinstance(inner, dict) else {}}
    eos: tuple[int, ...] = ()

    def entry(name: str, letter: str) -> Any:
        if letter in files:
            return files[letter].get(f"{name}_token_id")
        if letter == "t":
            return tokenizer_id(tokenizer, f"{name}_token_id", texts.get(name, ()))
        if letter == "o":
            return official[name] if name in official and official[name] < checkpoint.rows else None
        return eos if letter == "e" else checkpoint.config.get("pad_token_id")

    eos = all_ids(*(entry("eos", letter) for letter in orders["eos"]))
    others = {name: first_id(*(entry(name, letter) for letter in orders[name])) for name in orders if name != "eos"}
    return SpecialIds(eos=eos, **others)


def first_id(*values: Any) -> int | None:
    """The first that is an id; a list gives its first entry."""
    return next((ids[0] for ids in map(all_ids, values) if ids and ids[0] >= 0), None)


def all_ids(*values: Any) -> tuple[int, ...]:
    """The ids of the first entry that holds any."""
    for value in values:
        many = value if isinstance(value, (list, tuple)) else [value]
        ids = tuple(dict.fromkeys(one for one in many if isinstance(one, int) and not isinstance(one, bool)))
        if ids:
            return ids
    return ()


def tokenizer_id(tokenizer: Any, attribute: str, texts: str | tuple[str, ...] = ()) -> int | None:
    """A special id of the tokenizer by attribute, or by the text of a token that is in the vocabulary."""
    if tokenizer is None:
        return None
    number = getattr(tokenizer, attribute, None)
    if number is None and texts:
        vocabulary: Mapping[str, int] = tokenizer.get_vocab()
        number = first_id(*map(vocabulary.get, (texts,) if isinstance(texts, str) else texts))
    return number if isinstance(number, int) else None
