"""A checkpoint with random weights in LLaDA's layout, for measuring speed."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def write_random_llada(
    folder: Path, layers: int, heads: int, width: int, vocabulary: int, seed: int = 0
) -> None:
    """Writes config.json and model.safetensors."""
    generator = torch.Generator().manual_seed(seed)
    hidden = 4 * width

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    top = "model.transformer"
    tensors = {
        f"{top}.wte.weight": torch.randn(vocabulary, width, generator=generator),
        f"{top}.ln_f.weight": torch.ones(width),
        f"{top}.ff_out.weight": matrix(vocabulary, width),
    }
    shapes = {
        "q_proj": (width, width),
        "k_proj": (width, width),
        "v_proj": (width, width),
        "attn_out": (width, width),
        "ff_proj": (hidden, width),
        "up_proj": (hidden, width),
        "ff_out": (width, hidden),
    }
    for layer in range(layers):
        for name, shape in shapes.items():
            tensors[f"{top}.blocks.{layer}.{name}.weight"] = matrix(*shape)
        for name in ("attn_norm", "ff_norm"):
            tensors[f"{top}.blocks.{layer}.{name}.weight"] = torch.ones(width)
    config = {
        "model_type": "llada",
        "d_model": width,
        "n_heads": heads,
        "n_kv_heads": heads,
        "n_layers": layers,
        "mlp_hidden_size": hidden,
        "vocab_size": vocabulary,
        "embedding_size": vocabulary,
        "max_sequence_length": 4096,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "mask_token_id": vocabulary - 1,
        "eos_token_id": vocabulary - 2,
        "weight_tying": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(folder / "model.safetensors"))
