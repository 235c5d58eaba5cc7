"""A finished study without a model: synthetic traces and answers, and the real functions that make tables and data of figures.

Two models with planted sinks and accuracies that differ from policy to policy, so that a number on the page can only be right
by being read from its own cell.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr
from tests.report import pages

from sinkscope import GreedyDecoding, LladaDecoding, parse_policy
from sinkscope.base.files import write_atomically
from sinkscope.sinks import summary
from sinkscope.sinks.depth import depth_table
from sinkscope.study import spec, tables
from sinkscope.study.cells import Cell
from sinkscope.study.store import Store
from sinkscope.tasks import registry
from sinkscope.tasks.evaluation import Evaluation, Record
from sinkscope.tasks.experiment import Experiment, ModelIdentity
from sinkscope.trace.trace import Trace

LLADA, LLAMA = "GSAI-ML/LLaDA-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"
HOSTILE = "</script><img src=x onerror=window.hacked=1>\u202e"
N = 40
FAMILIES = ("llada", "causal")
FACTS = {"dtype": "float32", "weights": "abc", "layers": 3, "heads": 4}
DRAWS = ("", ",seed=1", ",seed=2")
ACCURACY = {
    "none": (0.93, 0.95), "top:1": (0.82, 0.03), "top:5": (0.61, 0.07), "top:10": (0.33, 0.01), "top:1@model": (0.88, 0.15),
    "top:1,effect=silence": (0.80, 0.12), "window:16": (0.55, 0.45),
    **{f"random(top:1){seed}": (0.91, 0.83) for seed in DRAWS},
    **{f"random(top:1),match=mass{seed}": (0.87, 0.70) for seed in DRAWS},
    **{f"random(top:5){seed}": (0.83, 0.51) for seed in DRAWS},
}  # fmt: skip
"""Policy → share of right answers of the diffusion model, and of the causal one."""
FURTHER = ("top:2", "top:3", "above:3", "first:1", "top:1@layer", "window:32")
"""Policies of a study of many models, beside those: with them twelve, and none."""
_CAUSAL, _DIFFUSION = (grid.policies for grid in spec.read("organisms").evaluate)
ORGANISMS = {
    "organism/scratch": _DIFFUSION, "organism/causal": _CAUSAL, "organism/adapted": _DIFFUSION, "organism/multimodal": _DIFFUSION,
}  # fmt: skip


def make(
    folder: Path, *, hostile: bool = False, parameters: int = 8_000_000_000, models: int = 2, organisms: bool = False
) -> Path:
    """Writes the folder of a finished study; the report is not made yet.

    hostile: names and texts that would do harm. models: every second one is causal. organisms: models and policies of the
    default study.
    """
    names = (
        [f"{HOSTILE} a", f"{HOSTILE} b"] if hostile else [LLADA, LLAMA, *(f"org/model-{i}" for i in range(2, models))]
    )
    names = list(ORGANISMS) if organisms else names
    families = {name: FAMILIES[place % 2] for place, name in enumerate(names)}
    if organisms:
        families = {name: FAMILIES[policies is _CAUSAL] for name, policies in ORGANISMS.items()}
    study = spec.from_data(
        {
            "name": HOSTILE if hostile else "planted",
            "about": HOSTILE if hostile else "Planted sinks and planted accuracies.",
            "models": [{"source": name, "name": name} for name in names],
            "evaluate": [{"task": "gsm8k", "samples": N}],
            "trace": [{"task": "gsm8k", "samples": 2}],
        }
    )
    store = Store(folder)
    store.write_study(study)
    recorded = (
        _samples(pages.hostile() if hostile else pages.diffusion(lengths=(17, 23, 30, 19))),
        [pages.causal(seed=seed) for seed in (3, 4, 5)],
    )
    traces: dict[str, list[xr.Dataset]] = {name: recorded[place % 2] for place, name in enumerate(names)}
    cells, evaluated, parts = [], [], {}
    for model in study.models:
        family = families[model.name]
        for policy in ORGANISMS[model.name] if organisms else (*ACCURACY, *(FURTHER if models > 2 else ())):
            cell = _cell("evaluate", model, family, policy)
            cells.append(cell)
            answers = _answers(cell, ACCURACY.get(policy, (0.5, 0.4))[FAMILIES.index(family)])
            evaluated.append((cell, answers))
        for kind in ("trace", "maps"):
            cell = _cell(kind, model, family, "none")
            cells.append(cell)
            many = traces[model.name] if kind == "trace" else traces[model.name][1:2]
            for number, data in enumerate(many, start=kind == "maps"):
                path = store.trace_file(cell.id, number, 0)
                path.parent.mkdir(parents=True, exist_ok=True)
                Trace(dataset=data).save(path)
            if kind == "trace":
                parts[cell.id] = tables_partial(many)
    store.add_cells(cells)
    traced = [cell for cell in cells if cell.kind == "trace"]
    frames = {
        "results": tables.results(evaluated),
        "records": tables.records(evaluated),
        "sinks": tables.stacked(traced, parts, summary),
        "depth": tables.stacked(traced, parts, depth_table),
    }
    about = {"model": names[0], "decoding_name": "short", "policy": "top:1"}
    frames["replay"] = pd.DataFrame([{**about, "n": 3, "kl": 0.01234, "flipped": 0.25, "changed": None}])
    frames["pairs"] = pd.DataFrame(
        [
            {**about, "document": f"d{i}", "measure": measure, "value": i / 7}
            for measure in ("delay", "attention to old sinks", "attention to new sinks")
            for i in range(3)
        ]
    )
    frames |= tables.verdicts(frames, tables.studied(cells))
    tables.write(store, frames)
    manifest = {
        "study": study.name, "inputs": "0", "science": "study/1", "versions": {"sinkscope": "0", "torch": "0"},
        "models": {name: {"family": family, "parameters": parameters, **FACTS} for name, family in families.items()},
        "cells": {cell.id: cell.title for cell in cells}, "traced_documents": "all", "exemplars": "the second",
        "calls": [{"when": "2026-11-16T00:00:00+00:00", "on": "local", "workers": 1, "answers_computed": N, "seconds": {}}],
    }  # fmt: skip
    write_atomically(folder / "manifest.json", json.dumps(manifest))
    return folder


def tables_partial(many: list[xr.Dataset]) -> xr.Dataset:
    """The analysis of several traces, each a prompt of its own."""
    from sinkscope.sinks import merge, sink_statistics

    return merge([sink_statistics(one) for one in many], relabel=True)


def _samples(data: xr.Dataset) -> list[xr.Dataset]:
    return [data.isel(sample=[i]).assign_coords(sample=[0]) for i in range(data.sizes["sample"])]


def _cell(kind: Any, model: spec.StudyModel, family: str, policy: str) -> Cell:
    decoding = GreedyDecoding(12) if family == "causal" else LladaDecoding(24, 24, 8)
    experiment = Experiment(
        ModelIdentity(model.name, family, "float32", f"abc-{model.name}"), registry.get("gsm8k", family), decoding,
        parse_policy(policy),
    )  # fmt: skip
    group = "traces" if kind != "evaluate" else ""
    return Cell(kind, experiment, model, "gsm8k", "short", tuple(range(N)), group=group, questions="0")


def _answers(cell: Cell, accuracy: float) -> Evaluation:
    """Each document is right by a fixed hash of document and draw, so that policies agree on easy documents."""

    settings = cell.settings
    noise = zlib.crc32(cell.policy.encode()) % 97 / 9700
    plain = cell.policy == "none"
    records = [
        Record(
            document=f"test-{i}", index=i, seed=0, prompt="q", output="a", extracted="1", reason="", steps=24, forwards=24,
            passed=zlib.crc32(f"{i}".encode()) % 1000 < 1000 * (accuracy + noise), prompt_tokens=20, fingerprint=f"p{i}",
            hidden_share=None if plain else 0.05 + noise, sinks_hit=None if plain else 0.6 + noise,
            key_share=None if plain else 0.02 + noise, settings=settings,
        )
        for i in range(N)
    ]  # fmt: skip
    return Evaluation(tuple(records), settings)
