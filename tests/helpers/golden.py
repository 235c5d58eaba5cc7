"""The golden fixtures: small checkpoints in the official layouts and what the official code computed with them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1] / "golden"
FAMILIES = ("llada", "dream", "mmada", "llama")
"""Folder names; the family of the folder "llama" is "causal"."""

LATER = (
    "llada2", "sdar", "fast_dllm_v2", "a2d_qwen3", "a2d_llama", "open_dcoder", "llada_moe", "rnd1",
)  # fmt: skip
"""Folder names of the families that came later; the family of both a2d folders is "a2d"."""

EXPERTS = ("sdar_moe",)
"""Folder names of further networks of a family: a mixture of experts, whose family is "sdar"."""

NEWEST = ("nemotron_diffusion", "a2d_bd3lm", "diffusion_gemma")
"""Folder names of families with two modes, two loops, or a canvas; the family of the first is "nemotron", of the second "a2d"."""


@cache
def manifest(family: str) -> dict[str, Any]:
    """manifest.json of a family: what was run, special ids, tolerances, checksums."""
    return json.loads((ROOT / family / "manifest.json").read_text(encoding="utf-8"))


def checkpoint(family: str) -> Path:
    """The checkpoint folder of a family."""
    return ROOT / family / "checkpoint"


@cache
def arrays(family: str, name: str) -> dict[str, np.ndarray]:
    """All arrays of one fixture, e.g. arrays("llada", "forward_T24.npz"). Do not write into them."""
    with np.load(ROOT / family / name) as stored:
        found = {key: stored[key] for key in stored.files}
    for array in found.values():
        array.setflags(write=False)
    return found


def tensor(family: str, name: str, key: str) -> torch.Tensor:
    """One array of a fixture as a tensor of its own; token ids and masks become int64."""
    found = torch.from_numpy(np.array(arrays(family, name)[key]))
    return found if found.is_floating_point() or found.dtype == torch.bool else found.long()


def block(family: str, name: str) -> int | None:
    """The block of a forward; None: every query sees everything."""
    return manifest(family)["forward"][name].get("block")


def names(family: str, section: str) -> list[str]:
    """Fixture names of a manifest section ("forward", "sinkmask", "generate", "generation_attention")."""
    return sorted(manifest(family).get(section) or {})


def cases(
    section: str, contains: str = "", lacks: tuple[str, ...] = (), families: tuple[str, ...] = FAMILIES
) -> list[tuple[str, str]]:
    """(family, fixture) pairs of a section over families, for pytest.mark.parametrize."""
    return [
        (family, name)
        for family in families
        for name in names(family, section)
        if contains in name and not any(word in name for word in lacks)
    ]


@cache
def model(family: str, dtype: str = "float32") -> Any:
    """The golden checkpoint of a family, loaded on the CPU once per process. Tests must not change it."""
    import sinkscope as ss

    if family in FAMILIES:
        return ss.load(checkpoint(family), device="cpu", dtype=dtype)
    # Most of the newer configs name no mask token, and Open-dCoder's not even its family.
    mask = manifest(family)["special_ids"]["mask"]
    named = family if family == "open_dcoder" else None
    return ss.load(checkpoint(family), device="cpu", dtype=dtype, family=named, mask_token_id=mask)
