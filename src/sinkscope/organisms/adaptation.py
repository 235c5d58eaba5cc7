"""The settings of an adaptation, and the causal model that it starts from, fitted to the objective."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

from sinkscope import checks
from sinkscope.errors import InputError
from sinkscope.models.load import load
from sinkscope.organisms import lora
from sinkscope.organisms import network as networks
from sinkscope.organisms.recipe import Schedule
from sinkscope.organisms.start import as_dream, resize
from sinkscope.organisms.vocabulary import ADDED_MASK, Vocabulary

SEPARATOR = "<|endoftext|>"


@dataclass(frozen=True)
class Adaptation(Schedule):
    """One way to adapt a causal checkpoint.

    Attributes:
        objective: "diffusion", or "causal": go on as it was, for a twin to compare with.
        shift: diffusion: position j − 1 predicts j, and the checkpoint has Dream's layout; otherwise LLaDA's.
        lora: rank of the adapters; 0: all weights are trained (biases stay as they are).
        lora_scale: what B · A is multiplied with.
        anneal: diffusion: the step from which on attention is fully bidirectional; 0: from the first.
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
    anneal: int = 0
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
        for name, least in (("lora", 0), ("anneal", 0), ("batch", 1), ("length", 8)):
            checks.whole(name, getattr(self, name), least)
        if self.anneal and self.objective == "causal":
            raise InputError(
                "anneal was given with the causal objective, whose attention stays as it is; leave it out"
            )

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


@dataclass(frozen=True)
class Source:
    """The network that is adapted, in float32 on the CPU, its tokenizer with a mask token, and the ids that matter."""

    network: Any
    tokenizer: Any
    vocabulary: Vocabulary
    name: str
    digest: str
    config: dict[str, Any]


def source_of(settings: Adaptation) -> Source:
    """Loads the source and fits it to the objective."""
    model = load(settings.source, device="cpu", dtype="float32")
    name, tokenizer = settings.source, model.tokenizer
    if model.family != "causal":
        raise InputError(f"{name} is a {model.family} model; an adaptation starts from a causal one")
    networks.check_supported(model.network, name)
    if tokenizer is None:
        raise InputError(f"{name} has no tokenizer, which the text is read with")
    network = model.network
    mask = _mask_token(tokenizer, settings) if settings.objective == "diffusion" else None
    separator = _separator(tokenizer, settings)
    if settings.length > network.config.max_position_embeddings:
        raise InputError(
            f"rows of {settings.length} tokens are longer than the context of {name}, {network.config.max_position_embeddings}"
        )
    if mask is not None and mask >= network.config.vocab_size:
        resize(network, (len(tokenizer) + 63) // 64 * 64, settings.seed)
    if settings.layout == "dream" and network.config.model_type != "qwen2":
        network = as_dream(network)
    if settings.layout == "llada":
        _check_llada(network, name)
    eos = (model.ids.eos or (separator,))[0]
    pad, eot = (eos if known is None else known for known in (model.ids.pad, model.ids.eot))
    vocabulary = Vocabulary(tokenizer.backend_tokenizer, {}, separator, eos, pad, eot, mask, "", "")
    networks.trainable(network.float())
    if settings.lora:
        rows = () if mask is None else (mask,)
        lora.add_lora(network, settings.lora, settings.lora_scale, settings.seed, rows)
    known = Path(name).expanduser()
    called = known.resolve().as_posix() if known.is_dir() else name
    return Source(network, tokenizer, vocabulary, called, model.digest, dict(model.checkpoint.config))


def _mask_token(tokenizer: Any, settings: Adaptation) -> int:
    token = settings.mask_token or tokenizer.mask_token or ADDED_MASK
    if settings.mask_token is not None and settings.mask_token not in tokenizer.get_vocab():
        raise InputError(
            f"the tokenizer of {settings.source} has no token {token!r}; leave --mask-token out, and one is added"
        )
    tokenizer.add_special_tokens({"mask_token": token})
    return int(tokenizer.mask_token_id)


def _separator(tokenizer: Any, settings: Adaptation) -> int:
    known = tokenizer.get_vocab()
    if settings.separator is not None and settings.separator not in known:
        raise InputError(
            f"the tokenizer of {settings.source} has no token {settings.separator!r} to stand between documents"
        )
    choices = (settings.separator, SEPARATOR, tokenizer.bos_token, tokenizer.eos_token)
    for token in choices:
        if token is not None and token in known:
            return int(known[token])
    raise InputError(f"the tokenizer of {settings.source} has no bos or eos token; name one with --separator")


def _check_llada(network: Any, name: str) -> None:
    """Refuses what LLaDA's config cannot say."""
    config, attention = network.config, network.model.layers[0].self_attn
    scaled = dict(config.rope_parameters).get("rope_type", "default") != "default"
    wide = attention.head_dim * config.num_attention_heads != config.hidden_size
    if scaled or attention.q_proj.bias is not None or wide:
        raise InputError(
            f"{name} has biases, a scaled rotation or heads of another width, which LLaDA's layout cannot hold; keep the shift"
        )
