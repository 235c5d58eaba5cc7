"""A causal model that becomes a masked diffusion model (Dream's recipe), or its causal twin: the same tokens and schedule.

    sinkscope train adapt --from smollm2 --text TEXT --out runs/twin

The network learns running text in packed rows. Attention is lifted at once, or annealed as in DiffuLLaMA (arXiv 2410.17891):
until a given step each pair of a query and a later key is visible with a probability that grows to 1. Logits are shifted as in
Dream (position j − 1 predicts j), or not, as in LLaDA. All weights are trained, or low-rank adapters over frozen ones.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sinkscope import checks
from sinkscope.errors import InputError
from sinkscope.models.load import load
from sinkscope.organisms import emergence, lora, text
from sinkscope.organisms.batches import Batch, DocumentOrder
from sinkscope.organisms.layout import save_configs, save_tensors, tensors, write_json
from sinkscope.organisms.loop import Loop, LoopOptions, finished, prepare
from sinkscope.organisms.network import (
    Loss,
    check_supported,
    corrupt,
    decoder_layer,
    masked_at,
    parameters,
    rotation,
    trainable,
)
from sinkscope.organisms.parallel import World, world
from sinkscope.organisms.recipe import Objective, Schedule
from sinkscope.organisms.start import as_dream, resize
from sinkscope.organisms.vocabulary import ADDED_MASK, Vocabulary
from sinkscope.tasks.prompting import SEPARATOR

LEAST_TIME = 0.01
"""No row has a smaller t in training."""
CHECKED_TIMES = (0.1, 0.5, 0.9)
"""Shares of masked tokens at which the held-out loss is measured."""
PROBED_ROWS = 16


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


@dataclass(frozen=True, kw_only=True)
class AdaptOptions(LoopOptions):
    """An adaptation, its text, and how it is carried out.

    Attributes:
        text: see `text.read_documents`.
        rows_at_a_time: rows in one forward; a step adds up the gradients of all. Smaller needs less memory.
        check_rows: held-out rows in a check.
    """

    adaptation: Adaptation
    text: str
    rows_at_a_time: int = 16
    check_rows: int = 64
    check_every: int = 200
    save_every: int = 200


def adapt(options: AdaptOptions) -> dict[str, Any]:
    """Carries out an adaptation, or goes on where an earlier call in the same folder stopped.

    Returns:
        What training.json holds: settings, text, held-out loss, hardware, time.
    """
    settings = options.adaptation
    prepare(options)
    with world(options.device) as processes:
        if settings.batch % processes.size:
            raise InputError(
                f"a batch of {settings.batch} cannot be split over {processes.size} processes; change --batch"
            )
        source = source_of(settings)
        done = finished(options, {"adaptation": settings.as_dict(), "source_digest": source.digest})
        if done is not None:
            return done
        folder = options.out / "text"
        if processes.main:
            if not options.quiet and not (folder / "text.json").exists():
                print(f"reading {options.text}", flush=True)
            words = source.vocabulary
            text.tokenise(options.text, source.tokenizer, words.bos, words.mask, folder)
        processes.wait()
        return AdaptTraining(options, source, processes).run()


class AdaptTraining(Loop):
    """An adaptation on its text."""

    def __init__(self, options: AdaptOptions, source: AdaptationSource, processes: World) -> None:
        self.settings, self.adapting, self.source = options.adaptation, options, source
        folder = options.out / "text"
        self.text_about = json.loads((folder / "text.json").read_text(encoding="utf-8"))
        identity = {
            "settings": json.dumps(self.settings.as_dict(), sort_keys=True),
            "source": source.digest,
            "text": str(self.text_about["digest"]),
        }
        super().__init__(source.network, self.settings, options, processes, identity)
        self.mask, self.causal = int(source.vocabulary.mask or 0), self.settings.objective == "causal"
        opened = partial(text.open_rows, folder, length=self.settings.length, separator=source.vocabulary.bos)
        self.rows, self.held_out_rows = opened("train"), opened("held_out")
        self.order = DocumentOrder(self.settings.seed, torch.device("cpu"))
        self.random = torch.Generator()
        self.rotary = rotation(self.network, self.settings.length, self.device)
        compiled = self.device.type == "cuda" if options.compile is None else options.compile
        objective: Objective = "next" if self.causal else "shifted" if self.settings.shift else "masked"
        # Layer by layer: one graph serves all layers, and the head's logits come for a few rows at a time. Checks are rare and
        # run as they are: without gradients they would need another graph.
        self.weighted_loss = Loss(self.network, objective, _compiled_layer() if compiled else None)
        self.checked_loss = Loss(self.network, objective)
        self.probe_rows = None
        if self.probed:
            self.probe_rows = emergence.probe_of(self._held_out(PROBED_ROWS), source.vocabulary, self.causal)

    def decays(self, name: str, weight: Tensor) -> bool:
        """Matrices decay; of an embedding of which one row is trained, nothing does."""
        return weight.dim() > 1 and not (self.settings.lora and "embed_tokens" in name)

    def losses(self, step: int) -> Iterator[Tensor]:
        """Cross-entropy per target of the whole batch, a few rows at a time."""
        size, world = self.settings.batch, self.world
        places = self.order.chosen(len(self.rows), step * size, size).tolist()[world.rank :: world.size]
        batch = self.rows.batch(places, torch.device("cpu"))
        if self.causal:
            seen, weight = batch.ids, _all_but_first(batch)
            targets = weight.sum()
        else:
            self.random.manual_seed((self.settings.seed * 1_000_003 + step) * 64 + world.rank)
            seen, weight = corrupt(batch, self.mask, self.random, LEAST_TIME)
            targets = batch.targets(causal=False).sum().float()
        targets = world.total(targets.to(self.device)) / world.size
        pairs = self._visible_pairs(step)
        for first in range(0, len(seen), self.adapting.rows_at_a_time):
            part = slice(first, first + self.adapting.rows_at_a_time)
            yield self._loss(self.weighted_loss, seen[part], batch.ids[part], weight[part], pairs) / targets

    def _loss(
        self, loss: Loss, seen: Tensor, ids: Tensor, weight: Tensor, pairs: Tensor | None = None
    ) -> Tensor:
        # Before the GPU sees it, which would have to be waited for.
        targets = weight.flatten().nonzero()[:, 0]
        seen, ids, weight, targets = (
            tensor.to(self.device, non_blocking=True) for tensor in (seen, ids, weight, targets)
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            value: Tensor = loss(seen, ids, weight, None, *self.rotary, pairs, targets)
        return value

    def _visible_pairs(self, step: int) -> Tensor | None:
        """Bool [S, S] while attention is annealed; None: as the objective has it."""
        if step >= self.settings.anneal:
            return None
        length = self.settings.length
        random = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + step)
        opened = torch.rand(length, length, generator=random) < step / self.settings.anneal
        return (torch.ones(length, length, dtype=torch.bool).tril() | opened).to(self.device)

    def _held_out(self, count: int) -> Batch:
        return self.held_out_rows.batch(range(min(count, len(self.held_out_rows))), self.device)

    def probe(self) -> dict[str, Any]:
        """The sinks of held-out rows."""
        return {} if self.probe_rows is None else emergence.measure(self.network, self.probe_rows)

    @torch.no_grad()
    def check(self, final: bool) -> dict[str, Any]:
        """Held-out nats per token: of all tokens for a causal model, of masked ones at several t for a diffusion model."""
        self.log.note("measures the held-out loss")
        batch = self._held_out(self.adapting.check_rows)
        if self.causal:
            return {"held_out": {"nats": self._mean_loss(batch.ids, batch, _all_but_first(batch))}}
        drawn = torch.rand(batch.ids.shape, generator=torch.Generator().manual_seed(7)).to(self.device)
        nats = {}
        for time in CHECKED_TIMES:
            share = torch.full((len(batch.ids), 1), time, device=self.device)
            seen, weight = masked_at(batch, drawn < share, self.mask, share)
            nats[f"{time:g}"] = self._mean_loss(seen, batch, (weight > 0).float())
        return {"held_out": nats}

    def _mean_loss(self, seen: Tensor, batch: Batch, weight: Tensor) -> float:
        size, total = self.adapting.rows_at_a_time, 0.0
        for first in range(0, len(seen), size):
            part = slice(first, first + size)
            total += float(self._loss(self.checked_loss, seen[part], batch.ids[part], weight[part]))
        return round(total / max(1.0, float(weight.sum())), 4)

    def finish(self, checked: dict[str, Any]) -> dict[str, Any]:
        """Writes the checkpoint, or the adapter."""
        settings, out = self.settings, self.options.out
        rows = (self.mask,) if settings.lora and not self.causal else ()
        sizes = {name: weight.numel() for name, weight in self.trained.items()}
        whole = sum(size for name, size in sizes.items() if not (rows and "embed_tokens" in name))
        trained = whole + len(rows) * int(self.network.config.hidden_size)
        if settings.lora and settings.layout != "llada":
            lora.save_adapter(self.network, self.source.name, settings.lora, rows, out)
            if settings.layout == "dream":
                save_configs(self.network, "dream", self.source.vocabulary, out)
        else:
            lora.merge_lora(self.network)
            self._save_whole(out)
        self.source.tokenizer.save_pretrained(out)
        return {
            "adaptation": settings.as_dict(),
            "source": self.source.name,
            "source_digest": self.source.digest,
            "text": self.text_about,
            "parameters": parameters(self.network),
            "trained": trained,
            "tokens": settings.tokens,
            **checked,
        }

    def _save_whole(self, out: Path) -> None:
        layout = self.settings.layout
        if layout == "source":
            layout = "llama"
            write_json(out / "config.json", self.source.config | {"dtype": "bfloat16"})
        else:
            save_configs(self.network, layout, self.source.vocabulary, out)
        save_tensors(tensors(self.network, layout), out / "model.safetensors")


def _all_but_first(batch: Batch) -> Tensor:
    """Float32 [B, S]: 1 for every token that has one before it in its row."""
    weight = torch.ones_like(batch.ids, dtype=torch.float32)
    weight[:, 0] = 0.0
    return weight


@cache
def _compiled_layer() -> Callable[..., Tensor]:
    """One for all runs of a process, so that it is compiled once."""
    return torch.compile(decoder_layer, dynamic=False)


# ---- the model that is adapted ---------------------------------------------------------------------


@dataclass(frozen=True)
class AdaptationSource:
    """The network that is adapted, in float32 on the CPU, its tokenizer with a mask token, and the ids that matter."""

    network: Any
    tokenizer: Any
    vocabulary: Vocabulary
    name: str
    digest: str
    config: dict[str, Any]


def source_of(settings: Adaptation) -> AdaptationSource:
    """Loads the source and fits it to the objective."""
    model = load(settings.source, device="cpu", dtype="float32")
    name, tokenizer = settings.source, model.tokenizer
    if model.family != "causal":
        raise InputError(f"{name} is a {model.family} model; an adaptation starts from a causal one")
    check_supported(model.network, name)
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
    trainable(network.float())
    if settings.lora:
        rows = () if mask is None else (mask,)
        lora.add_lora(network, settings.lora, settings.lora_scale, settings.seed, rows)
    known = Path(name).expanduser()
    called = known.resolve().as_posix() if known.is_dir() else name
    return AdaptationSource(
        network, tokenizer, vocabulary, called, model.digest, dict(model.checkpoint.config)
    )


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


def adapt_command(
    source: str, text: str, out: str | Path, device: str = "auto", **options: Any
) -> dict[str, Any]:
    """`sinkscope train adapt`: settings of `Adaptation` and `AdaptOptions` as a person gives them; None: not given."""
    given = {name: value for name, value in options.items() if value is not None}
    names = {field.name for field in dataclasses.fields(Adaptation)}
    settings = adaptation(source, **{name: given.pop(name) for name in list(given) if name in names})
    return adapt(AdaptOptions(adaptation=settings, text=text, out=Path(out), device=device, **given))
