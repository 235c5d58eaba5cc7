"""`sinkscope models`: the families, or what one checkpoint is."""

from __future__ import annotations

from math import prod
from typing import Any

from rich.console import Console
from rich.table import Table

BYTES = {"float32": 4, "bfloat16": 2}


def list_families() -> None:
    """Two tables: the families, and the checkpoints we know with the settings of their official evaluations."""
    from sinkscope.models.load import FAMILIES

    console = Console()
    families = Table("family", "model_type", "what it is", title="Families", title_justify="left")
    for family in FAMILIES.values():
        families.add_row(family.name, ", ".join(family.model_types) or "any other", family.about)
    known = Table(
        "checkpoint",
        "family",
        "official settings (published score)",
        title="Known checkpoints",
        title_justify="left",
    )
    for family in FAMILIES.values():
        for entry in family.known:
            known.add_row(entry.source, family.name, entry.settings)
    console.print(families)
    console.print(known)


def describe(source: str, revision: str | None, check: bool, device: str, dtype: str) -> None:
    """What a checkpoint is, read from its config and the headers of its weights; with `check`, loaded and proved."""
    from sinkscope.models.load import find, resolve_device, resolve_dtype

    resolve_device(device)
    checkpoint = find(source, revision)
    resolve_dtype(dtype, resolve_device(device), checkpoint)
    console = Console()
    table = Table(show_header=False, title=checkpoint.source, title_justify="left")
    for name, value in facts(checkpoint).items():
        table.add_row(name, str(value))
    console.print(table)
    if check:
        _check(console, source, revision, device, dtype)


def facts(checkpoint: Any) -> dict[str, Any]:
    """What `sinkscope models SOURCE` prints, by name."""
    from sinkscope.models.load import family_of
    from sinkscope.models.tokenizer import read_tokenizer

    family = family_of(checkpoint)
    config = family.config(checkpoint)
    parameters = sum(prod(shape) for shape in checkpoint.shapes.values())
    tokenizer = read_tokenizer(checkpoint.folder, family.chat_template)
    ids = family.special_ids(checkpoint, tokenizer)
    heads = config.num_attention_heads
    return {
        "family": f"{family.name} (model_type {checkpoint.model_type})",
        "revision": checkpoint.revision or "a local folder",
        "layers": config.num_hidden_layers,
        "heads": f"{heads} ({getattr(config, 'num_key_value_heads', None) or heads} for keys and values)",
        "vocabulary": config.vocab_size,
        "context": getattr(config, "max_position_embeddings", None) or "not stated",
        "parameters": f"{parameters:,}",
        "mask id": "none: a causal model" if ids.mask is None else ids.mask,
        "end ids": ", ".join(map(str, ids.eos)) or "none",
        "tokenizer": "none: text prompts will not work, ids will"
        if tokenizer is None
        else f"{len(tokenizer)} tokens",
        "memory for weights": ", ".join(
            f"{amount(size * parameters)} in {name}" for name, size in BYTES.items()
        ),
    }


def amount(size: int) -> str:
    """Bytes in the unit a person would use."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _check(console: Console, source: str, revision: str | None, device: str, dtype: str) -> None:
    from sinkscope.models.load import load

    with console.status("loading and checking"):
        model = load(source, device, dtype, revision)
        result = model.check()
    table = Table(
        "checked",
        "measured",
        "bound",
        "",
        title=f"Self-check in {model.dtype} on {model.device}",
        title_justify="left",
    )
    for finding in result.findings:
        table.add_row(
            finding.what,
            f"{finding.measured:.2g}",
            f"{finding.bound:.2g}",
            "ok" if finding.passed else "FAILED",
        )
    console.print(table)
    result.require()
