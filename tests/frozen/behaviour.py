"""Behaviour nailed down: what is computed today, written once as data and compared after every move.

    python -m tests.frozen.behaviour write [PART …]      (parts: traces, reuse, cells, tables, verdicts)
    python -m tests.frozen.behaviour compare [PART …]    prints what differs and exits 1

traces.json    every family's golden checkpoint × policies × captures: each array of the trace
reuse.json     the same under rules of approximate steps
cells.json     every cell of the built-in studies, with identity and settings where its model is an organism
tables/        tables of `study quick` on two organisms, of a small study with replays, inspections and reuse (CSV, compressed)
verdicts.json  the verdicts of the default study (16 documents) as data: claim, model, task, status, numbers

An array is kept as its SHA-256, its shape and its sum. The hash holds on the machine that wrote it; where another processor
rounds differently, shape and sum (five digits) are compared instead, and `compare` says so.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

FOLDER = Path(__file__).parent
POLICIES = ("none", "top:5@layer", "random(top:2)", "window:8", "top:1,effect=silence")
CAPTURES: dict[str, dict[str, Any]] = {
    "heads": {}, "layers": {"level": "layers"}, "maps": {"level": "maps"}, "anatomy": {"anatomy": True},
    "by_query": {"by_query": True},
}  # fmt: skip
REUSE = ("prefix:4", "prefix:block", "sparse:0.5,by=sinks", "sparse:0.25,by=recent,refresh=4", "drift:0.9")
QUICK = ("organism/scratch", "organism/causal")
DOCUMENTS = 8
WIDE = """
name = "wide"
[[models]]
source = "organism/scratch"
[[models]]
source = "organism/causal"
[decodings.short]
causal = { length = 32 }
llada = { length = 32, steps = 16, block = 16 }
[[evaluate]]
task = "word_problems"
decodings = ["short"]
samples = 4
controls = 2
reuse = ["none", "sparse:0.5,by=sinks", "sparse:0.5,by=random"]
[[evaluate]]
task = "text"
samples = 4
policies = ["none", "top:1", "random(top:1),match=mass", "first:1"]
[[evaluate]]
task = "battery"
samples = 27
policies = ["none", "top:1", "random(top:1)"]
[[trace]]
name = "both"
task = "word_problems"
decodings = ["short"]
samples = 3
policies = ["none", "top:1"]
capture = { anatomy = true, by_query = true }
maps = 0
[[replay]]
task = "word_problems"
decodings = ["short"]
samples = 2
policies = ["top:1"]
[[inspect]]
task = "word_problems"
decodings = ["short"]
samples = 3
"""
MEASURED = ("seconds", "tokens_per_second", "speed", "when", "time", "versions")
"""Parts of the names of columns that hold times, or what a machine is."""
JUDGED = ("verdict", "evidence")
"""A verdict as JSON, to the last digit, which `verdicts` compares to five; and in words."""


def described(array: np.ndarray) -> str:
    """Hash, shape and sum of an array."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind in "OUT":
        return f"{hashlib.sha256(json.dumps(array.astype(str).tolist()).encode()).hexdigest()[:16]} {array.shape}"
    with np.errstate(all="ignore"):
        total = float(np.nansum(np.abs(array.astype(np.float64))))
    return f"{hashlib.sha256(array.tobytes()).hexdigest()[:16]} {array.dtype}{array.shape} {total:.5g}".replace(
        " (", "("
    )


def arrays(run: Any) -> dict[str, str]:
    """Every array of a run and of its trace."""
    dataset = run.trace.dataset
    named = {str(name): dataset[name].values for name in sorted(map(str, dataset.variables))}
    return {"states": described(run.states.numpy()), **{name: described(values) for name, values in named.items()}}


def fixtures() -> Iterator[tuple[str, Callable[..., Any]]]:
    """(family, how it is run): the first text generation of every golden checkpoint, and of each loop where it has several."""
    from tests.decoding.golden_runs import generate
    from tests.helpers import golden

    for family in (*golden.FAMILIES, *golden.LATER, *golden.NEWEST):
        loops: dict[str, str] = {}
        for name, about in golden.manifest(family)["generate"].items():
            loops.setdefault(about["loop"] if family in golden.NEWEST else family, name)
        for loop, name in loops.items():
            yield loop, functools.partial(generate, family, name)


def tried(run: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What a call gives; that it is refused is a result too."""
    from sinkscope.base.errors import SinkscopeError

    try:
        return run()
    except SinkscopeError:
        return {"refused": "yes"}


def traces() -> dict[str, Any]:
    """Family → policy and capture → arrays."""
    import sinkscope as ss

    made: dict[str, Any] = {}
    for family, generate in fixtures():
        for policy in POLICIES:
            for name, options in CAPTURES.items():
                recorded = functools.partial(generate, policy=ss.parse_policy(policy), capture=ss.Capture(**options))
                made[f"{family} {policy} {name}"] = tried(lambda recorded=recorded: arrays(recorded()))
    return made


def reuse() -> dict[str, Any]:
    """Family and rule → states, and arrays where the loop can be recorded under the rule."""
    import sinkscope as ss

    made: dict[str, Any] = {}
    for family, generate in fixtures():
        for rule in REUSE:
            approximate = functools.partial(generate, reuse=ss.parse_reuse(rule))
            made[f"{family} {rule}"] = tried(lambda run=approximate: {"alone": described(run().states.numpy())})
            made[f"{family} {rule} recorded"] = tried(lambda run=approximate: arrays(run(capture=ss.Capture())))
    return made


def cells() -> dict[str, Any]:
    """Study → its cells by title: settings and identity of organisms, of other models what is known without them.

    Nothing outside the checkout is looked at: that a checkpoint lies in a cache changes nothing.
    """
    from sinkscope.base.errors import CheckpointError
    from sinkscope.models.load import find
    from sinkscope.study import documents, facts, spec
    from sinkscope.study.cells import identify, outline

    def shipped(model: spec.StudyModel) -> Any:
        return find(model.source, model.revision) if model.source.startswith("organism/") else None

    def facts_of(model: spec.StudyModel) -> facts.Facts:
        try:
            return facts.facts_of(model, "cpu", fetch=False)
        except CheckpointError:  # a model that is fetched by hand: the family is what its cells need
            return facts.facts_of(spec.StudyModel("organism/causal"), "cpu", fetch=False)

    made: dict[str, Any] = {}
    with (
        mock.patch.object(facts, "local_checkpoint", shipped),
        mock.patch.object(documents, "local_checkpoint", shipped),
    ):
        for name in sorted(spec.builtin()):
            models = () if spec.read_data(name).get("models") else QUICK
            study = spec.changed(name, models=models)
            known = {model.name: facts_of(model) for model in study.models}
            listed: dict[str, dict[str, str]] = {}
            for cell in outline(study, known, exact=False):
                decoding = cell.experiment.decoding.to_json()
                entry = {"decoding": digest(decoding), "documents": digest([cell.experiment.seeds, cell.documents])}
                if cell.model.source.startswith("organism/"):
                    (whole,) = identify([cell])
                    entry |= {"id": whole.id, "settings": digest(whole.settings)}
                title = cell.title
                while title in listed:
                    title += " again"
                listed[title] = entry
            made[name] = listed
    return made


def digest(data: Any) -> str:
    """Of a text, or of JSON data."""
    text = data if isinstance(data, str) else json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def frames(folder: Path) -> dict[str, str]:
    """The tables of a study as CSV texts, without what was measured with a clock."""
    import pandas as pd

    made = {}
    for path in sorted((folder / "tables").glob("*.parquet")):
        frame = pd.read_parquet(path)
        kept = [
            column for column in frame if column not in JUDGED and not any(word in str(column) for word in MEASURED)
        ]
        made[path.stem] = frame[kept].to_csv(index=False, float_format="%.6g")
    return made


def ran(study: Any, out: Path) -> Path:
    """A study, run here; its folder."""
    from sinkscope.study.run import run_study

    run_study(study, out, device="cpu", workers=2)
    return out


def tables() -> dict[str, str]:
    """Study and table → CSV."""
    from sinkscope.study import spec

    made: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for model in QUICK:
            study = spec.changed("quick", models=(model,), samples=DOCUMENTS)
            name = model.rpartition("/")[2]
            for table, text in frames(ran(study, Path(scratch, name))).items():
                made[f"quick-{name}-{table}.csv"] = text
        wide = Path(scratch, "wide.toml")
        wide.write_text(WIDE, encoding="utf-8")
        for table, text in frames(ran(spec.read(wide), Path(scratch, "wide"))).items():
            made[f"wide-{table}.csv"] = text
    return made


def verdicts() -> dict[str, Any]:
    """Claims, and the diagnosis of each model, of the default study."""
    from sinkscope.report.study.source import read
    from sinkscope.study import spec
    from sinkscope.study.measured import Studied, collect

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(
            os.environ.get("FROZEN_STUDY") or ran(spec.changed("organisms", samples=16), Path(scratch, "study"))
        )
        source = read(folder)
        judged = [one for row in source.judged.values() for of_model in row.values() for one in of_model]
        asked = [one for questions in source.diagnoses.values() for one in questions.values()]
        measures = {
            f"{one.subject} {one.kind.value} {one.about}": {
                **{name: [f"{number:.6g}" for number in estimate] for name, estimate in one.estimates.items()},
                **{f"score {policy}": f"{one.score(policy):.6g}" for policy in one.runs},
                **{
                    f"{name} {policy}": f"{value:.6g}"
                    for policy, run in one.runs.items()
                    for name, value in (("removed", run.removed), ("strongest", run.strongest))
                    if value == value
                },
            }
            for one in collect(
                source.frames, {row["model"]: Studied(row["family"]) for _, row in source.rows("results")}
            )
        }
        return {"claims": list(map(told, judged)), "diagnosis": list(map(told, asked)), "measures": measures}


def told(verdict: Any) -> dict[str, Any]:
    """A verdict as it is kept: what it says, and all its numbers, to five digits."""
    estimates = [verdict.estimate, verdict.control or (), *(number.estimate for number in verdict.numbers)]
    known = [value for estimate in estimates for value in estimate if value == value]
    return {
        "question": verdict.question, "model": verdict.subject, "about": verdict.about, "status": verdict.status.value,
        "answer": verdict.answer, "reason": verdict.reason and verdict.reason.name, "n": verdict.n,
        "numbers": [f"{value:.5g}" for value in known],
    }  # fmt: skip


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "traces": traces, "reuse": reuse, "cells": cells, "tables": tables, "verdicts": verdicts
}  # fmt: skip


def machine() -> str:
    """What decides how numbers round: processor and PyTorch."""
    import torch

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if sys.platform == "linux" else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def write(part: str) -> None:
    """Compute a part and keep it."""
    made = PARTS[part]()
    if part == "tables":
        (FOLDER / "tables").mkdir(exist_ok=True)
        for name, text in made.items():
            (FOLDER / "tables" / f"{name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        return
    text = json.dumps({"machine": machine(), **made}, indent=1, ensure_ascii=False, sort_keys=True)
    (FOLDER / f"{part}.json").write_text(text + "\n", encoding="utf-8")


def stored(part: str) -> dict[str, Any]:
    """What was kept of a part."""
    if part == "tables":
        files = sorted((FOLDER / "tables").glob("*.csv.gz"))
        return {path.stem: gzip.decompress(path.read_bytes()).decode() for path in files}
    return json.loads((FOLDER / f"{part}.json").read_text(encoding="utf-8"))


def differences(before: Any, now: Any, hashes: bool, where: str = "") -> Iterator[str]:
    """Where two data differ; without `hashes` the first word of an array's description is passed over."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            if name not in before or name not in now:
                yield f"{where}/{name}: only {'before' if name in before else 'now'}"
            else:
                yield from differences(before[name], now[name], hashes, f"{where}/{name}")
    elif isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            yield f"{where}: {len(before)} entries before, {len(now)} now"
        for at, (one, other) in enumerate(zip(before, now, strict=False)):
            yield from differences(one, other, hashes, f"{where}[{at}]")
    elif before != now and (hashes or str(before).split(" ")[1:] != str(now).split(" ")[1:]):
        yield f"{where}: {before!r} before, {now!r} now"


def compared(part: str) -> list[str]:
    """Where a part differs today from what was kept."""
    before, now = stored(part), PARTS[part]()
    same_machine = before.pop("machine", None) in (None, machine())
    if not same_machine:
        print(f"{part}: written on another machine; arrays are compared by shape and sum")
    return list(differences(before, json.loads(json.dumps(now)), same_machine or part not in ("traces", "reuse")))


def main(verb: str, *parts: str) -> int:
    """The command line."""
    failed = 0
    for part in parts or tuple(PARTS):
        if verb == "write":
            write(part)
            continue
        found = compared(part)
        print(f"{part}: {len(found)} differences", *found[:40], sep="\n  ")
        failed += len(found)
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(*sys.argv[1:]))
