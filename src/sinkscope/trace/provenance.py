"""What a trace must be able to say about where it came from."""

from __future__ import annotations

import json
import platform
from datetime import datetime, timezone
from typing import Any

import torch

from sinkscope.decoding import Decoding
from sinkscope.models.model import Model
from sinkscope.policies.policy import Policy
from sinkscope.trace.capture import Capture
from sinkscope.version import __version__


def provenance(
    model: Model, decoding: Decoding, policy: Policy | None, capture: Capture, seed: int | list[int] | None
) -> dict[str, Any]:
    """What a trace must be able to say about where it came from; all values are JSON or text."""
    import transformers

    versions = {
        "sinkscope": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    special = {"mask": model.ids.mask, "eos": list(model.ids.eos), "bos": model.ids.bos, "pad": model.ids.pad}
    return {
        "model": model.source,
        "revision": model.revision or "",
        "weights_digest": model.digest,
        "family": model.family,
        "n_heads": model.shape.heads,
        "n_kv_heads": model.shape.kv_heads,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "decoding": decoding.to_json(),
        "policy": "" if policy is None else str(policy),
        "capture": capture.to_json(),
        "seed": json.dumps(seed),
        "versions": json.dumps(versions),
        "special_ids": json.dumps(special),
        "recorded": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def token_texts(model: Model, ids: list[int]) -> dict[str, str]:
    """The text of each token id, so that it can be read without the tokenizer."""
    if model.tokenizer is None:
        return {}
    texts = {}
    for number in ids:
        token = model.tokenizer.convert_ids_to_tokens(number)
        texts[str(number)] = (
            model.tokenizer.decode([number], clean_up_tokenization_spaces=False) if token else f"⟨{number}⟩"
        )
    return {"token_texts": json.dumps(texts, ensure_ascii=False)}
