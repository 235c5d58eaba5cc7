"""A task: documents, a prompt for each, and a grade for each answer.

A new task is a file with a frozen dataclass that derives from `Task`, and one registration (a line in `registry.py`,
`ss.register`, or an entry point). Everything that can change a score (wording, examples, stop strings, extraction, decoding) is
data in a `Scheme`, which has a name and is printed with the result: scores in the field differ by ten points on such details.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

Item = TypeVar("Item")

ACCURACY, NATS = "accuracy", "nll"
"""What a task measures: the share of right answers, or nats per token. Only the second is named."""


@dataclass(frozen=True)
class Document:
    """One question. `id` is stable across runs and machines; records and paired comparisons are keyed by it."""

    id: str
    question: str  # the story; for code: signature and docstring
    answer: str  # the gold answer, as a model would write it
    extra: Mapping[str, str] = field(default_factory=dict)  # what grading needs: tests, entry point


@dataclass(frozen=True)
class Turn:
    role: str  # "system" | "user" | "assistant"
    content: str


@dataclass(frozen=True)
class Prompt:
    """Turns for a chat template; `prefix` opens the assistant's answer and belongs to the prompt, not to the output.

    `chat=False`: no template, the model continues `text()` as it stands (base models).
    """

    turns: tuple[Turn, ...]
    prefix: str = ""
    chat: bool = True

    def messages(self) -> list[dict[str, str]]:
        """The turns as `apply_chat_template` takes them."""
        return [{"role": turn.role, "content": turn.content} for turn in self.turns]

    def text(self) -> str:
        """The turns one after the other, without any markers."""
        return "".join(turn.content for turn in self.turns) + self.prefix


@dataclass(frozen=True)
class Mark:
    """The mark of one output: right or wrong, and why."""

    passed: bool
    extracted: str  # the answer or program that was found in the output
    reason: str = ""  # for a program: why it failed
    sandbox: str = ""  # for a program: the rung that it ran on ("bubblewrap", "landlock", "none")
    broke: bool = False  # the task's grading failed on it


@dataclass(frozen=True)
class Scheme:
    """A named way to put and grade a task: all that can change its score, apart from the model.

    `decoding`: keyword arguments of the family's decoding dataclass. `published`: scores that the source
    reports with it, each with its origin, for a table to show beside ours.
    """

    name: str
    family: str = ""  # the model family it was made for; "": all
    source: str = ""  # where it is from, and what is known to differ
    shots: str = ""  # data file with the few-shot examples; "" for none
    count: int = 0  # how many of them
    layout: str = "turns"  # of examples: "turns", all in "one_turn", or "plain" text without a template
    question: str = "{question}"  # wording around a document
    preamble: str = ""  # before everything else, in the first user turn
    prefix: str = ""  # start of the answer, given to the model
    delimiter: str = " "  # between question and answer of an example, where they share a text
    until: tuple[str, ...] = ()  # the output ends before the first of these
    keep_special: bool = False  # decode special tokens too, because `until` cuts at them
    extraction: str = ""  # how the answer is found: a name of extraction.py or code_text.py
    timeout: float = 3.0  # seconds for one program
    prompt_tokens: int | None = None  # longer prompts lose their beginning
    bos: bool = False  # plain text begins with the model's start token, which its tokenizer does not add
    decoding: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, float] = field(default_factory=dict)


PLAIN = Scheme("plain")


@runtime_checkable
class Task(Protocol):
    """Documents, prompts, grades; frozen and cheap to make: data is read when `documents` is called.

    A class that derives from it writes `name`, `documents` and `grade`, and may replace the rest.

    Attributes:
        scheme: wording, grading and decoding.
        runs_code: grading executes what the model wrote; the sandbox is then checked before the model is loaded.

    A class may say more, which its settings then name: `version`; `measure`, where that is not accuracy; `content`, the digest
    of a file of one's own.
    """

    name: str
    scheme: Scheme = PLAIN
    runs_code: bool = False

    def documents(self, limit: int | None = None) -> Sequence[Document]:
        """The first `limit` documents of the test set, or all; a generated task needs a limit."""
        ...

    def prompt(self, document: Document) -> Prompt:
        """The prompt for a document: its question, as one user turn."""
        return Prompt((Turn("user", document.question),))

    def grade(self, document: Document, output: str) -> Mark: ...

    def grade_many(self, pairs: Sequence[tuple[Document, str]]) -> list[Mark]:
        """`grade` for each (document, output); programs run several at a time."""
        return [self.grade(document, output) for document, output in pairs]

    def settings(self) -> dict[str, Any]:
        """Documents, wording and grading as JSON data: part of a run's identity, beside the decoding."""
        version = getattr(self, "version", f"{self.name}/1")
        more = {"data": getattr(self, "content", ""), "measure": getattr(self, "measure", "")}
        said = {name: value for name, value in more.items() if value}
        return {"task": self.name, "version": version, "scheme": scheme_settings(self.scheme), **said}


def in_parts(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """The items in their order, `size` at a time."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def cut(text: str, until: Sequence[str]) -> str:
    """The text before the first of the stop strings; all of it when there is none."""
    ends = [text.find(stop) for stop in until if stop and stop in text]
    return text[: min(ends)] if ends else text


def digest(data: Any) -> str:
    """A short, stable fingerprint of JSON data: 16 hex digits."""
    line = json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(line.encode()).hexdigest()[:16]


def seed_of(text: str) -> int:
    """The seed that a text stands for: 48 bits of its hash."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def fingerprint(document: Document) -> str:
    """A short hash of a question, its answer and its tests: the same id must mean the same document."""
    return digest([document.id, document.question, document.answer, dict(document.extra)])


def scheme_settings(scheme: Scheme) -> dict[str, Any]:
    """A scheme's wording and grading as JSON data.

    Without its source and published numbers, which cannot change a score, and without family and decoding:
    a run records the decoding that it really used, and the same questions put to two families are one task.
    """
    data: dict[str, Any] = json.loads(json.dumps(asdict(scheme)))
    for name in ("source", "published", "family", "decoding"):
        del data[name]
    return data


def scheme_name(settings: Mapping[str, Any]) -> str:
    """The scheme that a task's settings name; "" for a task of one's own that names none."""
    return str((settings.get("scheme") or {}).get("name", ""))
