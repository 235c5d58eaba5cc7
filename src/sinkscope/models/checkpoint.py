"""Strict reading of a checkpoint folder in the Hugging Face layout: config.json and safetensors, nothing else.

No Python file of a checkpoint is ever imported, no pickle is ever opened. Missing, unexpected and wrongly shaped tensors
are one error that lists them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.base.errors import CheckpointError
from sinkscope.base.files import one_line, read_json, reading
from sinkscope.base.text import listed
from sinkscope.models.changed import CHANGED, ChangedNetwork

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FULL = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""What safetensors call the dtypes of weights that are not quantised."""

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""Files that decide which ids a text becomes."""

APART = "sinkscope_"
"""How the model_type of networks begins that sinkscope-train changes."""
LAYER_COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
"""Names of the number of layers in config files."""
WIDTHS = (
    "vocab_size", "embedding_size", "hidden_size", "d_model", "n_embd", "intermediate_size", "mlp_hidden_size",
    "moe_intermediate_size", "num_attention_heads", "num_key_value_heads", "n_heads", "n_kv_heads", "n_head", "head_dim",
    "num_experts", "num_local_experts", "n_routed_experts", "num_shared_experts", "n_shared_experts",
)  # fmt: skip
"""Names of sizes that a network cannot have without a tensor that has them too."""
ROTATION = ("rope_scaling", "rope_parameters")
"""Names of the settings of the rotation."""

ORIGINAL = "take config.json from the original model"
LISTED = 7
"""How many tensor names one error lists."""


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a config and safetensors weights.

    Attributes:
        folder: where it lies on disk.
        source: what the user called it (a hub id or a path).
        revision: the commit on the hub, None for a folder.
        causal: read in its causal mode (SOURCE@causal), where one checkpoint has two.
    """

    folder: Path
    source: str
    revision: str | None = None
    causal: bool = False

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json, without what would point elsewhere."""
        config = read_table(
            self.folder / "config.json", f"{self.source} is not a checkpoint in the Hugging Face layout"
        )
        for name in ("auto_map", "transformers_weights"):  # they would point to code, and to other weights
            config.pop(name, None)
        return config

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        path = self.folder / "generation_config.json"
        return read_table(path) if path.exists() else {}

    @property
    def model_type(self) -> str:
        """The `model_type` of config.json; of a changed network, that of the one it was made from."""
        kind = self.config.get("model_type") if self.change is None else self.change.base
        if not isinstance(kind, str) or not kind:
            raise CheckpointError(f"{self.source}: config.json has no model_type; it must name the architecture")
        if kind.startswith(APART):
            raise CheckpointError(
                f"{self.source}: the attention of a {kind} network is changed in a way that sinkscope-train knows, which is not "
                "installed here: pip install sinkscope-train (in a checkout: pip install -e train)"
            )
        return kind

    @property
    def change(self) -> ChangedNetwork | None:
        """What another distribution changes in its network; None: nothing."""
        return CHANGED.get(str(self.config.get("model_type")))

    def setting(self, name: str) -> Any:
        """A key of config.json that must be there."""
        if self.config.get(name) is None:
            raise CheckpointError(
                f"{self.source}: config.json has no {name!r}, which a {self.model_type} checkpoint needs; {ORIGINAL}"
            )
        return self.config[name]

    def size(self, name: str, otherwise: int | None = None) -> int:
        """A key of config.json that is a whole number above 0; where it is null or absent, `otherwise`, if that is given."""
        return int(self._positive(name, otherwise, whole=True))

    def sizes(self, *names: str, **renamed: str) -> dict[str, int]:
        """Several sizes that must be there, by the names of config.json, or by ours (ours = theirs)."""
        return {ours: self.size(theirs) for ours, theirs in ({name: name for name in names} | renamed).items()}

    @property
    def rows(self) -> int:
        """Rows of the embedding; LLaDA's files may name more than the tokenizer has tokens."""
        return self.size("embedding_size" if self.config.get("embedding_size") else "vocab_size")

    def number(self, name: str, otherwise: float | None = None) -> float:
        """A key of config.json that is a finite number above 0; where it is null or absent, `otherwise`, if that is given."""
        return float(self._positive(name, otherwise, whole=False))

    def _positive(self, name: str, otherwise: float | None, whole: bool) -> float:
        if self.config.get(name) is None and otherwise is not None:
            return otherwise
        value: Any = self.setting(name)
        if not (_is_number(value) and 0 < value < (2**40 if whole else 1e300) and (not whole or value == int(value))):
            raise self.misfit(name, f"which should be a {'whole ' * whole}number above 0; {ORIGINAL}")
        return value  # type: ignore[no-any-return]

    def section(self, name: str) -> Checkpoint:
        """The same checkpoint, of whose config only a table inside it is read."""
        inner = self.setting(name)
        if not isinstance(inner, dict):
            raise self.misfit(name, f"which should be a table; {ORIGINAL}")
        checkpoint = replace(self)
        checkpoint.__dict__["config"] = inner
        return checkpoint

    def misfit(self, name: str, why: str) -> CheckpointError:
        """The error about a key of config.json; why: what is wrong with its value, and what to do."""
        return CheckpointError(f"{self.source}: config.json sets {name} to {self.config.get(name)!r}, {why}")

    def check_sizes(self, partial: bool = False) -> None:
        """Refuse a config that asks for more than the weights hold, or for another rotation, before anything is made of it.

        A network has at most as many layers as there are tensors, and none of its sizes is larger than their largest
        dimension; both may be off by a factor of two, for networks that share weights.

        Args:
            partial: the network can rotate a part of each head; others would fail, or silently rotate all of it.
        """
        largest = max((size for shape in self.shapes.values() for size in shape), default=0)
        most = dict.fromkeys(LAYER_COUNTS, len(self.shapes)) | dict.fromkeys(WIDTHS, 2 * largest)
        inner = [self.config.get(name) for name in ("text_config", *ROTATION)]
        tables = [self.config, *(one for one in inner if isinstance(one, dict))]
        for name, value in (item for table in tables for item in table.items()):
            if name in most and _is_number(value) and not value <= most[name]:
                raise CheckpointError(
                    f"{self.source}: config.json sets {name} to {value}, but the weights have only {len(self.shapes)} "
                    f"tensors, of sizes up to {largest}; check that config.json and the weights belong together"
                )
            rotates = value in (None, 1) or (partial and _is_number(value) and 0 < value < 1)
            if name == "partial_rotary_factor" and not rotates:
                rotated = "a share of each head" if partial else "1: this network rotates whole heads"
                raise CheckpointError(f"{self.source}: config.json sets {name} to {value}, which should be {rotated}")

    def described(self) -> AbstractContextManager[None]:
        """What transformers raises while it reads config.json becomes one line."""
        return reading(f"{self.source}: config.json", ORIGINAL, CheckpointError)

    @cached_property
    def files(self) -> dict[str, Path]:
        """Tensor name → the safetensors file that holds it."""
        single, index = self.folder / SINGLE, self.folder / INDEX
        if single.exists():  # where both are there, transformers reads the single file, and so do we
            with opened(single, self.source) as tensors:
                return dict.fromkeys(tensors.keys(), single)
        if not index.exists():
            raise no_weights(self.source, (path.name for path in self.folder.iterdir()))
        weights = read_table(index).get("weight_map")
        if not isinstance(weights, dict) or not weights:
            raise CheckpointError(f"{self.source}: {INDEX} has no weight_map; download it again")
        shards = {str(shard) for shard in weights.values()}
        if any(Path(shard).name != shard for shard in shards):
            raise CheckpointError(f"{self.source}: {INDEX} names files outside the folder; refusing to read them")
        lost = sorted(shard for shard in shards if not (self.folder / shard).is_file())
        if lost:
            raise CheckpointError(
                f"{self.source}: {INDEX} names {', '.join(lost)}, which is not there; download it again"
            )
        return {name: self.folder / str(shard) for name, shard in weights.items()}

    @cached_property
    def headers(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Tensor name → dtype, in the words of safetensors, and shape; checks on the way that index and shards agree."""
        headers: dict[str, tuple[str, tuple[int, ...]]] = {}
        for path in sorted(set(self.files.values())):
            with opened(path, self.source) as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    header = tensors.get_slice(name)
                    headers[name] = header.get_dtype(), tuple(header.get_shape())
        if wrong := sorted(set(headers) ^ set(self.files)):
            raise CheckpointError(
                f"{self.source}: index and shards disagree about {listed(wrong, LISTED)}; download it again"
            )
        return headers

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name → shape."""
        return {name: shape for name, (_, shape) in self.headers.items()}

    @cached_property
    def stored_dtype(self) -> torch.dtype:
        """The dtype the weights were saved in (of the first tensor), which `dtype="auto"` takes on a GPU."""
        return FULL.get(self.headers[next(iter(self.files))][0], torch.float32)

    @cached_property
    def quantised(self) -> str:
        """How the weights are quantised: "gptq", "bitsandbytes", …; empty: they are not.

        The tensors decide and not config.json: a model that was saved again in full precision may still carry the
        `quantization_config` of the file that it came from.
        """
        settings = self.config.get("quantization_config")
        odd = {name: shape for name, (dtype, shape) in self.headers.items() if dtype not in FULL}
        if not settings:  # without settings buffers may be whole numbers, and weights may not
            odd = {name: shape for name, shape in odd.items() if name.endswith(".weight") and len(shape) > 1}
        method = settings.get("quant_method") if isinstance(settings, dict) else None
        return str(method or "an unknown method") if odd else ""

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all that decides what the model computes: weight files, config and tokenizer.

        The hub's cache names large files by their SHA-256 already; anything else is read once.
        """
        total = hashlib.sha256()
        for path in sorted(set(self.files.values())):
            total.update(f"{path.name}:{file_digest(path)}\n".encode())
        settings = {"config.json": self.config, "generation_config.json": self.generation_config}
        total.update(json.dumps(settings, sort_keys=True).encode())
        for name in TOKENIZER_FILES:
            if (self.folder / name).is_file():
                total.update(f"{name}:{file_digest(self.folder / name)}\n".encode())
        return total.hexdigest()

    def tensors(self, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Every tensor in turn, read straight to `device`; only one is held at a time."""
        for path in sorted(set(self.files.values())):
            with opened(path, self.source, str(device)) as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    yield name, tensors.get_tensor(name)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class StoredParts:
    """A stored tensor that becomes parts of parameters: a piece of a larger one, or several.

    Attributes:
        shape: of the stored tensor.
        pieces: index into the stored tensor, name of the parameter, index into the parameter.
    """

    shape: tuple[int, ...]
    pieces: tuple[tuple[Any, str, Any], ...]


def fill(
    network: nn.Module,
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    device: torch.device,
    dtype: torch.dtype,
    make_room: Callable[[], Mapping[str, Tensor]] | None = None,
    parts: Mapping[str, StoredParts] | None = None,
    exact: Collection[str] = (),
) -> None:
    """Puts the checkpoint's tensors into a network that was built without memory (on the meta device).

    Args:
        names: name in the checkpoint → name in the network, for every parameter that must be there.
        make_room: gives name in the network → memory that this parameter should lie in; the others bring their own. Called
            once names and shapes are known to fit.
        parts: name in the checkpoint → the parts of parameters that it becomes. Their memory is made once and each tensor is
            copied to its place as it is read, so no weight is held twice.
        exact: parameters and buffers that keep the dtype they were stored in.
    """
    parts = parts or {}
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    shapes = {name: tuple(tensors[target].shape) for name, target in names.items()}
    shapes |= {name: stored.shape for name, stored in parts.items()}
    missing = sorted(name for name in shapes if name not in checkpoint.shapes)
    unexpected = sorted(name for name in checkpoint.shapes if name not in shapes)
    misshapen = sorted(
        f"{name} {list(checkpoint.shapes[name])} instead of {list(shape)}"
        for name, shape in shapes.items()
        if name in checkpoint.shapes and checkpoint.shapes[name] != shape
    )
    complain(checkpoint.source, missing, unexpected, misshapen)
    room = dict({} if make_room is None else make_room())
    for target in {target for stored in parts.values() for _, target, _ in stored.pieces}:
        if target not in room:
            room[target] = torch.empty(tensors[target].shape, device=device, dtype=dtype)
        # The parameter gets its memory now and its values below, piece by piece.
        _assign(network, target, room[target])
    for name, tensor in checkpoint.tensors(device):
        if name in parts:
            for taken, target, index in parts[name].pieces:
                room[target][index].copy_(tensor[taken])
            continue
        target = names[name]
        if target in room:
            tensor = room[target].copy_(tensor)
        precision = tensor.dtype if target in exact else dtype
        _assign(network, target, tensor.to(device=device, dtype=precision))


def _assign(network: nn.Module, target: str, tensor: Tensor) -> None:
    """Make a tensor a parameter or buffer of the network, in place of the one on the meta device."""
    module, _, leaf = target.rpartition(".")
    owner = network.get_submodule(module)
    if leaf in owner._buffers:
        owner._buffers[leaf] = tensor
    else:
        setattr(owner, leaf, nn.Parameter(tensor, requires_grad=False))


def complain(source: str, missing: list[str], unexpected: list[str], misshapen: list[str]) -> None:
    """Raises one error for all tensors that do not fit, or nothing."""
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen}
    parts = [f"{len(names)} {kind}: {listed(names, LISTED)}" for kind, names in kinds.items() if names]
    if parts:
        raise CheckpointError(
            f"{source}: the weights do not fit config.json; tensors {'; '.join(parts)}. "
            "Check that config.json and the weights belong together"
        )


def no_weights(source: str, files: Iterable[str]) -> CheckpointError:
    """The error about a checkpoint that has these files, and no safetensors among them."""
    pickles = sorted(name for name in files if name.endswith(".bin"))
    if pickles:
        return CheckpointError(
            f"{source} holds only {pickles[0]}, a pickle, which sinkscope does not open; convert it with transformers: "
            "AutoModelForCausalLM.from_pretrained(name).save_pretrained(new_folder)"
        )
    return CheckpointError(f"{source} has no weights: expected {SINGLE} or {INDEX} with its shards")


def opened(path: Path, source: str, device: str = "cpu") -> Any:
    """A safetensors file, or an error that says what to do with a broken one."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(str(path), framework="pt", device=device)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{source}: {path.name} is not a complete safetensors file ({one_line(error)}); download it again"
        ) from error


def read_table(path: Path, complaint: str = "") -> dict[str, Any]:
    """A JSON object from a file, or a clear error."""
    if not path.exists():
        raise CheckpointError(f"{complaint}: no {path.name} in {path.parent}")
    table: dict[str, Any] = read_json(path, "download it again", CheckpointError)
    return table


def file_digest(path: Path) -> str:
    """SHA-256 of a file; links into the hub's own cache are named by it."""
    blob = path.resolve()
    hexadecimal = len(blob.name) == 64 and all(letter in "0123456789abcdef" for letter in blob.name)
    if hexadecimal and path.is_symlink() and blob.parent.name == "blobs" and _in_hub_cache(blob):
        return blob.name
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _in_hub_cache(path: Path) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE

    return path.is_relative_to(Path(HF_HUB_CACHE).resolve())
