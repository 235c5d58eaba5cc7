"""Evidence of earlier studies: graded answers, statistics of traces and pairs of traces, in one file beside a model.

The report decides on claims from all of it. What a study computed itself is the check (`study.evidence_check`), and its documents
are drawn from those of the evidence (`study.draw`).

A study names the folders of earlier ones (`evidence = ["last-week"]`), or files that `save` wrote; `evidence.zip` beside an
organism is always read. It holds evidence.json and one array file for each set of traces.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sinkscope.errors import InputError
from sinkscope.files import reading
from sinkscope.study.cells import Cell, identify, outline
from sinkscope.study.facts import facts_of
from sinkscope.study.store import Store, load_statistics, statistics_bytes
from sinkscope.tasks.task import ACCURACY, digest

if TYPE_CHECKING:
    import xarray as xr

Found = TypeVar("Found")
FORMAT = "sinkscope-evidence-1"
NAME = "evidence.zip"
SETTINGS = ("key", "made", "task", "decoding", "policy", "hits", "hits_made")
"""Fields of `Answers` that a file holds as they are."""


@dataclass(frozen=True)
class Answers:
    """The graded answers of one cell.

    Attributes:
        key: `key_of` the cell. made: when, where and how it was made.
        passed: document → whether its answer is right; answers: document → digest of the answer's text.
        hits: share of the step's own sinks that the policy hid; None: not known. hits_made: as `made`, where another run than
            that of the answers counted them.
    """

    key: str
    made: str
    task: str
    decoding: str
    policy: str
    passed: Mapping[str, bool]
    answers: Mapping[str, str]
    hits: float | None = None
    hits_made: str = ""


class Traces(NamedTuple):
    """The traces of one cell: their documents, the statistics of these in the same order, and how they were made."""

    documents: tuple[str, ...]
    statistics: xr.Dataset
    made: str


@dataclass(frozen=True)
class Evidence:
    """What one file holds about one model, known by the digest of its weights.

    Attributes:
        traces: by the key of a traced cell.
        pairs: rows of the table `pairs` of other traces, each with its decoding, and how it was made.
    """

    weights: str
    answers: tuple[Answers, ...] = ()
    traces: Mapping[str, Traces] = field(default_factory=dict)
    pairs: tuple[dict[str, Any], ...] = ()

    @property
    def digest(self) -> str:
        """Changes with anything that a table could be made of."""
        traces = [[name, one.documents, one.made] for name, one in self.traces.items()]
        return digest([self.weights, [vars(cell) for cell in self.answers], traces, self.pairs])


def key_of(cell: Cell) -> str:
    """What a result depends on, but for the documents, the dtype and the machine; those are what is checked."""
    known = cell.identity
    capture = known.get("capture")
    for name in ("reuse", "sinks"):
        if name in known:
            capture = {"capture": capture, name: known[name]}
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
        "traces": [{"key": name, "documents": list(one.documents), "made": one.made} for name, one in traces],
        "pairs": list(evidence.pairs),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("evidence.json", json.dumps(about, separators=(",", ":")))
        for place, (_, one) in enumerate(traces):
            file.writestr(f"{place}.npz", statistics_bytes(one.statistics, compressed=False))


def load(path: Path, weights: str) -> Evidence | None:
    """The evidence in a file, when it is about these weights."""
    with reading(path, "evidence of another version, or none; make it again"):
        about, arrays = _read(path, weights, arrays=True)
        return None if about is None else _evidence(about, arrays)


def _evidence(about: Mapping[str, Any], arrays: Sequence[io.BytesIO]) -> Evidence:
    """The evidence that evidence.json and the files of its arrays hold."""
    names = about["documents"]
    answers = []
    for cell in about["answers"]:
        ids = [names[place] for place in cell["documents"]]
        texts = [cell["answers"][8 * i : 8 * i + 8] for i in range(len(ids))]
        passed = {name: right == "1" for name, right in zip(ids, cell["passed"], strict=True)}
        settings = {name: cell[name] for name in SETTINGS}
        answers.append(Answers(passed=passed, answers=dict(zip(ids, texts, strict=True)), **settings))
    traces = {
        entry["key"]: Traces(tuple(entry["documents"]), load_statistics(part), entry["made"])
        for entry, part in zip(about["traces"], arrays, strict=True)
    }
    if any(one.statistics.attrs["scores"] == "received_all" for one in traces.values()):
        # Sinks of a causal model as they were told before distant queries told them: its answers alone are evidence.
        answers = [replace(cell, hits=None, hits_made="") for cell in answers]
        return Evidence(about["weights"], tuple(answers))
    return Evidence(about["weights"], tuple(answers), traces, tuple(about["pairs"]))


def _read(path: Path, weights: str, arrays: bool = False) -> tuple[dict[str, Any] | None, list[io.BytesIO]]:
    """evidence.json of a file, None when it is about other weights; and the files of its arrays."""
    with reading(path, "it should be evidence of a study; make it again"), zipfile.ZipFile(path) as file:
        about: dict[str, Any] = json.loads(file.read("evidence.json"))
        if about.get("format") != FORMAT:
            raise InputError(f"{path} is no evidence that this version reads; make it again")
        if about["weights"] != weights:
            return None, []
        count = len(about["traces"]) if arrays else 0
        return about, [io.BytesIO(file.read(f"{place}.npz")) for place in range(count)]


def from_study(store: Store, cells: Iterable[Cell], made: str) -> dict[str, Evidence]:
    """Model → the evidence of a finished study."""
    from sinkscope.study.tables import evaluation
    from sinkscope.study.trace_tables import pairs, trace_statistics

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
                if graded.measure != ACCURACY:  # a text that was read has no right answer
                    continue
                found_rows = graded.records
                answers.append(
                    Answers(
                        key_of(cell), label, cell.identity["task"]["task"], canonical(cell.identity["decoding"]), cell.policy,
                        {row.document: row.passed for row in found_rows},
                        {row.document: answer_digest(row.output) for row in found_rows}, graded.mean("sinks_hit"),
                    )
                )  # fmt: skip
            elif _summarised(cell):
                ids = tuple(row.document for row, _ in store.answers(cell.id).values())
                traces[key_of(cell)] = Traces(ids, trace_statistics(store, cell), label)
        frame = pairs(store, [cell for cell in mine if cell.kind == "trace" and '"maps"' in cell.capture])
        changes: list[dict[str, Any]] = []
        if frame is not None:  # what the claims read
            frame = frame[frame["measure"].str.endswith("of dependent less other tokens")]
            columns = ["decoding", "task", "policy", "document", "measure", "value"]
            rows = json.loads(frame[columns].dropna().to_json(orient="records", double_precision=6))
            changes = [{**row, "made": label} for row in rows]
        weights = str(mine[0].identity["model"]["weights"])
        found[model] = Evidence(weights, tuple(answers), traces, tuple(changes))
    return found


def _summarised(cell: Cell) -> bool:
    """Whether a cell's traces give statistics: recorded without a policy, and without maps."""
    return cell.kind == "trace" and cell.policy == "none" and '"maps"' not in cell.capture


def of_folder(folder: Path, where: str = "") -> dict[str, Evidence]:
    """Model → the evidence in the folder of a finished study. where: the machine, in words; "": its name."""
    store, cells, call = _finished(folder)
    made = f"{call['when'][:10]}, {where or call.get('host', 'unknown machine')}, sinkscope study"
    return from_study(store, cells, made)


def _finished(folder: Path) -> tuple[Store, list[Cell], dict[str, Any]]:
    """A finished study: its store, its cells, and the call that finished it."""
    store = Store(folder)
    study, calls = store.study(), store.manifest().get("calls")
    if study is None or not calls:
        raise InputError(f"{folder} holds no finished study to take evidence from; run it to its end first")
    facts = {model.name: facts_of(model, "cpu") for model in study.models}
    return store, identify(outline(study, facts), facts), calls[-1]


# ---- beside a study ------------------------------------------------------------------------------


def read(cells: Sequence[Cell], files: Sequence[Path] = ()) -> dict[str, Evidence]:
    """Model → the evidence in one of these files or folders of finished studies, or beside its weights."""
    folders = {
        path: {one.weights: one for one in of_folder(path).values()} for path in files if path.is_dir()
    }

    def one(path: Path, weights: str) -> Evidence | None:
        return folders[path].get(weights) if path in folders else load(path, weights)

    return _first(cells, files, one)


def known_documents(cells: Sequence[Cell], files: Sequence[Path] = ()) -> dict[str, tuple[str, ...]]:
    """`key_of` a cell → the documents that the same evidence has of it. Reads no arrays, and needs no further library."""
    folders = {path: _answered(path) for path in files if path.is_dir()}

    def one(path: Path, weights: str) -> dict[str, tuple[str, ...]] | None:
        if path in folders:
            return folders[path].get(weights)
        about, _ = _read(path, weights)
        if about is None:
            return None
        traced = {entry["key"]: tuple(entry["documents"]) for entry in about["traces"]}
        names = about["documents"]
        return traced | {
            cell["key"]: tuple(names[place] for place in cell["documents"]) for cell in about["answers"]
        }

    found = _first(cells, files, one)
    return {key: documents for of_model in found.values() for key, documents in of_model.items()}


def _answered(folder: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    """Weights → `key_of` a cell → its documents, of a finished study."""
    store, cells, _ = _finished(folder)
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for cell in cells:
        if cell.kind == "evaluate" or _summarised(cell):
            documents = tuple(dict.fromkeys(row.document for row, _ in store.answers(cell.id).values()))
            found.setdefault(str(cell.identity["model"]["weights"]), {})[key_of(cell)] = documents
    return found


def _first(
    cells: Sequence[Cell], files: Sequence[Path], one: Callable[[Path, str], Found | None]
) -> dict[str, Found]:
    """Model → what `one` finds about its weights in the first of the files that has any, or beside the weights."""
    from sinkscope.models.load import ORGANISMS

    found: dict[str, Found] = {}
    for cell in cells:
        if cell.model.name in found:
            continue
        weights = str(cell.identity["model"]["weights"])
        beside = ORGANISMS / cell.model.source.removeprefix("organism/") / NAME
        shipped = [beside] if cell.model.source.startswith("organism/") and beside.is_file() else []
        for path in (*files, *shipped):
            known = one(path, weights)
            if known is not None:
                found[cell.model.name] = known
                break
    return found
