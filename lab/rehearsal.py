"""A study of large models, rehearsed: `python -m lab.rehearsal FOLDER --size tiny`; `--study families` or `pairs` for those.

Writes checkpoints of its models in their official layouts with random weights (sizes, shards, index, tokenizers), runs
`sinkscope study` with its models, tasks and policies on a few documents per cell, kills it with SIGKILL in the middle, runs the
same command again, and checks what is there: every answer once, those before the kill unchanged, tables and report. Answers are
nonsense; loading, prompts, grading, traces and the way back from a kill are real. LLaDA, Dream, MMaDA and Llama have their real
tokenizers; the newer families have LLaDA's or Dream's, with their own special ids.

    SINKSCOPE_SHARED=../shared python -m lab.rehearsal /tmp/rehearsal --size tiny --length 8    # minutes on a CPU
    SINKSCOPE_SHARED=… python -m lab.rehearsal /tmp/rehearsal --models llada --documents 4      # one 8B model: 16 GB of disk
    SINKSCOPE_SHARED=… python -m lab.rehearsal /tmp/pairs --study pairs --size tiny --length 8 --policies "none;top:1"
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
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sinkscope
from sinkscope.bench.shapes import SHAPES, tensors_of
from sinkscope.organisms.layout import save_tensors, write_json
from sinkscope.study import spec

SHARD_BYTES = 5_000_000_000
LAYOUTS = Path(sinkscope.__file__).parent / "organisms" / "data" / "layouts.json"
MMADA = {
    "model_type": "mmada", "vocab_size": 134656, "embedding_size": 134656, "new_vocab_size": 134656, "llm_vocab_size": 126464,
    "codebook_size": 8192, "num_vq_tokens": 1024, "num_new_special_tokens": 0,
}  # fmt: skip
LLADA_MOE = {
    "model_type": "llada", "architectures": ["LLaDAMoEModelLM"], "hidden_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 16, "num_key_value_heads": 16, "dense_intermediate_size": 8192, "expert_intermediate_size": 1024,
    "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 157184, "qk_layernorm": True, "rope_theta": 50000.0,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "eos_token_id": 156892,
}  # fmt: skip
FAST_DLLM = {"model_type": "Fast_dLLM_Qwen", "mask_token_id": 151665, "eos_token_id": 151645, "bd_size": 32}
QWEN3: dict[str, Any] = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "mask_token_id": None, "block_size": None,
    "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
QWEN3_SMALL = {
    "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 28,
    "intermediate_size": 3072,
}  # fmt: skip
RND1 = {
    "model_type": "rnd1", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "norm_topk_prob": True, "eos_token_id": 151645, "block_size": None,
}  # fmt: skip
CODER: dict[str, Any] = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "num_attention_heads": 14,
    "num_key_value_heads": 2, "num_hidden_layers": 24, "intermediate_size": 4864, "tie_word_embeddings": False,
    "hidden_act": "silu",
}  # fmt: skip
MODELS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "llada": ("GSAI-ML/LLaDA-8B-Instruct", "llada-8b", "llada", {}),
    "dream": ("Dream-org/Dream-v0-Instruct-7B", "dream-7b", "dream", {}),
    "mmada": ("Gen-Verse/MMaDA-8B-MixCoT", "llada-8b", "llada", MMADA),
    "llama": ("meta-llama/Llama-3.1-8B-Instruct", "llama-8b", "llama3", {}),
    "llada_moe": ("inclusionAI/LLaDA-MoE-7B-A1B-Instruct", "", "llada", LLADA_MOE),
    "llada2": ("inclusionAI/LLaDA2.0-mini", "llada2-mini", "llada", {}),
    "llada21": ("inclusionAI/LLaDA2.1-mini", "llada2-mini", "llada", {}),
    "sdar": ("JetLM/SDAR-8B-Chat", "sdar-8b", "dream", {}),
    "fast_dllm": ("Efficient-Large-Model/Fast_dLLM_v2_7B", "dream-7b", "dream", FAST_DLLM),
    "a2d": (
        "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1",
        "sdar-8b",
        "dream",
        {**QWEN3_SMALL, "model_type": "a2d-qwen3"},
    ),
    "rnd1": ("radicalnumerics/RND1-Base-0910", "sdar-8b", "dream", RND1),
    "open-dcoder": ("fredzzp/open-dcoder-0.5B", "dream-7b", "dream", {**CODER, "mask_token_id": 151666}),
    "qwen3": ("Qwen/Qwen3-8B", "sdar-8b", "dream", QWEN3),
    "qwen3-small": ("Qwen/Qwen3-0.6B", "sdar-8b", "dream", {**QWEN3, **QWEN3_SMALL}),
    "coder": ("Qwen/Qwen2.5-Coder-0.5B", "dream-7b", "dream", {**CODER, "mask_token_id": None}),
}
"""Name → hub id, shape, folder of its tokenizer, and what differs from the shape's config; None: it does not have that key."""

TINY = {
    "d_model": 64, "n_heads": 4, "n_kv_heads": 4, "n_layers": 2, "mlp_hidden_size": 96, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96, "head_dim": 16,
    "dense_intermediate_size": 96, "expert_intermediate_size": 32, "moe_intermediate_size": 32, "num_experts": 8,
    "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
}  # fmt: skip
"""Sizes for a CPU; vocabularies stay as they are, because the tokenizers do."""


def config_of(name: str, tiny: bool) -> dict[str, Any]:
    """config.json of a model, with all keys of the official one."""
    _, shape, _, changes = MODELS[name]
    fixed = json.loads(LAYOUTS.read_text(encoding="utf-8"))
    known = {**SHAPES.get(shape, {}), **changes}
    if tiny:
        known |= {key: value for key, value in TINY.items() if key in known}
    layout = fixed.get("llada" if name == "mmada" else name, {})
    shared = {} if name in ("llada", "mmada") else fixed["transformers"]
    return {key: value for key, value in {**shared, **layout, **known}.items() if value is not None}


def drawn(shapes: dict[str, tuple[int, ...]], seed: int) -> Iterator[tuple[str, Tensor]]:
    """Tensors in bfloat16: norms are 1, matrices small random numbers, drawn on a GPU if there is one: a core takes minutes."""
    place = "cuda" if torch.cuda.is_available() else "cpu"
    random = torch.Generator(place).manual_seed(seed)
    for name, shape in shapes.items():
        if len(shape) == 1:
            yield name, torch.full(shape, 0.0 if name.endswith("bias") else 1.0, dtype=torch.bfloat16)
        else:
            value = torch.empty(shape, dtype=torch.bfloat16, device=place)
            yield name, value.normal_(0.0, 0.02, generator=random).cpu()


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
    shapes = tensors_of(config)
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
    # Each model its own: cells of equal weights are one.
    for tensor, value in drawn(shapes, zlib.crc32(name.encode())):
        held[tensor] = value
        if len(held) == len(parts[0]):
            save_tensors(held, folder / files[tensor])
            held = {}
            parts.pop(0)
    total = sum(2 * torch.Size(shape).numel() for shape in shapes.values())
    write_json(
        folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": files}
    )


def names_of(study: str) -> list[str]:
    """The rehearsed models of a study."""
    wanted = [model.source for model in spec.read(study).models]
    return [name for name, (source, *_) in MODELS.items() if source in wanted]


def write_study(
    folder: Path,
    names: Sequence[str],
    documents: int,
    length: int | None,
    policies: Sequence[str],
    study: str = "paper",
) -> Path:
    """A study with these checkpoints in place of the hub's, on a few documents, perhaps with shorter answers."""
    data = spec.read_data(study)
    data["name"] = "rehearsal"
    sources = {MODELS[name][0]: name for name in names}
    data["models"] = [
        {**model, "source": str(folder / sources[model["source"]]), "name": model["source"]}
        for model in data["models"]
        if model["source"] in sources
    ]
    for model in data["models"]:
        if model.get("twin") not in sources:
            model.pop("twin", None)
    if length is not None:
        for name, kinds in data["decodings"].items():
            data["decodings"][name] = {
                family: shortened(options, length) for family, options in kinds.items()
            }
        short = {
            "causal": {"length": length}, "dream": {"length": length, "steps": length},
            **{family: {"length": length, "steps": length, "block": length} for family in ("llada", "mmada")},
        }  # fmt: skip
        data["decodings"]["scheme-short"] = short
    for kind in ("evaluate", "trace"):
        for block in data[kind]:
            block["samples"] = documents
            block["seeds"] = [0]
            if length is not None and "decodings" not in block:
                block["decodings"] = ["scheme-short"]
            if "models" in block:
                block["models"] = [known for known in block["models"] if known in sources]
        data[kind] = [block for block in data[kind] if block.get("models") != []]
    for block in data["evaluate"] if policies else ():
        block["policies"] = list(policies)
    path = folder / "rehearsal.toml"
    path.write_text(spec.to_toml(spec.from_data(data)), encoding="utf-8")
    return path


def shortened(options: dict[str, Any], length: int) -> dict[str, Any]:
    """Options of a decoding for an answer, or a text, of so many tokens and steps; whole blocks at least."""
    if "share" in options or "scored" in options:  # a reading
        return {**options, "length": max(2 * length, 16)} | (
            {"scored": length} if "scored" in options else {}
        )
    short = {**options, "length": length}
    if "small_block" in options:  # a block of Fast-dLLM at least
        short |= {"block": length, "small_block": length}
    elif "threshold" not in options:
        short |= {name: length for name in ("steps", "block") if name in options}
    return short


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
    parser.add_argument("--study", choices=("paper", "families", "pairs"), default="paper")
    parser.add_argument("--models", help="names such as llada,dream; default: all of the study")
    parser.add_argument("--documents", type=int, default=2, help="documents per cell")
    parser.add_argument("--length", type=int, help="tokens and steps of an answer; default: the study's")
    parser.add_argument(
        "--policies", default="", help="such as none;top:1; default: the study's and its controls"
    )
    parser.add_argument("--tokenizers", type=Path, help="default: SINKSCOPE_SHARED/tokenizers")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--bare", action="store_true", help="answers only, where there is torch and little else"
    )
    given = parser.parse_args(arguments)
    shared = Path(os.environ.get("SINKSCOPE_SHARED", "../shared"))
    names = names_of(given.study) if given.models is None else given.models.split(",")
    for name in names:
        if not (given.folder / name).exists():
            tiny = given.size == "tiny"
            shard = 20_000_000 if tiny else SHARD_BYTES
            write_checkpoint(
                name, given.folder / name, tiny, given.tokenizers or shared / "tokenizers", shard
            )
    policies = [policy for policy in given.policies.split(";") if policy]
    study = write_study(given.folder, names, given.documents, given.length, policies, given.study)
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
    """The answers that the study wants; maps of exemplars come besides, of each traced cell."""
    from sinkscope.study.cells import outline
    from sinkscope.study.facts import facts_of

    known = spec.read(study)
    cells = outline(known, {model.name: facts_of(model, "cpu") for model in known.models}, exact=False)
    each = {grid.name: grid.maps for grid in known.trace}
    maps = 0 if evaluations else sum(each[cell.group] for cell in cells if cell.kind == "trace")
    return maps + sum(cell.answers for cell in cells if cell.kind == "evaluate" or not evaluations)


if __name__ == "__main__":
    main()
