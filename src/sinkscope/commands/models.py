"""`sinkscope models`: the families, or what one checkpoint is."""

from __future__ import annotations

from math import prod
from typing import Any

from sinkscope.commands.output import show_json, show_pairs, show_table, working
from sinkscope.models.catalogue import FAMILY_NOTES, KNOWN

BYTES = {"float32": 4, "bfloat16": 2}


def list_families(json: bool = False) -> None:
    """Print the families, and the checkpoints we know with the settings of their official evaluations."""
    if json:
        show_json({"families": FAMILY_NOTES, "checkpoints": KNOWN})
        return
    families = [(note.name, note.model_types, note.what) for note in FAMILY_NOTES]
    show_table(("family", "model_type", "what it is"), families, "Families")
    known = [(entry.source, entry.family, entry.settings) for entry in KNOWN]
    show_table(("checkpoint", "family", "official settings (published score)"), known, "Known checkpoints")


def describe(
    source: str, revision: str | None, check: bool, device: str, dtype: str, json: bool = False
) -> None:
    """Print what a checkpoint is, from its config and the headers of its weights; with `check`, load and test it."""
    from sinkscope.models.load import find, resolve_device, resolve_dtype

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
    from sinkscope.models.load import load

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
    from sinkscope.models.causal import FAMILY, architecture
    from sinkscope.models.dream import qwen_settings
    from sinkscope.models.llada import llama_settings
    from sinkscope.models.load import FAMILIES
    from sinkscope.models.tokenizer import read_tokenizer

    family = FAMILIES.get(checkpoint.model_type, FAMILY)
    if family.name == "causal":
        config = architecture(checkpoint)[1].get_text_config()
        sizes = {
            key: getattr(config, key, None)
            for key in ("num_hidden_layers", "num_attention_heads", "vocab_size")
        }
        sizes["num_key_value_heads"] = getattr(config, "num_key_value_heads", None)
        sizes["max_position_embeddings"] = getattr(config, "max_position_embeddings", None)
    else:
        sizes = qwen_settings(checkpoint) if family.name == "dream" else llama_settings(checkpoint)
    parameters = sum(prod(shape) for shape in checkpoint.shapes.values())
    tokenizer = read_tokenizer(checkpoint.folder, family.chat_template)
    ids = family.special_ids(checkpoint, tokenizer)
    heads = sizes["num_attention_heads"]
    return {
        "family": f"{family.name} (model_type {checkpoint.model_type})",
        "revision": checkpoint.revision or "a local folder",
        "layers": sizes["num_hidden_layers"],
        "heads": f"{heads} ({sizes.get('num_key_value_heads') or heads} for keys and values)",
        "vocabulary": sizes["vocab_size"],
        "context": sizes.get("max_position_embeddings") or "not stated",
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
