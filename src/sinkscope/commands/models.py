"""`sinkscope models`: the families, or what one checkpoint is."""

from __future__ import annotations

from math import prod
from typing import Any

from sinkscope.commands.output import show_json, show_pairs, show_table, working
from sinkscope.models.load import FAMILIES, family_of, find, load, resolve_device, resolve_dtype
from sinkscope.models.tokenizer import read_tokenizer

UNNAMED = {True: "none: a causal model", False: "not named: give ss.load(…, mask_token_id=…)"}
BYTES = {"float32": 4, "bfloat16": 2}


def models(
    source: str | None, check: bool, device: str, dtype: str, revision: str | None, json: bool = False
) -> None:
    """Print the families, or what one checkpoint is."""
    if source is None:
        list_families(json)
    else:
        describe(source, revision, check, device, dtype, json)


def list_families(json: bool) -> None:
    """Print the families, and the checkpoints we know with the settings of their official evaluations."""
    families = [
        {"name": one.name, "model_type": ", ".join(one.model_types) or "any other", "what it is": one.about}
        for one in FAMILIES.values()
    ]
    settings = "official settings (published score)"
    known = [
        {"checkpoint": entry.source, "family": family.name, settings: entry.settings}
        for family in FAMILIES.values()
        for entry in family.known
    ]
    if json:
        show_json({"families": families, "checkpoints": known})
        return
    for rows, title in ((families, "Families"), (known, "Known checkpoints")):
        show_table(tuple(rows[0]), [tuple(row.values()) for row in rows], title)


def describe(source: str, revision: str | None, check: bool, device: str, dtype: str, json: bool) -> None:
    """Print what a checkpoint is, from its config and the headers of its weights; with `check`, load and test it."""
    resolve_device(device)
    checkpoint = find(source, revision)
    resolve_dtype(dtype, resolve_device(device), checkpoint)
    known = facts(checkpoint)
    if not json:
        show_pairs(known, checkpoint.source)
    if not check:
        if json:
            show_json({"source": checkpoint.source, **known})
        return
    with working(f"loading and checking {source}"):
        model = load(source, device, dtype, revision)
        result = model.check()
    if json:
        findings = [{**vars(finding), "passed": finding.passed} for finding in result.findings]
        show_json({"source": checkpoint.source, **known, "check": findings})
    else:
        rows = [
            (row.what, f"{row.measured:.2g}", f"{row.bound:.2g}", "ok" if row.passed else "FAILED")
            for row in result.findings
        ]
        title = f"Self-check in {model.dtype} on {model.device}"
        show_table(("checked", "measured", "bound", ""), rows, title)
    result.require()


def facts(checkpoint: Any) -> dict[str, Any]:
    """What `sinkscope models MODEL` prints, by name."""
    family = family_of(checkpoint)
    with checkpoint.described():
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
        "mask id": UNNAMED[family.causal] if ids.mask is None else ids.mask,
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
