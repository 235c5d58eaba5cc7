"""From a golden generation fixture to the call of ss.generate that must reproduce it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tests.helpers import golden

import sinkscope as ss

EOT = {"llada": 506}
"""The tiny checkpoints' end-of-turn id, which no tokenizer file names."""


def decoding_of(family: str, name: str) -> Any:
    """The decoding of a fixture, from the manifest's official keyword arguments."""
    about = golden.manifest(family)["generate"][name]
    if family == "llama":
        return ss.GreedyDecoding(length=about["max_new_tokens"], eos=about["eos_token_id"])
    given = about["kwargs"]
    if name.startswith("t2i"):
        return ss.MmadaImageDecoding(
            timesteps=given["timesteps"],
            guidance=given["guidance_scale"],
            temperature=given["temperature"],
            offset=about["len_text_tokenizer"],
        )
    if family == "dream":
        return ss.DreamDecoding(
            length=given["max_new_tokens"],
            steps=given["steps"],
            algorithm=given["alg"],
            temperature=given["temperature"],
            top_p=given["top_p"],
            top_k=given["top_k"],
            alg_temp=given["alg_temp"],
            eps=given["eps"],
        )
    common = {
        "length": given["gen_length"],
        "steps": given["steps"],
        "block": given["block_length"],
        "temperature": given["temperature"],
        "cfg": given["cfg_scale"],
        "remasking": given["remasking"],
    }
    if family == "mmada":
        return ss.MmadaDecoding(**common, stop_at=about["eot_token"])
    return ss.LladaDecoding(
        **common,
        logits_eos_inf=given.get("logits_eos_inf", False),
        confidence_eos_eot_inf=given.get("confidence_eos_eot_inf", False),
        eot_id=EOT[family],
    )


def generate(family: str, name: str, **more: Any) -> ss.Run:
    """Runs a fixture: its prompt, mask, seed, sink columns; `more` goes to ss.generate."""
    about = golden.manifest(family)["generate"][name]
    stored = golden.arrays(family, name)
    picture = name.startswith("t2i")
    prompt = golden.tensor(family, name, "input_ids" if picture else "prompt")
    options: dict[str, Any] = {"seed": about.get("seed")}
    if "attention_mask" in stored:
        # MMaDA's masks cover the answer too; ours are those of the prompt.
        options["attention_mask"] = golden.tensor(family, name, "attention_mask")[:, : prompt.shape[1]]
    if about.get("sink_columns_per_layer"):
        columns = {int(layer): list(found) for layer, found in about["sink_columns_per_layer"].items()}
        options["policy"] = ss.MaskKeys(columns)
    if picture and about["kwargs"]["guidance_scale"]:
        options["unconditional"] = (
            golden.tensor(family, name, "uncond_input_ids"),
            golden.tensor(family, name, "uncond_attention_mask"),
        )
    return ss.generate(golden.model(family), prompt, decoding_of(family, name), **(options | more))


@cache
def plain(family: str, name: str) -> ss.Run:
    """A fixture's run without recording, once per process."""
    return generate(family, name)


@cache
def recorded(family: str, name: str, level: str = "heads") -> ss.Run:
    """A fixture's run with its trace, once per process."""
    return generate(family, name, capture=ss.Capture(level=level))


def causal_states(family: str, name: str) -> torch.Tensor:
    """States of a causal fixture, from its sequences: −1 where nothing is written yet."""
    sequences = golden.tensor(family, name, "sequences")
    prompt = golden.tensor(family, name, "prompt").shape[1]
    states = sequences.repeat(sequences.shape[1] - prompt + 1, 1, 1)
    for step in range(len(states)):
        states[step, :, prompt + step :] = -1
    return states
