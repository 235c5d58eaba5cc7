"""Documents of the battery: pure functions of stratum, split, seed and number.

Training and test are disjoint by the hash of a document's content (`sinkscope.tasks.generated`), and so are all training seeds
from the test: no seed can draw a test document for training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from sinkscope.tasks import generated
from sinkscope.tasks.battery.strata import Stratum, check_level, skill_of, strata
from sinkscope.tasks.generated import Draft
from sinkscope.tasks.task import Document

VERSION = "battery/1"  # changing any text, here or in a skill, changes scores: count up


def test_documents(chosen: Sequence[Stratum], limit: int | None) -> list[Document]:
    """The first `limit` test documents, one of each stratum in turn."""
    each = None if limit is None else -(-limit // len(chosen))
    columns = [
        [_named(stratum, item) for item in generated.first(_make(stratum), _seed(stratum), "test", each)]
        for stratum in map(check_level, chosen)
    ]
    return [item for row in zip(*columns, strict=True) for item in row][:limit]


test_documents.__test__ = False  # type: ignore[attr-defined]  # pytest takes its name for a test's


def train_documents(skill: str, n: int, seed: int = 0, level: int | None = None) -> list[Document]:
    """Training documents of a skill, at its levels in turn or at one; another seed gives others.

    >>> train_documents("arithmetic", 1, level=2)[0].answer.count("=")
    2
    """
    chosen = strata((skill,)) if level is None else (Stratum(skill, level),)
    return [train_document(number, chosen, seed) for number in range(n)]


def train_document(index: int, chosen: Sequence[Stratum] | None = None, seed: int = 0) -> Document:
    """Training document number `index` of some strata, which follow each other in turn; None: of the whole battery."""
    chosen = strata() if chosen is None else chosen
    stratum = check_level(chosen[index % len(chosen)])
    made = generated.document(_make(stratum), f"{_seed(stratum)}/{seed}", "train", index // len(chosen))
    return _named(stratum, made)


def _named(stratum: Stratum, made: Document) -> Document:
    return replace(made, id=f"{stratum}/{made.id}")


def _seed(stratum: Stratum) -> str:
    return f"{VERSION}/{stratum}"


def _make(stratum: Stratum) -> Callable[[Random], Draft]:
    make = skill_of(stratum.skill).make

    def draft(rng: Random) -> Draft:
        made = make(rng, stratum.level)
        return replace(made, extra={**made.extra, "skeleton": made.skeleton})

    return draft
