"""What sinks hold: tables of finished studies (`inside`, lab/studies/inside-english.toml), and checks of their answers.

    python -m lab.inside_checks tables STUDY lab/inside    # holdings.csv and inspection.csv.gz, without what repeats in every row
    python -m lab.inside_checks looks STUDY                # probes within one look, where step, block and masks left are constant
    python -m lab.inside_checks own [--limit 24]           # the values of a run's own strongest sink at all of its sinks
    python -m lab.inside_checks left [--limit 8]           # SmolLM2: predictions that are not read from a patched place
    python -m lab.inside_checks picture STUDY docs/images  # inside-organisms.png: the report's figure of two organisms

`tables` and `picture` of the study of English write english-holdings.csv, english-inspection.csv.gz and inside-english.png.
`looks`, `own` and `left` print the tables of lab/inside.md.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

import sinkscope as ss
from sinkscope.decoding import decoding_from_options
from sinkscope.inspection.observation import KINDS, MASK, chosen_steps, observe
from sinkscope.inspection.patch import all_donors, donors_of, effects, mean_known, patched_logits, places
from sinkscope.inspection.probes import probe
from sinkscope.models.prompts import pad
from sinkscope.report.figures.holdings import plot_holdings
from sinkscope.statistics import mean_interval
from sinkscope.tasks.evaluate import decoding_options, prepare
from sinkscope.tasks.prompting import encode_prompt

ORGANISMS = ("causal", "scratch", "adapted", "multimodal")
TASKS = ("word_problems", "small_code")
PAIR = ("smollm2", "smollm2-twin")
WRITING = {"causal": {"length": 64}, "dream": {"length": 64, "steps": 64}}
"""The decoding of lab/studies/inside-english.toml."""
LOOKS = 2
DROPPED = (
    "family", "dtype", "weights", "task_version", "scheme", "decoding_name", "decoding", "policy", "seeds", "cell",
)  # fmt: skip
"""Columns that are the same in every row, or in every row of a model: the study's manifest has them."""
PROBED = (("residual", 0), ("residual", 1), ("residual", 2), ("key", 1), ("value", 1))
"""Vectors and layers (a quarter, half, three quarters) that the study probes."""


def tables(study: Path, out: Path) -> list[Path]:
    """Writes both tables with four significant digits."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for name, ending in (("holdings", "csv"), ("inspection", "csv.gz")):
        frame = pd.read_parquet(study / "tables" / f"{name}.parquet").drop(columns=list(DROPPED))
        text = frame.to_csv(index=False, float_format="%.4g").encode()
        path = out / f"{'english-' if is_english(frame) else ''}{name}.{ending}"
        # mtime=0: the same table gives the same file.
        path.write_bytes(gzip.compress(text, mtime=0) if ending.endswith("gz") else text)
        made.append(path)
    return made


def is_english(table: pd.DataFrame) -> bool:
    """Whether a table is of the study of SmolLM2 and its twin."""
    return set(table["model"]) <= set(PAIR)


def cells(study: Path) -> Iterator[tuple[str, list[Any]]]:
    """Title of each inspected cell, and what each of its prompts gave."""
    for file in sorted((study / "cells").glob("*/cell.json")):
        cell = json.loads(file.read_text(encoding="utf-8"))
        parts = [np.load(path) for path in sorted((study / "traces" / cell["id"]).glob("*.analysis.npz"))]
        yield f"{cell['model'].removeprefix('organism/')} · {cell['task']}", parts


def looks(study: Path) -> pd.DataFrame:
    """The best of the five probes for the column decided next, in each look; and how much of that label the look alone tells."""
    rows = []
    for title, parts in cells(study):
        label = np.stack([part["label|next decided"] for part in parts]).astype(float)  # [P, looks]
        if np.isnan(label).any():
            continue
        row: dict[str, Any] = {"cell": title, "told by the look": f"{label.mean(0).var() / label.var():.2f}"}
        for look in range(label.shape[1]):
            skills = []
            for name, layer in PROBED:
                vectors = np.stack([part[f"vectors|{name}"][look, layer] for part in parts]).astype(float)
                known = np.isfinite(vectors).all((1, 2))
                here, control = (
                    probe(vectors[known, side], label[known, look], np.flatnonzero(known)) for side in (0, 1)
                )
                if here is not None and control is not None:
                    skills.append((here.skill, control.skill.value))
            best, control_skill = max(skills, key=lambda pair: pair[0].value)
            row[f"look {look + 1}"] = f"{best.value:.2f} [{best.low:.2f}, {best.high:.2f}]"
            row[f"look {look + 1}, random places"] = f"{control_skill:.2f}"
        rows.append(row)
    return pd.DataFrame(rows)


def written(source: str, task_name: str, limit: int) -> tuple[ss.Model, ss.Run]:
    """A model, and what it writes for the first documents of a task."""
    model = ss.load(source, "cpu", "float32")
    task = prepare(model.family, task_name, grade=False)
    prompts = [
        list(encode_prompt(model, task.prompt(document), task.scheme).ids)
        for document in task.documents(limit)
    ]
    batch = pad(model, prompts)
    real = None if batch.real is None else batch.real.long()
    options = WRITING[model.family] if source in PAIR else decoding_options(task, model.family)
    decoding = decoding_from_options(model.family, options)
    return model, ss.generate(model, batch.ids, decoding, seed=list(range(limit)), attention_mask=real)


def own(limit: int) -> pd.DataFrame:
    """KL in nats of giving all sinks the value of one vector: of another run's strongest sink, or of the run's own."""
    rows = []
    for name, task_name in ((name, task) for name in ORGANISMS for task in TASKS):
        model, run = written(f"organism/{name}", task_name, limit)
        found: dict[str, list[np.ndarray[Any, Any]]] = {}
        for step in chosen_steps(run, LOOKS):
            other = all_donors(model, run, step)[0].roll(-1, 1)
            looked: dict[str, np.ndarray[Any, Any]] = {}
            for seen in observe(model, run, step):
                sinks = places(seen)[0]
                masks = sinks & (seen.kind[:, None] == MASK)
                donors = {"another run": other[:, seen.rows], "own": donors_of(seen)}
                values: dict[str, torch.Tensor] = {}
                for where, mark in (("", sinks), (", at masks", masks)):
                    empty = ~mark.any(3).any(2).any(0)
                    for whose, vectors in donors.items():
                        kl = effects(seen, patched_logits(seen, mark, vectors, "value"), mark)["kl"]
                        values[whose + where] = kl.masked_fill(empty, float("nan"))
                for number, kind in enumerate(KINDS):
                    here = sinks & (seen.kind[:, None] == number)
                    values[f"sinks: {kind}"] = here.sum((0, 2, 3)) / sinks.sum((0, 2, 3))
                for measure, value in values.items():
                    looked.setdefault(measure, np.full(limit, np.nan))[seen.rows] = value.cpu().numpy()
            for measure, array in looked.items():
                found.setdefault(measure, []).append(array)
        means = {measure: mean_known(arrays) for measure, arrays in found.items()}
        row: dict[str, Any] = {"cell": f"{name} · {task_name}"}
        for where in ("", ", at masks"):
            means[f"difference{where}"] = means[f"another run{where}"] - means[f"own{where}"]
            for measure in (f"another run{where}", f"own{where}", f"difference{where}"):
                known = means[measure][np.isfinite(means[measure])]
                row[measure] = (
                    "" if len(known) < 2 else "{:.3g} [{:.3g}, {:.3g}]".format(*mean_interval(known))
                )
        row |= {f"sinks: {kind}": f"{np.nanmean(means[f'sinks: {kind}']):.0%}" for kind in KINDS}
        rows.append(row)
    return pd.DataFrame(rows)


def left(limit: int) -> pd.DataFrame:
    """Predictions that count in a patch of SmolLM2: those that are not read from a patched place. Means over prompts."""
    model, run = written(PAIR[0], "text", limit)
    found: dict[str, list[float]] = {}
    for seen in observe(model, run, run.steps - 1):
        sinks, control = places(seen)
        first = (seen.kind >= 0).long().argmax(1)
        strongest = seen.strength.argmax(-1) == first  # [L, B]
        for index in range(len(seen.rows)):
            reads = (seen.predicted[index].nonzero()[:, 0] - seen.shift).clamp(min=0)
            here = sinks[:, index] & (seen.kind[index] >= 0)
            values = {"predictions": float(len(reads))}
            for side, marked in (("sinks", sinks), ("control", control)):
                touched = marked[:, index].any(1).any(0)
                count = float((~touched[reads]).sum())
                values |= {f"left, {side}": count, f"none left, {side}": float(count == 0)}
                values[f"places, {side}"] = float(touched.sum() / (seen.kind[index] >= 0).sum())
            values["strongest sink is the first token"] = float(strongest[:, index].float().mean())
            values["sinks at the first token"] = float(here[..., first[index]].sum() / here.sum())
            for number, kind in enumerate(KINDS):
                values[f"sinks: {kind}"] = float((here & (seen.kind[index] == number)).sum() / here.sum())
            values["first token"] = float(seen.tokens[index, first[index]])
            for measure, value in values.items():
                found.setdefault(measure, []).append(value)
    kinds = len(set(found.pop("first token")))
    means = {measure: f"{np.mean(values):.3g}" for measure, values in found.items()}
    return pd.DataFrame([{**means, "different first tokens": kinds}])


def picture(study: Path, out: Path) -> Path:
    """Writes the report's figure of the diffusion model above that of the causal one, in few colours."""
    table = pd.read_parquet(study / "tables" / "inspection.parquet")
    english = is_english(table)
    task = "text" if english else TASKS[0]
    sheets = []
    for name in PAIR[::-1] if english else ("organism/scratch", "organism/causal"):
        figure = plot_holdings(table[(table["model"] == name) & (table["task"] == task)]).figure
        figure.suptitle(f"{name}, {task}", fontsize="medium")
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=120)
        sheets.append(Image.open(data).convert("RGB"))
    both = Image.new(
        "RGB", (max(sheet.width for sheet in sheets), sum(sheet.height for sheet in sheets)), "white"
    )
    both.paste(sheets[0], (0, 0))
    both.paste(sheets[1], (0, sheets[0].height))
    path = out / f"inside-{'english' if english else 'organisms'}.png"
    both.quantize(256, kmeans=3, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="what", required=True)
    for name in ("tables", "picture"):
        one = kinds.add_parser(name)
        one.add_argument("study", type=Path)
        one.add_argument("out", type=Path)
    kinds.add_parser("looks").add_argument("study", type=Path)
    kinds.add_parser("own").add_argument("--limit", type=int, default=24)
    kinds.add_parser("left").add_argument("--limit", type=int, default=8)
    given = parser.parse_args()
    if given.what == "tables":
        print(*tables(given.study, given.out), sep="\n")
    elif given.what == "picture":
        print(picture(given.study, given.out))
    else:
        checks = {"own": own, "left": left}
        table = looks(given.study) if given.what == "looks" else checks[given.what](given.limit)
        print(table.to_string(index=False))


if __name__ == "__main__":
    main()
