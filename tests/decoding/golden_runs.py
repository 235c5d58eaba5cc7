"""From a golden generation fixture to the call of ss.generate that must reproduce it."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import torch
from tests.helpers import golden

import sinkscope as ss

NAMES = {
    "gen_length": "length", "max_new_tokens": "length", "block_length": "block", "block_size": "block",
    "small_block_size": "small_block", "denoising_steps": "steps", "num_steps": "steps", "max_denoising_steps": "steps",
    "cfg_scale": "cfg", "guidance_scale": "guidance", "remasking_strategy": "remasking", "confidence_threshold": "threshold",
    "end_think_token_id": "end_think_id", "stochastic_transfer": "stochastic", "right_shift_logits": "shifted",
    "eos_token_id": "eos", "stopping_criteria_idx": "stop", "stop_token": "stop", "use_block_cache": "block_cache",
    "alg": "algorithm",
}  # fmt: skip
"""The official keyword → our option, where ours is not called the same."""

UNUSED = (
    "mask_id", "eos_id", "eb_threshold", "stop_after_eos_block", "seq_len", "max_length", "cfg_keep_tokens", "pad_token_id",
)  # fmt: skip
OF_A_CAUSAL_LOOP = ("length", "temperature", "eos", "max_thinking_tokens", "end_think_id")

DECODINGS = {
    "llada": ss.LladaDecoding, "dream": ss.DreamDecoding, "mmada": ss.MmadaDecoding, "llada_moe": ss.LladaDecoding,
    "llada2": ss.Llada2Decoding, "sdar": ss.SdarDecoding, "fast_dllm_v2": ss.FastDllmDecoding, "a2d_qwen3": ss.MdlmDecoding,
    "a2d_llama": ss.MdlmDecoding, "rnd1": ss.Rnd1Decoding, "open_dcoder": ss.OpenDcoderDecoding,
    "sdar_moe": ss.SdarDecoding,
}  # fmt: skip
LOOPS: dict[str, Any] = {
    "nemotron_diffusion": ss.NemotronDecoding, "nemotron_diffusion_ar": ss.NemotronCausalDecoding,
    "bd3lm": ss.Bd3lmDecoding, "diffusion_gemma": ss.DiffusionGemmaDecoding,
}  # fmt: skip
"""Families with several loops say which one made a fixture."""
BLOCKS = ("llada2", "sdar", "sdar_moe", "fast_dllm_v2")
"""Families whose loops have a cache that can be switched on and off."""


def decoding_of(family: str, name: str) -> Any:
    """The decoding of a fixture, from the manifest's official keyword arguments."""
    about = golden.manifest(family)["generate"][name]
    if family == "llama":
        return ss.GreedyDecoding(length=about["max_new_tokens"], eos=about["eos_token_id"])
    given = about["kwargs"]
    kind: Any = ss.MmadaImageDecoding if name.startswith("t2i") else LOOPS.get(about.get("loop", ""))
    kind = kind or DECODINGS[family]
    known = {field.name for field in fields(kind)}
    used = {key: value for key, value in given.items() if key not in UNUSED}
    options = {key if key in known else NAMES.get(key, key): value for key, value in used.items()}
    if name.startswith("t2i"):
        chosen = {key: options[key] for key in ("timesteps", "guidance", "temperature")}
        return kind(**chosen, offset=about["len_text_tokenizer"])
    if family == "llada":
        options["eot_id"] = 506  # the tiny checkpoint's end-of-turn id, which no tokenizer file names
    if family == "mmada":
        options["stop_at"] = about["eot_token"]
    if about.get("loop") == "sdar_eval":
        options |= {"scoring": "raw", "remasking": "low_confidence_dynamic"}
    if family == "rnd1":
        options["length"] = given["seq_len"] - about["prompt_lens"][0] - 1
    if causal_loop(family, name):
        options = {key: value for key, value in options.items() if key in OF_A_CAUSAL_LOOP}
    if family == "nemotron_diffusion" and options.get("eos") is None:
        options["eos"] = "model"  # as officially, where it cannot be switched off
    if "decoder_input_ids" in golden.arrays(family, name):
        options["start"] = golden.arrays(family, name)["decoder_input_ids"][0].tolist()
    return kind(**options)


def causal_loop(family: str, name: str) -> bool:
    """Whether a fixture was made by the causal loop of a family that has another one too."""
    return golden.manifest(family)["generate"][name].get("loop") == "nemotron_diffusion_ar"


def generate(family: str, name: str, **more: Any) -> ss.Run:
    """Runs a fixture: its prompts, mask, seed, sink columns; `more` goes to ss.generate."""
    about, stored = golden.manifest(family)["generate"][name], golden.arrays(family, name)
    picture = name.startswith("t2i")
    prompt: Any = golden.tensor(family, name, "input_ids" if picture else "prompt")
    options: dict[str, Any] = {"seed": about.get("seed")}
    lengths = about.get("prompt_lens") or about.get("seq_len") or (prompt >= 0).sum(1).tolist()
    if len(set(lengths)) > 1:
        prompt = [row[:length].tolist() for row, length in zip(prompt, lengths, strict=True)]
    if "attention_mask" in stored:
        # MMaDA's masks cover the answer too; ours are those of the prompt.
        options["attention_mask"] = golden.tensor(family, name, "attention_mask")[:, : prompt.shape[1]]
    if about.get("sink_columns_per_layer"):
        columns = {int(layer): list(found) for layer, found in about["sink_columns_per_layer"].items()}
        options["policy"] = ss.MaskKeys(columns)
    if picture and about["kwargs"]["guidance_scale"]:
        parts = ("uncond_input_ids", "uncond_attention_mask")
        options["unconditional"] = tuple(golden.tensor(family, name, part) for part in parts)
    return ss.generate(golden.model(family), prompt, decoding_of(family, name), **(options | more))


@cache
def plain(family: str, name: str) -> ss.Run:
    """A fixture's run without recording, once per process."""
    return generate(family, name)


@cache
def recorded(family: str, name: str, cached: bool | None = None) -> ss.Run:
    """A fixture's run with its trace, once per process."""
    return generate(family, name, capture=ss.Capture(), cache=cached)


def causal_states(family: str, name: str) -> torch.Tensor:
    """States of a causal fixture, from its sequences: −1 where nothing is written yet."""
    sequences = golden.tensor(family, name, "sequences")
    prompt = golden.tensor(family, name, "prompt").shape[1]
    states = sequences.repeat(sequences.shape[1] - prompt + 1, 1, 1)
    for step in range(len(states)):
        states[step, :, prompt + step :] = -1
    return states
