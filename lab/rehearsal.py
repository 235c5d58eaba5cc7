"""The paper's study, rehearsed: `python -m lab.rehearsal FOLDER --size tiny`.

Writes checkpoints of its four models in their official layouts with random weights (sizes, shards, index, the real tokenizers),
runs `sinkscope study` with the paper's models, tasks and policies on a few documents per cell, kills it with SIGKILL in the
middle, runs the same command again, and checks what is there: every answer once, those before the kill unchanged, tables and
report. Answers are nonsense; loading, prompts, grading, traces and the way back from a kill are real.

    SINKSCOPE_SHARED=../shared python -m lab.rehearsal /tmp/rehearsal --size tiny --length 8    # minutes on a CPU
    SINKSCOPE_SHARED=… python -m lab.rehearsal /tmp/rehearsal --models llada --documents 4      # one 8B model: 16 GB of disk
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sinkscope
from sinkscope.bench.shapes import SHAPES, llada_tensors, llama_tensors
from sinkscope.organisms.layout import save_tensors, write_json
from sinkscope.study import spec

SHARD_BYTES = 5_000_000_000
LAYOUTS = Path(sinkscope.__file__).parent / "organisms" / "data" / "layouts.json"
MMADA = {
    "model_type": "mmada", "vocab_size": 134656, "embedding_size": 134656, "new_vocab_size": 134656, "llm_vocab_size": 126464,
    "codebook_size": 8192, "num_vq_tokens": 1024, "num_new_special_tokens": 0,
}  # fmt: skip
MODELS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "llada": ("GSAI-ML/LLaDA-8B-Instruct", "llada-8b", "llada", {}),
    "dream": ("Dream-org/Dream-v0-Instruct-7B", "dream-7b", "dream", {}),
    "mmada": ("Gen-Verse/MMaDA-8B-MixCoT", "llada-8b", "llada", MMADA),
    "llama": ("meta-llama/Llama-3.1-8B-Instruct", "llama-8b", "llama3", {}),
}
"""Name → hub id, shape, folder of its tokenizer, and what differs from the shape's config."""

TINY = {
    "d_model": 64, "n_heads": 4, "n_kv_heads": 4, "n_layers": 2, "mlp_hidden_size": 96, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96,
}  # fmt: skip
"""Sizes for a CPU; vocabularies stay as they are, because the tokenizers do."""


def config_of(name: str, tiny: bool) -> dict[str, Any]:
    """config.json of a model, with all keys of the official one."""
    _, shape, _, changes = MODELS[name]
    fixed = json.loads(LAYOUTS.read_text(encoding="utf-8"))
    known = {**SHAPES[shape], **changes}
    if tiny:
        known |= {key: value for key, value in TINY.items() if key in known}
    shared = {} if name in ("llada", "mmada") else fixed["transformers"]
    return {**shared, **fixed["llada" if name == "mmada" else name], **known}


def drawn(shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, Tensor]]:
    """Tensors in bfloat16: norms are 1, matrices small random numbers."""
    random = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        if len(shape) == 1:
            yield name, torch.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype=torch.bfloat16)
        else:
            yield name, torch.empty(shape, dtype=torch.bfloat16).normal_(0.0, 0.02, generator=random)


def write_checkpoint(name: str, folder: Path, tiny: bool, tokenizers: Path, shard: int = SHARD_BYTES) -> None:
    """A checkpoint in the official layout: config, shards with their index, tokenizer."""
    config = config_of(name, tiny)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    if name == "llama":
        write_json(
            folder / "generation_config.json",
            {"bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]},
        )
    shutil.copytree(tokenizers / MODELS[name][2], folder, dirs_exist_ok=True)
    shapes = (
        llada_tensors(config) if name in ("llada", "mmada") else llama_tensors(config, biased=name == "dream")
    )
    parts: list[list[str]] = [[]]
    filled = 0
    for tensor, shape in shapes.items():
        size = 2 * torch.Size(shape).numel()
        if filled and filled + size > shard:
            parts.append([])
            filled = 0
        parts[-1].append(tensor)
        filled += size
    files = {
        name: f"model-{i:05d}-of-{len(parts):05d}.safetensors"
        for i, part in enumerate(parts, 1)
        for name in part
    }
    held: dict[str, Tensor] = {}
    for tensor, value in drawn(shapes):
        held[tensor] = value
        if len(held) == len(parts[0]):
            save_tensors(held, folder / files[tensor])
            held = {}
            parts.pop(0)
    total = sum(2 * torch.Size(shape).numel() for shape in shapes.values())
    write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": files}
    )


def write_study(
    folder: Path, names: Sequence[str], documents: int, length: int | None, policies: Sequence[str]
) -> Path:
    """The study `paper` with these checkpoints in place of the hub's, on a few documents, perhaps with shorter answers."""
    data = spec.read_data("paper")
    data["name"] = "rehearsal"
    data["models"] = [
        {"source": str(folder / name), "name": MODELS[name][0], "dtype": "bfloat16"} for name in names
    ]
    data["decodings"]["short"] = {
        "causal": {"length": length}, "dream": {"length": length, "steps": length},
        **{family: {"length": length, "steps": length, "block": length} for family in ("llada", "mmada")},
    }  # fmt: skip
    for block in [*data["evaluate"], *data["trace"]]:
        block["samples"] = documents
        block["seeds"] = [0]
        if length is not None:
            block["decodings"] = ["short"]
    for block in data["evaluate"] if policies else ():
        block["policies"] = list(policies)
    if length is None:
        del data["decodings"]["short"]
    path = folder / "rehearsal.toml"
    path.write_text(spec.to_toml(spec.from_data(data)), encoding="utf-8")
    return path


def records(out: Path) -> dict[str, str]:
    """File of records → its text."""
    return {
        str(path.relative_to(out)): path.read_text()
        for path in sorted(out.glob("cells/*/shards/*/generations.jsonl"))
    }


def answers(out: Path) -> int:
    """Answers that are saved."""
    return sum(text.count("\n") for text in records(out).values())


def killed(words: Sequence[str], out: Path, after: int) -> int:
    """Start a command, and kill it and its workers once so many answers are saved; the answers that are there then."""
    process = subprocess.Popen(words, start_new_session=True)  # noqa: S603 (our own command)
    while answers(out) < after:
        if process.poll() is not None:
            raise RuntimeError(f"the study ended before {after} answers were there")
        time.sleep(0.5)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return answers(out)


def rehearse(folder: Path, words: Sequence[str], out: Path, wanted: int) -> dict[str, Any]:
    """Run, kill, run again, and check; what was seen."""
    begun = time.monotonic()
    saved = killed(words, out, wanted // 3)
    before = records(out)
    subprocess.run(words, check=True)  # noqa: S603 (our own command)
    after = records(out)
    for name, text in before.items():  # the last line may have been cut by the kill
        whole = text[: text.rfind("\n") + 1]
        if not after[name].startswith(whole):
            raise RuntimeError(f"{name} was written anew after the kill")
    found = answers(out)
    if found != wanted:
        raise RuntimeError(f"{found} answers are there, {wanted} are wanted")
    seconds = round(time.monotonic() - begun, 1)
    return {
        "answers": found,
        "before_the_kill": saved,
        "seconds": seconds,
        "report": (out / "report.html").is_file(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--documents", type=int, default=2, help="documents per cell")
    parser.add_argument("--length", type=int, help="tokens and steps of an answer; default: the paper's")
    parser.add_argument(
        "--policies", default="", help="such as none;top:1; default: the paper's and its controls"
    )
    parser.add_argument("--tokenizers", type=Path, help="default: SINKSCOPE_SHARED/tokenizers")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--bare", action="store_true", help="answers only, where there is torch and little else"
    )
    given = parser.parse_args(arguments)
    shared = Path(os.environ.get("SINKSCOPE_SHARED", "../shared"))
    names = given.models.split(",")
    for name in names:
        if not (given.folder / name).exists():
            tiny = given.size == "tiny"
            shard = 20_000_000 if tiny else SHARD_BYTES
            write_checkpoint(
                name, given.folder / name, tiny, given.tokenizers or shared / "tokenizers", shard
            )
    policies = [policy for policy in given.policies.split(";") if policy]
    study = write_study(given.folder, names, given.documents, given.length, policies)
    out = given.folder / "study"
    files = {
        "gsm8k": shared / "data" / "gsm8k_test.jsonl",
        "humaneval": shared / "data" / "HumanEval.jsonl.gz",
    }
    data = [word for task, path in files.items() for word in ("--data", f"{task}={path}")]
    module = ["sinkscope.study"] if given.bare else ["sinkscope", "study"]
    words = [
        sys.executable,
        "-m",
        *module,
        str(study),
        "--out",
        str(out),
        "--device",
        given.device,
        "--shard",
        "8",
        *data,
    ]
    wanted = planned(study, given.bare)
    print(json.dumps(rehearse(given.folder, words, out, wanted)))


def planned(study: Path, evaluations: bool) -> int:
    """The answers that the study wants; maps of exemplars come besides, one for each model of the block `sequences`."""
    from sinkscope.study.cells import outline
    from sinkscope.study.facts import facts_of

    known = spec.read(study)
    cells = outline(known, {model.name: facts_of(model, "cpu") for model in known.models}, exact=False)
    maps = 0 if evaluations else sum(grid.maps * len(known.models_of(grid)) for grid in known.trace)
    return maps + sum(cell.answers for cell in cells if cell.kind == "evaluate" or not evaluations)


if __name__ == "__main__":
    main()
