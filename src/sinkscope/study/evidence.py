"""Evidence of earlier studies: graded answers, statistics of traces and pairs of traces, in one file beside a model.

The report decides on claims from all of it. What a study computed itself is the check: `check` says how many of its answers
are the same in the file, and a file that disagrees with this machine is not used.

A study names the folders of earlier ones (`evidence = ["last-week"]`), or files that `save` wrote; `evidence.zip` beside an
organism is always read. It holds evidence.json and one array file for each set of traces.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InputError
from sinkscope.study.cells import Cell, identify, outline
from sinkscope.study.facts import facts_of
from sinkscope.study.store import Store, load_statistics, statistics_bytes
from sinkscope.tasks.task import digest

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

FORMAT = "sinkscope-evidence-1"
NAME = "evidence.zip"
LEAST_AGREEMENT = 0.9
"""Evidence of which a smaller share is graded alike on this machine is not used."""

CHECKED = "evidence of "
"""How a sentence on what was checked begins."""

SETTINGS = ("key", "made", "task", "decoding", "policy", "hits")
"""Fields of `Answers` that a file holds as they are."""

DETECTIONS_APART = 0.05
"""Two recordings of one document agree when their numbers of sinks differ by at most this share."""


@dataclass(frozen=True)
class Answers:
    """The graded answers of one cell.

    Attributes:
        key: `key_of` the cell. made: when, where and how it was made.
        passed: document → whether its answer is right; answers: document → digest of the answer's text.
        hits: share of the step's own sinks that the policy hid; None: not known.
    """

    key: str
    made: str
    task: str
    decoding: str
    policy: str
    passed: Mapping[str, bool]
    answers: Mapping[str, str]
    hits: float | None = None


@dataclass(frozen=True)
class Evidence:
    """What one file holds about one model, known by the digest of its weights.

    Attributes:
        traces: key of a traced cell → (documents, their statistics), in one order.
        pairs: rows of the table `pairs` of other traces, each with its decoding.
    """

    weights: str
    made: str
    answers: tuple[Answers, ...] = ()
    traces: Mapping[str, tuple[tuple[str, ...], xr.Dataset]] = field(default_factory=dict)
    pairs: tuple[dict[str, Any], ...] = ()


def key_of(cell: Cell) -> str:
    """What a result depends on, but for the documents, the dtype and the machine; those are what is checked."""
    known = cell.identity
    capture = known.get("capture")
    if "reuse" in known:
        capture = {"capture": capture, "reuse": known["reuse"]}
    return key(
        str(known["model"]["weights"]), known["task"], known["decoding"], str(known["policy"]), known["seeds"], capture
    )  # fmt: skip


def key(
    weights: str, task: Any, decoding: Any, policy: str, seeds: Sequence[int], capture: Any = None
) -> str:
    """The digest of these settings."""
    return digest([weights, task, decoding, policy, list(seeds), capture])


def canonical(decoding: Any) -> str:
    """A decoding's options as one text."""
    return json.dumps(decoding, sort_keys=True)


def answer_digest(text: str) -> str:
    """Eight hex digits of an answer's text."""
    return digest(text)[:8]


# ---- files ---------------------------------------------------------------------------------------


def save(evidence: Evidence, path: Path) -> None:
    """Write a file that `load` reads."""
    documents = list(dict.fromkeys(name for cell in evidence.answers for name in cell.passed))
    places = {name: place for place, name in enumerate(documents)}
    traces = list(evidence.traces.items())
    about = {
        "format": FORMAT,
        "weights": evidence.weights,
        "made": evidence.made,
        "documents": documents,
        "answers": [
            {
                **{name: getattr(cell, name) for name in SETTINGS},
                "documents": [places[name] for name in cell.passed],
                "passed": "".join(str(int(right)) for right in cell.passed.values()),
                "answers": "".join(cell.answers[name] for name in cell.passed),
            }
            for cell in evidence.answers
        ],
        "traces": [{"key": name, "documents": list(ids)} for name, (ids, _) in traces],
        "pairs": list(evidence.pairs),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("evidence.json", json.dumps(about, separators=(",", ":")))
        for place, (_, (_, statistics)) in enumerate(traces):
            file.writestr(f"{place}.npz", statistics_bytes(statistics, compressed=False))


def load(path: Path, weights: str) -> Evidence | None:
    """The evidence in a file, when it is about these weights."""
    try:
        with zipfile.ZipFile(path) as file:
            about = json.loads(file.read("evidence.json"))
            if about.get("format") != FORMAT:
                raise InputError(f"{path} is no evidence that this version reads; make it again")
            if about["weights"] != weights:
                return None
            arrays = [io.BytesIO(file.read(f"{place}.npz")) for place in range(len(about["traces"]))]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as evidence of a study ({error})") from error
    names = about["documents"]
    answers = []
    for cell in about["answers"]:
        ids = [names[place] for place in cell["documents"]]
        texts = [cell["answers"][8 * i : 8 * i + 8] for i in range(len(ids))]
        passed = {name: right == "1" for name, right in zip(ids, cell["passed"], strict=True)}
        settings = {name: cell[name] for name in SETTINGS}
        answers.append(Answers(passed=passed, answers=dict(zip(ids, texts, strict=True)), **settings))
    traces = {
        entry["key"]: (tuple(entry["documents"]), load_statistics(part))
        for entry, part in zip(about["traces"], arrays, strict=True)
    }
    return Evidence(about["weights"], about["made"], tuple(answers), traces, tuple(about["pairs"]))


def from_study(store: Store, cells: Iterable[Cell], made: str) -> dict[str, Evidence]:
    """Model → the evidence of a finished study."""
    from sinkscope.study.tables import evaluation, pairs, trace_statistics

    cells = list(cells)
    found: dict[str, Evidence] = {}
    for model in dict.fromkeys(cell.model.name for cell in cells):
        # Approximate steps are no evidence on the model.
        mine = [cell for cell in cells if cell.model.name == model and cell.reuse == "none"]
        if not mine:
            continue
        dtype = mine[0].identity["model"]["dtype"]
        label = f"{made}, {dtype}"
        answers, traces = [], {}
        for cell in mine:
            if cell.kind == "evaluate":
                graded = evaluation(store, cell)
                rows = graded.records
                answers.append(
                    Answers(
                        key_of(cell), label, rows[0].settings["task"]["task"], canonical(cell.identity["decoding"]), cell.policy,
                        {row.document: row.passed for row in rows},
                        {row.document: answer_digest(row.output) for row in rows}, graded.mean("sinks_hit"),
                    )
                )  # fmt: skip
            elif cell.kind == "trace" and cell.policy == "none" and '"maps"' not in cell.capture:
                ids = tuple(row.document for row, _ in store.answers(cell.id).values())
                traces[key_of(cell)] = (ids, trace_statistics(store, cell))
        frame = pairs(store, [cell for cell in mine if cell.kind == "trace" and '"maps"' in cell.capture])
        changes: list[dict[str, Any]] = []
        if frame is not None:  # what the claims read
            frame = frame[frame["measure"].str.endswith("of dependent less other tokens")]
            columns = ["decoding", "task", "policy", "document", "measure", "value"]
            changes = json.loads(frame[columns].dropna().to_json(orient="records", double_precision=6))
        weights = str(mine[0].identity["model"]["weights"])
        found[model] = Evidence(weights, label, tuple(answers), traces, tuple(changes))
    return found


def of_folder(folder: Path, where: str = "") -> dict[str, Evidence]:
    """Model → the evidence in the folder of a finished study. where: the machine, in words; "": its name."""
    store = Store(folder)
    study, calls = store.study(), store.manifest().get("calls")
    if study is None or not calls:
        raise InputError(f"{folder} holds no finished study to take evidence from; run it to its end first")
    facts = {model.name: facts_of(model, "cpu") for model in study.models}
    made = f"{calls[-1]['when'][:10]}, {where or calls[-1].get('host', 'unknown machine')}, sinkscope study"
    return from_study(store, identify(outline(study, facts), facts), made)


# ---- beside a study ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """The evidence on the models of a study that agrees with what the study computed.

    Attributes:
        by_model: model → its evidence, of which `checks` says how it compares.
        checks: rows of the table `evidence`: how much of it was computed here as well, how much is the same, whether it is used.
    """

    by_model: Mapping[str, Evidence] = field(default_factory=dict)
    checks: tuple[dict[str, Any], ...] = ()

    def traces(self, cell: Cell) -> tuple[tuple[str, ...], xr.Dataset] | None:
        """The statistics of other traces of a cell's kind."""
        evidence = self.by_model.get(cell.model.name)
        return None if evidence is None else evidence.traces.get(key_of(cell))

    def sentences(self) -> list[str]:
        """What was checked, and what is not used, for people."""
        lines = []
        for row in self.checks:
            alike = f" word for word, and {row['alike']} are graded alike" if row["kind"] == "answers" else ""
            unused = "it was not checked" if not row["checked"] else "this machine does not reproduce it"
            lines.append(
                f"{CHECKED}{row['made']}: {row['checked']} of its {row['items']:,} {row['kind']} were computed here as well, "
                f"{row['same']} are the same{alike}{'' if row['used'] else f'; it is not used, because {unused}'}"
            )
        return lines


def read(cells: Sequence[Cell], files: Sequence[Path] = ()) -> dict[str, Evidence]:
    """Model → the evidence in one of these files or folders of finished studies, or beside its weights."""
    from sinkscope.models.load import ORGANISMS

    folders = {
        path: {one.weights: one for one in of_folder(path).values()} for path in files if path.is_dir()
    }
    found: dict[str, Evidence] = {}
    for cell in cells:
        if cell.model.name in found:
            continue
        weights = str(cell.identity["model"]["weights"])
        beside = ORGANISMS / cell.model.source.removeprefix("organism/") / NAME
        shipped = [beside] if cell.model.source.startswith("organism/") and beside.is_file() else []
        for path in (*files, *shipped):
            evidence = folders[path].get(weights) if path in folders else load(path, weights)
            if evidence is not None:
                found[cell.model.name] = evidence
                break
    return found


def check(store: Store, cells: Sequence[Cell], known: Mapping[str, Evidence]) -> Known:
    """What of the evidence was computed in this study as well, and how much of that is the same.

    The documents of a study are the first ones, or evenly spread ones, of a stream of independent draws, so they are a random
    part of the evidence.
    """
    counts: dict[tuple[str, str], dict[str, int]] = {}

    def count(made: str, kind: str, **more: int) -> None:
        row = counts.setdefault((made, kind), dict.fromkeys(("items", "checked", "same", "alike"), 0))
        for name, number in more.items():
            row[name] += number

    for model, evidence in known.items():
        mine = {key_of(cell): cell for cell in cells if cell.model.name == model}
        for cell in evidence.answers:
            count(cell.made, "answers", items=len(cell.passed))
            here = store.answers(mine[cell.key].id).values() if cell.key in mine else ()
            for row, grade in here:
                if grade is not None and row.document in cell.passed:
                    same = answer_digest(row.output) == cell.answers[row.document]
                    alike = grade.passed == cell.passed[row.document]
                    count(cell.made, "answers", checked=1, same=int(same), alike=int(alike))
        for name, (ids, statistics) in evidence.traces.items():
            count(evidence.made, "traces", items=len(ids))
            if name not in mine:
                continue
            detections = statistics["detections"].values.reshape(len(ids), -1).sum(1)
            sinks = dict(zip(ids, detections.tolist(), strict=True))
            rows = [row for row, _ in store.answers(mine[name].id).values()]
            for row in rows:
                if row.document in sinks:
                    part = load_statistics(store.statistics_file(mine[name].id, row.index, row.seed))
                    apart = abs(float(part["detections"].sum()) - sinks[row.document])
                    agrees = int(apart <= DETECTIONS_APART * max(1.0, sinks[row.document]))
                    count(evidence.made, "traces", checked=1, same=agrees, alike=agrees)
    used = {
        kind
        for kind, row in counts.items()
        if row["checked"] > 0 and row["alike"] >= LEAST_AGREEMENT * row["checked"]
    }
    checks = tuple(
        {"made": made, "kind": kind, **row, "used": (made, kind) in used}
        for (made, kind), row in counts.items()
    )
    kept = {
        model: replace(
            evidence,
            answers=tuple(cell for cell in evidence.answers if (cell.made, "answers") in used),
            traces=evidence.traces if (evidence.made, "traces") in used else {},
            pairs=evidence.pairs if (evidence.made, "traces") in used else (),
        )
        for model, evidence in known.items()
    }
    return Known(kept, checks)


def tables(known: Known, cells: Sequence[Cell]) -> dict[str, pd.DataFrame]:
    """The tables `evidence` (what was checked), `earlier_records` and `earlier_pairs`, of the study's tasks and decodings."""
    import pandas as pd

    records: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    tasks = {cell.identity["task"]["task"] for cell in cells if cell.kind == "evaluate"}
    for model, evidence in known.by_model.items():
        names = {
            canonical(cell.identity["decoding"]): cell.decoding_name
            for cell in cells
            if cell.model.name == model
        }
        for answers in evidence.answers:
            if answers.task in tasks and answers.decoding in names:
                about = {"model": model, "task": answers.task, "decoding_name": names[answers.decoding],
                         "policy": answers.policy, "sinks_hit": answers.hits, "made": answers.made}  # fmt: skip
                records += [
                    {**about, "document": name, "passed": right} for name, right in answers.passed.items()
                ]
        pairs += [
            {"model": model, "decoding_name": names[decoding], "made": evidence.made, **row}
            for row in evidence.pairs
            if (decoding := canonical(json.loads(row["decoding"]))) in names
        ]
    frames = {"evidence": list(known.checks), "earlier_records": records, "earlier_pairs": pairs}
    return {name: pd.DataFrame(rows) for name, rows in frames.items() if rows}
