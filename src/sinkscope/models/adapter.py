"""A LoRA adapter over another checkpoint, in PEFT's layout: adapter_config.json and adapter_model.safetensors.

Loaded like any folder: the base is found by the name that the config gives, and scale · B · A is added to its weights (as
PEFT's `merge_and_unload` does), so nothing downstream knows that it was an adapter. A config.json beside the adapter makes the
model one of that family: a Dream config over a causal Llama base is a diffusion model. Plain LoRA and trained token rows are
read; other kinds of adapter are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.base.errors import CheckpointError
from sinkscope.base.text import listed
from sinkscope.models.checkpoint import LISTED, Checkpoint, file_digest, opened, read_table

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
TOKEN_ROWS = "token_adapter.trainable_tokens_delta"  # noqa: S105 (the name of a tensor)
UNREAD = (
    "use_dora", "use_qalora", "lora_bias", "fan_in_fan_out", "modules_to_save", "rank_pattern", "alpha_pattern",
    "layer_replication", "target_parameters", "alora_invocation_tokens", "use_bdlora",
)  # fmt: skip
"""Settings that change what an adapter computes, and that this file does not implement."""
BIASED = ("q_proj", "k_proj", "v_proj")
"""Modules that have a bias in Dream and none in Llama."""


@dataclass(frozen=True)
class AdapterCheckpoint(Checkpoint):
    """A folder with an adapter; tensors and shapes are the base's."""

    base: Checkpoint = field(kw_only=True)

    @cached_property
    def adapter(self) -> dict[str, Any]:
        """adapter_config.json, which must be a plain LoRA."""
        config = read_table(self.folder / CONFIG, self.source)
        strange = [name for name in UNREAD if config.get(name)]
        strange += [f"bias {config['bias']}"] if config.get("bias", "none") != "none" else []
        if config.get("peft_type") != "LORA" or strange:
            kind = ", ".join(strange) or f"peft_type {config.get('peft_type')!r}"
            raise CheckpointError(
                f"{self.source} is an adapter with {kind}; sinkscope reads plain LoRA: merge it with peft "
                "(merge_and_unload) and save the whole model"
            )
        return config

    @cached_property
    def scale(self) -> float:
        """The factor of B · A."""
        rank, alpha = self.adapter.get("r"), self.adapter.get("lora_alpha")
        if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, (int, float)):
            raise CheckpointError(
                f"{self.source}: {CONFIG} has r {rank!r} and lora_alpha {alpha!r}; both must be numbers"
            )
        return float(alpha) / (rank**0.5 if self.adapter.get("use_rslora") else rank)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The adapter's own config.json, else the base's."""
        if not (self.folder / "config.json").exists():
            return self.base.config
        config = read_table(self.folder / "config.json", self.source)
        config.pop("auto_map", None)
        return config

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        path = self.folder / "generation_config.json"
        return read_table(path) if path.exists() else self.base.generation_config

    @cached_property
    def files(self) -> dict[str, Path]:
        return self.base.files

    @cached_property
    def zero_biases(self) -> dict[str, int]:
        """Name → size of biases that the adapter's family has and the base lacks."""
        if self.model_type != "Dream":
            return {}
        sizes = {name: shape[0] for name, shape in self.base.shapes.items()}
        return {
            name.removesuffix("weight") + "bias": size
            for name, size in sizes.items()
            if name.endswith(tuple(f"{module}.weight" for module in BIASED))
            and name.removesuffix("weight") + "bias" not in sizes
        }

    @cached_property
    def headers(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self.base.headers | {name: ("F32", (size,)) for name, size in self.zero_biases.items()}

    @cached_property
    def digest(self) -> str:
        parts = f"{self.base.digest}\n{WEIGHTS}:{file_digest(self.folder / WEIGHTS)}\n"
        return hashlib.sha256(parts.encode()).hexdigest()

    def tensors(self, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """The base's tensors, and zeros for biases that it lacks."""
        yield from self.base.tensors(device)
        for name, size in self.zero_biases.items():
            yield name, torch.zeros(size, device=device)

    def merge(self, network: nn.Module) -> None:
        """Adds the adapter to a network that holds the base's weights."""
        parameters = dict(network.named_parameters())
        pairs: dict[str, dict[str, Tensor]] = {}
        unknown = []
        with opened(self.folder / WEIGHTS, self.source) as file, torch.no_grad():
            for name in file.keys():  # noqa: SIM118
                module, _, matrix = name.removeprefix(PREFIX).rpartition(".lora_")
                if f"{module}.weight" in parameters and matrix in ("A.weight", "B.weight"):
                    pairs.setdefault(f"{module}.weight", {})[matrix[0]] = file.get_tensor(name)
                elif name.endswith(f"embed_tokens.{TOKEN_ROWS}"):
                    self._put_rows(
                        name.removeprefix(PREFIX).removesuffix(TOKEN_ROWS), file.get_tensor(name), parameters
                    )
                else:
                    unknown.append(name)
            if unknown:
                raise CheckpointError(
                    f"{self.source}: {WEIGHTS} holds tensors that do not fit the model: {listed(sorted(unknown), LISTED)}"
                )
            for name, pair in pairs.items():
                self._add(name, pair, parameters[name])

    def _add(self, name: str, pair: dict[str, Tensor], weight: Tensor) -> None:
        if set(pair) != {"A", "B"} or (pair["B"].shape[0], pair["A"].shape[1]) != tuple(weight.shape):
            raise CheckpointError(
                f"{self.source}: the adapter's matrices for {name} do not fit its shape {list(weight.shape)}"
            )
        first, second = (pair[part].to(weight.device, torch.float32) for part in "BA")
        weight.copy_(weight.float() + self.scale * (first @ second))

    def _put_rows(self, module: str, rows: Tensor, parameters: dict[str, nn.Parameter]) -> None:
        indices = self.adapter.get("trainable_token_indices")
        indices = indices.get("embed_tokens") if isinstance(indices, dict) else indices
        weight = parameters.get(f"{module}weight")
        if not isinstance(indices, list) or weight is None or rows.shape != (len(indices), weight.shape[1]):
            raise CheckpointError(
                f"{self.source}: the trained token rows do not fit {CONFIG}; take both from one adapter"
            )
        # A tied head shares the memory.
        weight[torch.tensor(indices, device=weight.device)] = rows.to(weight)


def read_adapter(folder: Path, source: str, find: Callable[[str], Checkpoint]) -> AdapterCheckpoint:
    """The adapter in a folder, over the base that its config names.

    Args:
        find: name, folder or hub id → checkpoint.
    """
    name = read_table(folder / CONFIG, source).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise CheckpointError(
            f"{source}: {CONFIG} names no base model; set base_model_name_or_path to the folder or hub id of its base"
        )
    if (Path(name).expanduser() / CONFIG).is_file():
        raise CheckpointError(f"{source} is an adapter over {name}, itself an adapter; merge that one first")
    try:
        base = find(name)
    except CheckpointError as error:
        raise CheckpointError(f"{source} is an adapter over {name}, which cannot be had: {error}") from error
    return AdapterCheckpoint(folder, source, base=base)
