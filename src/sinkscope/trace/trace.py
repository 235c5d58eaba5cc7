"""Trace: one recorded generation as an `xarray.Dataset`, built when it is first looked at.

Recording needs numpy alone; xarray is imported when `trace.dataset` is used, so that a machine without it can still record.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.base.errors import InputError
from sinkscope.base.version import __version__
from sinkscope.trace import RENDERERS
from sinkscope.trace.capture import QUERY_KINDS, REGIONS, Array, Capture, Frame, Variable, variables

if TYPE_CHECKING:
    import xarray
    from torch import Tensor

    from sinkscope.decoding import Decoding
    from sinkscope.models.model import Model
    from sinkscope.policies.policy import Policy


class Trace:
    """Everything recorded about one generation.

    `trace.dataset` holds the labelled arrays (see docs/traces.md for every variable), `trace.save(path)` writes them as one
    `.zarr.zip`, `Trace.open(path)` reads them back lazily. `len(trace)` is the number of recorded steps.

    >>> len(trace), dict(trace.dataset["received"].sizes)
    (16, {'sample': 1, 'step': 16, 'layer': 8, 'head': 8, 'key': 55})
    >>> trace.dataset["received"].attrs["units"]
    'attention received, uniform attention = 1'
    >>> cache = trace.to_activation_cache(sample=0, step=3)
    >>> cache["blocks.2.attn.hook_received"].shape    # [1, head, key]
    torch.Size([1, 8, 55])
    """

    def __init__(self, dataset: xarray.Dataset | None = None, parts: TraceParts | None = None) -> None:
        self._dataset = dataset
        self._parts = parts

    @property
    def dataset(self) -> xarray.Dataset:
        """The labelled arrays: dims sample, step, layer, head, key (and query for maps)."""
        if self._dataset is None:
            if self._parts is None:
                raise InputError("this trace is empty")
            self._dataset = self._parts.dataset()
        return self._dataset

    @property
    def attributes(self) -> dict[str, Any]:
        """Where the trace came from: model, revision, weights digest, dtype, decoding, policy, seed, versions."""
        return dict(self._parts.attributes) if self._parts is not None else dict(self.dataset.attrs)

    def __len__(self) -> int:
        return len(self._parts.steps) if self._parts is not None else int(self.dataset.sizes["step"])

    def tokens_at(self, step: int, sample: int = 0) -> list[str]:
        """The tokens that went into the forward of a step, as text where the trace knows it, else as `⟨id⟩`.

        Padding and positions that do not exist yet are left out.
        """
        ids = self.dataset["tokens"].isel(sample=sample).sel(step=step).values
        real = (self.dataset["region"].isel(sample=sample).values != "padding") & (ids >= 0)
        return [self.token_text(int(number)) for number in ids[real]]

    def token_text(self, number: int) -> str:
        """The text of a token id."""
        return self._texts.get(number, f"⟨{number}⟩")

    @cached_property
    def _texts(self) -> dict[int, str]:
        texts = json.loads(self.attributes.get("token_texts") or "{}")
        return {int(number): text for number, text in texts.items() if number.isdecimal()}

    def masked_keys(self) -> xarray.DataArray:
        """Bool (sample, step, layer, head, key): the keys that the policy masked; stored as one bit each."""
        import xarray

        if "masked_keys" not in self.dataset:
            raise InputError("this trace has no masked keys: it was recorded without a policy, or at level 'layers'")
        packed = self.dataset["masked_keys"]
        bits = np.unpackbits(packed.values, axis=-1)[..., : self.dataset.sizes["key"]].astype(bool)
        coords = {dim: self.dataset[dim] for dim in (*packed.dims[:-1], "key")}
        return xarray.DataArray(bits, coords=coords, dims=(*packed.dims[:-1], "key"), name="masked_keys")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one `.zarr.zip`; received attention is stored as float16 (relative error up to 2⁻¹¹)."""
        from sinkscope.trace.storage import save

        save(self, path)

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Trace:
        """Reads a finished `.zarr.zip`, or a `.partial` folder up to its last complete step, lazily."""
        from sinkscope.trace.storage import open_trace

        return open_trace(path)

    def to_activation_cache(self, sample: int = 0, step: int = 0) -> dict[str, Tensor]:
        """Activations of one step by TransformerLens' names.

        Returns:
            `blocks.L.attn.hook_pattern` Float [1, head, query, key] if maps were recorded, and for each layer what else the
            trace holds: `blocks.L.attn.hook_received` [1, head, key] (uniform = 1), norms of values, keys and hidden states.
        """
        from sinkscope.trace.export import activation_cache

        return activation_cache(self, sample, step)

    def save_step(self, path: str | os.PathLike[str], sample: int = 0, step: int = 0) -> None:
        """Writes the numbers of one step as a safetensors file."""
        from sinkscope.trace.export import save_step

        save_step(self, path, sample, step)

    def to_html(self, path: str | os.PathLike[str], other: Trace | None = None, heads: Any = ()) -> None:
        """Writes a viewer of this trace, with another one if given, as one HTML file; heads: (layer, head) to embed in full."""
        _renderer("html")(path, self, other, heads=heads)

    def to_widget(self, other: Trace | None = None, heads: Any = (), height: int = 760) -> Any:
        """The same view inside a notebook, as an anywidget (extra `notebook`); `state` mirrors the view and can be assigned."""
        return _renderer("widget")(self, other, heads, height)

    def __repr__(self) -> str:
        sizes = self.dataset.sizes
        about = self.attributes
        inside = ", ".join(f"{name} {size}" for name, size in sizes.items())
        return f"<sinkscope trace of {about.get('model', 'an unknown model')} ({about.get('family', '?')}): {inside}>"

    def _repr_html_(self) -> str:
        """Facts and a heat map of received attention (step × position, mean over layers and heads)."""
        return str(_renderer("preview")(self))


def _renderer(form: str) -> Any:
    """The function that shows a trace in a form; imported when it is first asked for."""
    return resolve_name(RENDERERS[form])


@dataclass
class TraceParts:
    """A recording in memory, before it is an xarray.Dataset: variable → one array [B, …] per recorded step."""

    frame: Frame
    capture: Capture
    steps: list[int] = field(default_factory=list)
    arrays: dict[str, list[Array]] = field(default_factory=dict)
    static: dict[str, Array] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)

    def write(self, index: int, step: int, arrays: dict[str, Array]) -> None:
        """Takes one recorded step; `index` counts those, `step` all steps."""
        self.steps.append(step)
        for name, array in arrays.items():
            self.arrays.setdefault(name, []).append(array)

    def close(self, static: dict[str, Array], attributes: dict[str, Any]) -> Trace:
        """The finished trace."""
        self.static, self.attributes = static, attributes
        return Trace(parts=self)

    def abandon(self) -> None:
        """Nothing to do: memory goes with the process."""

    def dataset(self) -> xarray.Dataset:
        """The labelled arrays."""
        import xarray

        arrays = {name: np.stack(steps, 1) for name, steps in self.arrays.items()} | self.static
        arrays["region"] = np.asarray(REGIONS)[arrays["region"].astype(int)]
        named = variables(self.frame, self.capture)
        labelled: dict[str, Any] = {
            name: (variable.dims, arrays[name], {"units": variable.unit})
            for name, variable in named.items()
            if name in arrays
        }
        coords = coordinates(self.frame, self.steps, named)
        return xarray.Dataset(labelled, coords, dict(self.attributes))


def coordinates(frame: Frame, steps: list[int], named: Mapping[str, Variable]) -> dict[str, Any]:
    """Coordinate → labels of its dimension, for those that one of the variables has."""
    labels: dict[str, Any] = {
        "sample": np.arange(frame.rows), "step": np.asarray(steps, dtype=np.int64), "layer": np.asarray(frame.layers),
        "key": np.arange(frame.columns), "head": np.asarray(frame.heads), "query": np.arange(frame.columns),
        "kv_head": np.arange(frame.kv_heads), "query_kind": list(QUERY_KINDS),
    }  # fmt: skip
    there = {dim for variable in named.values() for dim in variable.dims}
    return {dim: values for dim, values in labels.items() if dim in there}


def provenance(
    model: Model,
    decoding: Decoding,
    policy: Policy | None,
    capture: Capture,
    seed: int | list[int] | None,
    extras: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What a trace must be able to say about where it came from; all values are JSON or text; extras: their texts."""
    import torch
    import transformers

    versions = {
        "sinkscope": __version__, "torch": torch.__version__, "transformers": transformers.__version__,
        "python": platform.python_version(),
    }  # fmt: skip
    special = {"mask": model.ids.mask, "eos": list(model.ids.eos), "bos": model.ids.bos, "pad": model.ids.pad}
    return {
        "model": model.source, "revision": model.revision or "", "weights_digest": model.digest, "family": model.family,
        "n_heads": model.shape.heads, "n_kv_heads": model.shape.kv_heads,
        "dtype": str(model.dtype).removeprefix("torch."), "device": str(model.device),
        "decoding": decoding.to_json(), "policy": "" if policy is None else str(policy), **(extras or {}),
        **({} if model.variant is None else model.variant.reach),
        "capture": capture.to_json(), "seed": json.dumps(seed), "versions": json.dumps(versions),
        "special_ids": json.dumps(special), "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def token_texts(model: Model, ids: list[int]) -> dict[str, str]:
    """The text of each token id, so that it can be read without the tokenizer."""
    if model.tokenizer is None:
        return {}
    decode, there = model.tokenizer.decode, model.tokenizer.convert_ids_to_tokens
    texts = {n: decode([n], clean_up_tokenization_spaces=False) if there(n) else f"⟨{n}⟩" for n in ids}
    return {"token_texts": json.dumps(texts, ensure_ascii=False)}
