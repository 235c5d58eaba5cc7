"""Running text: how well a model predicts it, in nats per token. There is no right answer; a policy is compared with none.

    sinkscope evaluate smollm2 --task text --policy top:1
    sinkscope evaluate smollm2 --task text --data my_passages.txt

The passages that ship (data/passages.jsonl.gz; the file's first line says where they come from) are in the public domain.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from sinkscope.base.errors import InputError
from sinkscope.decoding import Decoding
from sinkscope.decoding.reading import DenoisingReading, MaskedReading, Reading
from sinkscope.models.model import Model
from sinkscope.policies.policy import Policy
from sinkscope.tasks.likelihood import causal, denoised, masked_copies, text_masks
from sinkscope.tasks.reading import ReadTask, check_reading, record_of, text_ids
from sinkscope.tasks.records import Generation, Key
from sinkscope.tasks.schemes import only_scheme
from sinkscope.tasks.sources import from_file, json_lines, own_file, shipped_rows, text_of
from sinkscope.tasks.task import NATS, Document, Mark, Prompt, Scheme, Turn, in_parts, seed_of

if TYPE_CHECKING:
    from sinkscope.tasks.answer import BatchSize, Item, Items
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
        texts = [(item, text_ids(model, item.document.question)) for item in items]
        return read_texts(model, texts, experiment.decoding, experiment.policy, batch_size)


def read_texts(
    model: Model,
    texts: Sequence[tuple[Item, list[int]]],
    reading: Decoding,
    policy: Policy | None,
    batch_size: BatchSize = "auto",
) -> list[Generation]:
    """The records of texts, given as token ids behind a start token; those that are longer than the reading's length are cut."""
    from sinkscope.tasks.answer import rows_at_once

    reading = check_reading(model, reading)
    by_length: dict[int, list[tuple[Item, list[int]]]] = defaultdict(list)
    for item, tokens in texts:
        if len(tokens) < 2:
            raise InputError(f"the text {item.document.id} has no token behind its start: give a longer one")
        by_length[min(len(tokens), reading.length)].append((item, tokens))
    records: dict[Key, Generation] = {}
    # Texts of one length go together: without padding each is read as it would be alone.
    for length, alike in by_length.items():
        rows = rows_at_once(model, length, batch_size)
        for batch in in_parts(alike, max(1, rows // copies_of(reading))):
            ids = torch.tensor([tokens[:length] for _, tokens in batch], device=model.device)
            read = _read(model, ids, [item for item, _ in batch], reading, policy, rows)
            records |= {record.key: record for record in read}
    return [records[item.key] for item, _ in texts]


def copies_of(reading: Reading) -> int:
    """How often a text is read, each time with other masks."""
    return reading.masks if isinstance(reading, MaskedReading) else 1


def _read(
    model: Model, ids: torch.Tensor, items: Items, reading: Reading, policy: Policy | None, rows: int
) -> Iterator[Generation]:
    """The records of texts of one length, ids Long [text, column]; `rows` of their copies run beside each other."""
    texts, length = ids.shape
    copies, given = copies_of(reading), length - min(reading.targets, length - 1)
    keys = [item.stream for item in items]
    # The scored tokens, in the order of their values.
    where = torch.zeros(texts, copies, length, dtype=torch.bool)
    where[:, :, given:] = True
    if isinstance(reading, MaskedReading):
        names = [item.document.id for item in items]
        where[:, :, given:] = torch.stack([text_masks(name, length - given, copies, reading.share) for name in names])
        keys = [seed_of(f"{key}/{copy}") for key in keys for copy in range(copies)]
        nats = masked_copies(model, ids, where, given, policy, keys, rows)
    elif isinstance(reading, DenoisingReading):
        nats = denoised(model, ids, given, min(reading.steps, length - given), policy, keys)
    else:
        nats = causal(model, ids, given, policy, keys)
    values = iter(torch.split(nats.values.flatten(), where.sum(2).flatten().tolist()))
    for number, item in enumerate(items):
        each = [next(values).tolist() for _ in range(copies)]
        # Copies count alike, whatever their number of masks.
        nll = math.fsum(math.fsum(copy) / len(copy) for copy in each) / copies
        of_tokens = [round(value, 5) for copy in each for value in copy]
        numbers = {
            "nll": round(nll, 6), "tokens": len(of_tokens), "nats": of_tokens,
            "columns": where[number].nonzero()[:, 1].tolist(), "vocabulary": model.shape.vocabulary,
        }  # fmt: skip
        acted = nats.acted(slice(number * copies, (number + 1) * copies))
        yield record_of(item, f"{nll:.6f} nats per token", nats.forwards * copies, length, policy, acted, **numbers)


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
