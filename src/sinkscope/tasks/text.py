"""Running text: how well a model predicts it, in nats per token. There is no right answer; a policy is compared with none.

    sinkscope evaluate smollm2 --task text --policy top:1
    sinkscope evaluate smollm2 --task text --data my_passages.txt

The passages that ship (data/passages.jsonl.gz; the file's first line says where they come from) are in the public domain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sinkscope.base.errors import InputError
from sinkscope.models.model import Model
from sinkscope.tasks.reading import ReadTask, read_texts, record_of, text_ids
from sinkscope.tasks.records import Generation
from sinkscope.tasks.schemes import only_scheme
from sinkscope.tasks.sources import from_file, json_lines, own_file, shipped_rows, text_of
from sinkscope.tasks.task import NATS, Document, Mark, Prompt, Scheme, Turn

if TYPE_CHECKING:
    from sinkscope.tasks.answer import BatchSize, Items
    from sinkscope.tasks.experiment import Experiment

PASSAGES = "give passages as JSON lines with a field text, or as a text file"
PROMPT_WORDS = 40
"""Words of a passage that a generation continues."""
END_OF_DOCUMENT = "\n\f\n"
"""A line with a form feed stands between two documents of a text file, here and in the text of `sinkscope train adapt`."""


@dataclass(frozen=True)
class TextTask(ReadTask):
    """Passages; `data`: a JSON-lines file with `text` (and perhaps `id`), or a text file; None: those that ship."""

    scheme: Scheme
    data: Path | None = None
    name: str = "text"

    version: ClassVar[str] = "text/1"
    measure: ClassVar[str] = NATS

    def documents(self, limit: int | None = None) -> Sequence[Document]:
        return (shipped() if self.data is None else read_passages(self.data))[:limit]

    def prompt(self, document: Document) -> Prompt:
        """The first words of a passage, for a model to go on with."""
        words = document.question.split()[:PROMPT_WORDS]
        return Prompt((Turn("user", " ".join(words)),), chat=False)

    def grade(self, document: Document, output: str) -> Mark:
        """A text that was read is neither right nor wrong."""
        return Mark(True, output)

    def read(self, model: Model, experiment: Experiment, items: Items, batch_size: BatchSize) -> list[Generation]:
        texts = {item.document.id: text_ids(model, item.document.question) for item in items}
        keys = {item.document.id: item.stream for item in items}
        read = read_texts(model, texts, experiment.decoding, experiment.policy, keys, batch_size)
        records = []
        for item in items:
            one = read[item.document.id]
            numbers = {
                "nll": round(one.nll, 6), "tokens": len(one.values), "nats": [round(value, 5) for value in one.values],
                "columns": list(one.columns), "vocabulary": model.shape.vocabulary,
            }  # fmt: skip
            output = f"{one.nll:.6f} nats per token"
            records.append(record_of(item, output, one.forwards, one.tokens, experiment.policy, one.account, **numbers))
        return records


def task(scheme: str | None = None, family: str | None = None, data: Any = None) -> TextTask:
    decoding = {"scored": 128 if family == "causal" else None}
    plain = only_scheme("text", scheme, family, None, source="sinkscope's own", bos=True, decoding=decoding)
    return TextTask(plain, own_file(data, PASSAGES))


@lru_cache(maxsize=1)
def shipped() -> tuple[Document, ...]:
    """The passages that come with the package; the first line of the file is about them all."""
    rows = shipped_rows("passages.jsonl.gz")
    return tuple(Document(row["id"], row["text"], "", {"source": row["source"]}) for row in rows)


@from_file
def read_passages(path: Path) -> Iterator[tuple[str, Document]]:
    """Passages of one's own."""
    text = text_of(path, PASSAGES)
    if text.lstrip().startswith("{"):
        for where, row in json_lines(text, path):
            words = row.get("text")
            if not isinstance(words, str) or not words.strip():
                raise InputError(f"{where}: expected a field text that is not empty")
            name = str(row["id"]) if "id" in row else _name_of(words.strip())
            yield where, Document(name, words.strip(), "")
    else:
        yield from ((str(path), Document(_name_of(part), part, "")) for part in split_text(text))


def _name_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def split_text(text: str) -> list[str]:
    """The documents of a text file; without a form feed every paragraph is one."""
    parts = text.split(END_OF_DOCUMENT) if END_OF_DOCUMENT in text else text.split("\n\n")
    return [part.strip() for part in parts if part.strip()]
