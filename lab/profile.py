"""profile.json of an organism: what its sinks are like while it answers held-out word problems.

The prompts are answered by the official loop on a CPU, recorded with anatomy, and described by `sinkscope.sinks`: how strong,
drains or hubs, moving or not, made of what, what they look like inside. Intervals are 95 %, over prompts.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

    from sinkscope.models.model import Model
    from sinkscope.statistics import Estimate

TASK = "word_problems"
MIDDLE = "mean over layers"


def about(model: Model) -> dict[str, Any]:
    """What was measured, when and where."""
    import torch

    threads = torch.get_num_threads()
    cpu = f"CPU, {threads} thread{'' if threads == 1 else 's'}"
    where = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else cpu
    dtype = str(model.dtype).removeprefix("torch.")
    return {"digest": model.digest, "date": time.strftime("%Y-%m-%d", time.gmtime()), "where": where, "dtype": dtype}


def profile(folder: Path, prompts: int) -> dict[str, Any]:
    """profile.json as data.

    summary, diagnosis and anatomy are the tables of those names, one object per row; numbers that are not known are null.
    first_token, for causal models: see `first_token`.
    """
    from sinkscope.generation.generate import generate
    from sinkscope.models.load import load
    from sinkscope.models.prompts import pad
    from sinkscope.sinks import anatomy, summary
    from sinkscope.tasks import registry
    from sinkscope.tasks.evaluate import decoding_for
    from sinkscope.tasks.prompting import encode_prompt
    from sinkscope.trace.capture import Capture
    from sinkscope.verdicts import wording
    from sinkscope.verdicts.diagnosis import diagnose

    model = load(folder, device="cpu")
    task = registry.get(TASK, model.family)
    asked = [encode_prompt(model, task.prompt(one), task.scheme).ids for one in task.documents(prompts)]
    rows, decoding = pad(model, [list(ids) for ids in asked]), decoding_for(task, model.family)
    run = generate(model, rows.ids, decoding, capture=Capture(anatomy=True), seed=0, attention_mask=rows.real)
    if run.trace is None:  # for the type checker: a capture was asked for
        raise RuntimeError("no trace")
    data = run.trace.dataset
    found: dict[str, Any] = {
        **about(model),
        "task": TASK,
        "prompts": prompts,
        "decoding": decoding.as_dict(),
        "interval": "95 %, over prompts",
        "summary": _rows(summary(data)),
        "diagnosis": [
            {"question": one.question, "answer": wording.answer(one), "evidence": wording.evidence(one)}
            for one in diagnose(data).verdicts
            if one.question not in UNASKED
        ],
        "anatomy": _rows(anatomy(data)),
    }
    if model.family == "causal":
        found["first_token"] = first_token(data)
    return found


UNASKED = ("needs its strongest keys", "needs its first tokens")
"""Questions that need accuracies under policies: the masking table has them."""


def first_token(data: xr.Dataset) -> list[dict[str, Any]]:
    """The first real token of a causal model's finished texts, one row per layer and one for their mean.

    received: attention from all queries of the finished text, uniform = 1, mean over heads; value_ratio: its value norm over
    the median of the real keys of its head, mean over heads; hidden_ratio: the norm of the residual stream that enters the
    layer over the median of the real keys. Each with low and high, over prompts.
    """
    received, values, hidden = [], [], []
    for sample in range(data.sizes["sample"]):
        one = data.isel(sample=sample)
        first = int(np.flatnonzero(one["position"].values == 0)[0])
        scores = one["received_all"].transpose("step", "layer", "head", "key").values[..., first]
        last = int(np.flatnonzero(np.isfinite(scores).all(axis=(1, 2)))[-1])  # the row's own last step
        at = one.isel(step=last)
        received.append(scores[last].mean(axis=-1))
        values.append(_over_median(at["value_norm"].transpose("layer", "kv_head", "key").values, first).mean(-1))
        hidden.append(_over_median(at["hidden_norm"].transpose("layer", "key").values, first))
    columns = {"received": received, "value_ratio": values, "hidden_ratio": hidden}
    each = {name: np.stack(column) for name, column in columns.items()}  # [sample, layer]
    layers: list[Any] = [*map(int, data["layer"].values)]
    table = []
    for place, layer in enumerate([*layers, MIDDLE]):
        row: dict[str, Any] = {"layer": layer}
        for name, column in each.items():
            row |= _interval(name, column.mean(axis=1) if layer == MIDDLE else column[:, place])
        table.append(row)
    return table


def _over_median(norms: NDArray[Any], first: int) -> NDArray[Any]:
    """norms [..., K], NaN where there is no key: the first one's over the median."""
    return np.asarray(norms[..., first] / np.nanmedian(norms, axis=-1))


def _interval(name: str, values: NDArray[Any]) -> dict[str, float | None]:
    from sinkscope.statistics import mean_interval

    found: Estimate = mean_interval(values)
    return {name: _plain(found.value), f"{name}_low": _plain(found.low), f"{name}_high": _plain(found.high)}


def _rows(frame: Any) -> list[dict[str, Any]]:
    return [{str(key): _plain(value) for key, value in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    """Rounded for a file; None for what is not known."""
    if isinstance(value, (float, np.floating)):
        return round(float(value), 5) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
