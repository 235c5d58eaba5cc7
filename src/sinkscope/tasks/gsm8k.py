"""GSM8K (Cobbe et al. 2021): grade-school word problems, put and graded as each model's official evaluation does it.

The test set has 1319 documents: `test.jsonl` of github.com/openai/grade-school-math, or `openai/gsm8k` on the hub.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

from sinkscope.base.errors import InputError
from sinkscope.tasks.extraction import extract, is_right
from sinkscope.tasks.schemes import choose, compose, read_schemes
from sinkscope.tasks.sources import Example, HubData, read_examples, read_rows
from sinkscope.tasks.task import Document, Mark, Prompt, Scheme, Task, cut

_FIELDS = ("question", "answer")
_REVISION = "e53f048856ff4f594e959d75785d2c2d37b678ee"
TEST = HubData("openai/gsm8k", "main", "test", "GSM8K's test.jsonl (1319 lines)", 1319, _FIELDS, _REVISION)
TRAIN = HubData("openai/gsm8k", "main", "train", "GSM8K's train.jsonl (7473 lines)", 7473, _FIELDS, _REVISION)

SCHEMES, DEFAULTS = read_schemes("gsm8k")

_SHOTS_SEED = 1234  # lm-eval's default seed of the examples


@dataclass(frozen=True)
class Gsm8k(Task):
    """The task. `data`: the test file; examples from the training set are read from the file beside it."""

    scheme: Scheme
    data: Path | None = None
    name: str = "gsm8k"

    def documents(self, limit: int | None = None) -> list[Document]:
        """The test documents, with examples of their own where the scheme draws them (as lm-eval does)."""
        rows = read_rows(TEST, self.data)
        drawn = self._drawn(len(rows)) if self.scheme.shots == "train" else [{} for _ in rows]
        documents = [
            Document(f"test-{index}", row["question"], row["answer"], extra)
            for index, (row, extra) in enumerate(zip(rows, drawn, strict=True))
        ]
        return documents[:limit]

    def _drawn(self, number: int) -> list[dict[str, str]]:
        """Examples of the training set for each document. One random stream, consumed in the order of the documents."""
        train = read_rows(TRAIN, None if self.data is None else _train_file(self.data))
        rng = Random(_SHOTS_SEED)  # noqa: S311
        draws = [rng.sample(range(len(train)), self.scheme.count) for _ in range(number)]
        return [{"examples": json.dumps([[train[i]["question"], train[i]["answer"]] for i in draw])} for draw in draws]

    def prompt(self, document: Document) -> Prompt:
        examples: tuple[Example, ...] = ()
        if "examples" in document.extra:
            examples = tuple(Example(*pair) for pair in json.loads(document.extra["examples"]))
        elif self.scheme.shots:
            examples = read_examples(self.scheme.shots)[: self.scheme.count]
        return compose(self.scheme, self.scheme.question.format(question=document.question), examples)

    def grade(self, document: Document, output: str) -> Mark:
        """Right when the scheme's extraction finds the gold number.

        The gold text itself is always right: OpenCompass's rule, kept as it is, misses the 14 with commas.
        """
        number = extract(self.scheme.extraction, cut(output, self.scheme.until))
        gold = output.strip() == document.answer.strip()
        return Mark(gold or is_right(self.scheme.extraction, number, document.answer), number)


def _train_file(test: Path) -> Path:
    """The training file beside a test file: the same name with "train" for "test"."""
    train = test.with_name(test.name.replace("test", "train"))
    if train == test or not train.is_file():
        raise InputError(
            f"this scheme draws its examples from GSM8K's training set, and there is no {train.name} beside "
            f"{test}: put {TRAIN.file} there under that name, or choose a scheme with fixed examples"
        )
    return train


def task(scheme: str | None = None, family: str | None = None, data: str | Path | None = None) -> Gsm8k:
    return Gsm8k(choose("gsm8k", SCHEMES, DEFAULTS, scheme, family), None if data is None else Path(data))
