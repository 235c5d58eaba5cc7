"""A causal model that becomes a masked diffusion model (Dream's recipe), or its causal twin: the same tokens and schedule.

    sinkscope train adapt --from smollm2 --text TEXT --out runs/twin

The network learns running text in packed rows. Attention is lifted at once. Logits are shifted as in Dream (position j − 1
predicts j), or not, as in LLaDA. All weights are trained, or low-rank adapters over frozen ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sinkscope as ss
from sinkscope import InputError
from sinkscope.tasks.prompting import SEPARATOR
from sinkscope_train import emergence, text
from sinkscope_train.corpus import in_order
from sinkscope_train.layout import DTYPE, save_configs, save_tensors, tensors, write_json
from sinkscope_train.loop import Loop, finished
from sinkscope_train.network import (
    Loss,
    check_supported,
    decoder_layer,
    drawn_masks,
    masked_at,
    parameters,
    rotation,
    trainable,
)
from sinkscope_train.options import AdaptOptions, split
from sinkscope_train.parallel import World, world
from sinkscope_train.recipe import Adaptation, Objective, adaptation
from sinkscope_train.rows import Batch
from sinkscope_train.start import as_dream, resize
from sinkscope_train.vocabulary import Vocabulary

LEAST_TIME = 0.01
"""No row has a smaller t in training."""
CHECKED_TIMES = (0.1, 0.5, 0.9)
"""Shares of masked tokens at which the held-out loss is measured."""
PROBED_ROWS = 16
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Modules that get an adapter."""
ADDED_MASK = "<|mask|>"
"""Added to tokenizers that have no mask token."""


def adapt_source(source: str, text: str, out: str | Path, device: str = "auto", **options: Any) -> dict[str, Any]:
    """`adapt` with settings of `Adaptation` and `AdaptOptions` as a person gives them; None: not given."""
    settings, run = split(Adaptation, options)
    asked = adaptation(source, **settings)
    return adapt(AdaptOptions(adaptation=asked, text=text, out=Path(out), device=device, **run))


def adapt(options: AdaptOptions) -> dict[str, Any]:
    """Carries out an adaptation, or goes on where an earlier call in the same folder stopped.

    Returns:
        What training.json holds: settings, text, held-out loss, hardware, time.
    """
    settings = options.adaptation
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
        self.rows, self.held_out_rows = (
            text.open_rows(folder, name, self.settings.length, source.vocabulary.bos, self.causal)
            for name in ("train", "held_out")
        )
        self.random = torch.Generator()
        self.rotary = rotation(self.network, self.settings.length, self.device)
        objective: Objective = "next" if self.causal else "shifted" if self.settings.shift else "masked"
        # Layer by layer: one graph serves all layers, and the head's logits come for a few rows at a time. Checks are rare and
        # run as they are: without gradients they would need another graph.
        layer = _compiled_layer() if self.compiled else None
        self.weighted_loss = self.world.shared(Loss(self.network, objective, layer))
        self.checked_loss = Loss(self.network, objective)
        if self.probed:
            held_out = self._held_out(PROBED_ROWS)
            self.held_out = emergence.probe_of(held_out, source.vocabulary, self.causal)

    def decays(self, name: str, weight: Tensor) -> bool:
        """Matrices decay; of an embedding of which one row is trained, nothing does."""
        return weight.dim() > 1 and not (self.settings.lora and "embed_tokens" in name)

    def losses(self, step: int) -> Iterator[Tensor]:
        """Cross-entropy per target of the whole batch, a few rows at a time."""
        size, world, cpu = self.settings.batch, self.world, torch.device("cpu")
        numbers = in_order(self.settings.seed, len(self.rows), step * size, size, cpu)
        batch = self.rows.batch(numbers.tolist()[world.rank :: world.size], cpu)
        goals = batch.targets(self.causal).float()
        self.random.manual_seed((self.settings.seed * 1_000_003 + step) * 64 + world.rank)
        seen, weight = batch.ids, goals
        if not self.causal:
            masks = drawn_masks(batch.ids.shape, self.random, cpu, LEAST_TIME)
            seen, weight = masked_at(batch, self.mask, *masks)
        targets = world.total(goals.sum().to(self.device)) / world.size
        for rows, last in self._parts(len(seen)):
            with nullcontext() if last else world.apart(self.weighted_loss):
                yield self._loss(self.weighted_loss, seen[rows], batch.ids[rows], weight[rows]) / targets

    def _parts(self, rows: int) -> Iterator[tuple[slice, bool]]:
        """As many rows as pass through the network at a time, and whether they are the last."""
        many = self.adapting.rows_at_a_time
        for first in range(0, rows, many):
            yield slice(first, first + many), first + many >= rows

    def _loss(self, loss: torch.nn.Module, seen: Tensor, ids: Tensor, weight: Tensor) -> Tensor:
        # Before the GPU sees it, which would have to be waited for.
        targets = weight.flatten().nonzero()[:, 0]
        inputs = (tensor.to(self.device, non_blocking=True) for tensor in (seen, ids, weight))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            value: Tensor = loss(*inputs, None, *self.rotary, targets.to(self.device, non_blocking=True))
        return value

    def _held_out(self, count: int) -> Batch:
        return self.held_out_rows.batch(range(min(count, len(self.held_out_rows))), self.device)

    @torch.no_grad()
    def check(self, final: bool) -> dict[str, Any]:
        """Held-out nats per token: of all tokens for a causal model, of masked ones at several t for a diffusion model."""
        self.log.note("measures the held-out loss")
        batch = self._held_out(self.adapting.check_rows)
        if self.causal:
            return {"held_out": {"nats": self._nats(batch.ids, batch, batch.targets(True).float())}}
        drawn = torch.rand(batch.ids.shape, generator=torch.Generator().manual_seed(7)).to(self.device)
        nats = {}
        for time in CHECKED_TIMES:
            share = torch.full((len(batch.ids), 1), time, device=self.device)
            seen, weight = masked_at(batch, self.mask, drawn < share, share)
            nats[f"{time:g}"] = self._nats(seen, batch, (weight > 0).float())
        return {"held_out": nats}

    def _nats(self, seen: Tensor, batch: Batch, weight: Tensor) -> float:
        parts = [part for part, _ in self._parts(len(seen))]
        losses = [float(self._loss(self.checked_loss, seen[part], batch.ids[part], weight[part])) for part in parts]
        return round(sum(losses) / max(1.0, float(weight.sum())), 4)

    def finish(self, checked: dict[str, Any]) -> dict[str, Any]:
        """Writes the checkpoint; or the adapter, which LLaDA's layout has no names for, so there it is merged."""
        settings, out, source = self.settings, self.options.out, self.source
        adapter = source.adapted is not None and settings.layout != "llada"
        if source.adapted is not None:
            if adapter:
                save_adapter(source.adapted, source.name, out)
            source.adapted.merge_and_unload()
        if settings.layout != "source":
            save_configs(self.network, settings.layout, source.vocabulary, out)
        elif not adapter:
            write_json(out / "config.json", source.config | {"dtype": "bfloat16"})
        if not adapter:
            save_tensors(tensors(self.network, settings.layout), out / "model.safetensors")
        source.tokenizer.save_pretrained(out)
        return {
            "adaptation": settings.as_dict(),
            "source": source.name,
            "source_digest": source.digest,
            "text": self.text_about,
            "parameters": parameters(self.network),
            "trained": sum(weight.numel() for weight in self.trained.values()),
            "tokens": settings.tokens,
            **checked,
        }


@cache
def _compiled_layer() -> Callable[..., Tensor]:
    """One for all runs of a process, so that it is compiled once."""
    return torch.compile(decoder_layer, dynamic=False)


# ---- the model that is adapted ---------------------------------------------------------------------


@dataclass(frozen=True)
class AdaptationSource:
    """The network that is adapted, in float32 on the CPU, its tokenizer with a mask token, and the ids that matter.

    Attributes:
        adapted: peft's model around the network; None: all weights are trained.
    """

    network: Any
    tokenizer: Any
    vocabulary: Vocabulary
    name: str
    digest: str
    config: dict[str, Any]
    adapted: Any = None


def source_of(settings: Adaptation) -> AdaptationSource:
    """Loads the source and fits it to the objective."""
    model = ss.load(settings.source, device="cpu", dtype="float32")
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
    pad, eot = (eos if number is None else number for number in (model.ids.pad, model.ids.eot))
    vocabulary = Vocabulary(tokenizer.backend_tokenizer, {}, separator, eos, pad, eot, mask, "", "")
    trainable(network.float())
    rows = () if mask is None else (mask,)
    asked = (settings.lora, settings.lora_scale, settings.seed, rows)
    adapted = add_lora(network, *asked) if settings.lora else None
    folder = Path(name).expanduser()
    called = folder.resolve().as_posix() if folder.is_dir() else name
    config = dict(model.checkpoint.config)
    return AdaptationSource(network, tokenizer, vocabulary, called, model.digest, config, adapted)


def _mask_token(tokenizer: Any, settings: Adaptation) -> int:
    token = settings.mask_token or tokenizer.mask_token or ADDED_MASK
    if settings.mask_token is not None and settings.mask_token not in tokenizer.get_vocab():
        raise InputError(
            f"the tokenizer of {settings.source} has no token {token!r}; leave --mask-token out, and one is added"
        )
    tokenizer.add_special_tokens({"mask_token": token})
    return int(tokenizer.mask_token_id)


def _separator(tokenizer: Any, settings: Adaptation) -> int:
    words, asked = tokenizer.get_vocab(), settings.separator
    choices = (SEPARATOR, tokenizer.bos_token, tokenizer.eos_token) if asked is None else (asked,)
    for token in choices:
        if token in words:
            return int(words[token])
    raise InputError(
        f"the tokenizer of {settings.source} has no token {asked or 'such as bos or eos'!r} to stand between documents; name one "
        "with --separator"
    )


def _check_llada(network: Any, name: str) -> None:
    """Refuses what LLaDA's config cannot say."""
    config, attention = network.config, network.model.layers[0].self_attn
    scaled = dict(config.rope_parameters).get("rope_type", "default") != "default"
    wide = attention.head_dim * config.num_attention_heads != config.hidden_size
    if scaled or attention.q_proj.bias is not None or wide:
        raise InputError(
            f"{name} has biases, a scaled rotation or heads of another width, which LLaDA's layout cannot hold; keep the shift"
        )


# ---- adapters (LoRA, arXiv 2106.09685) by peft; ours are the first numbers, drawn from the seed, and the files -----------------


def add_lora(network: Any, rank: int, scale: float, seed: int, rows: tuple[int, ...] = ()) -> Any:
    """Freezes a network and gives every linear layer of its blocks an adapter, in place; token rows `rows` are trained too.

    Returns:
        peft's model around the network.
    """
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=scale * rank, target_modules=list(ADAPTED),
        trainable_token_indices=list(rows) or None,
    )  # fmt: skip
    adapted = get_peft_model(network, config)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "lora_A" in name:
                bound = 1.0 / math.sqrt(weight.shape[1])
                weight.uniform_(-bound, bound, generator=random)
    return adapted


def save_adapter(adapted: Any, base: str, folder: Path) -> None:
    """Writes adapter_config.json and adapter_model.safetensors. base: what it is loaded over, a name, folder or hub id."""
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    weights = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    stored = {name: weight.detach().to("cpu", DTYPE).contiguous() for name, weight in weights.items()}
    save_tensors(stored, folder / "adapter_model.safetensors")
    config = adapted.peft_config["default"]
    config.base_model_name_or_path, config.inference_mode = base, True
    config.save_pretrained(folder)
