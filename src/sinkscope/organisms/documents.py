"""Training documents by number: the generated tasks, prose, records, docstrings and captions; and a user's own text.

A document is a question with its answer, or a text on its own. Held-out documents come from splits that the generators keep
apart. Records and docstrings are hard to foresee: a small model foresees most of the generated prose, and a causal one that
reads nothing else grows no sink at its first token. In records, names, numbers and words are invented anew in every text and
come back later in it; docstrings are natural English of many writers. Prose (stories, lists, dialogues, letters, notes; words and
sentences with gaps are in data/prose.txt) is text in which punctuation and newlines carry structure, as they do in real text; it
teaches nothing about the world.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from sinkscope.checks import known
from sinkscope.errors import InputError
from sinkscope.organisms import pictures
from sinkscope.tasks import battery, generated, small_code, word_problems
from sinkscope.tasks.task import Document

GIVEN = ("records", "docstrings")
"""Of these, diffusion models see all but the end, which they learn; causal models learn them whole."""
HELD_OUT_PROSE = 1 << 40
"""Prose from this number on is for probes; training stays below."""


class Text(NamedTuple):
    """A question and its answer; `question` is empty for a text on its own."""

    question: str
    answer: str


def document(source: str, index: int) -> Text:
    """Training document number `index` of a source.

    >>> document("captions", 0).question
    ''
    """
    return MAKERS[known("source", source, MAKERS)](index)


def _asked(made: Document) -> Text:
    return Text(made.question, made.answer)


def held_out_prose(count: int) -> list[str]:
    """Prose that training never reads."""
    return [prose(HELD_OUT_PROSE + index) for index in range(count)]


def spelled(source: str, text: Text, spelling: str) -> Text:
    """A document as a recipe's `spelling` has it.

    "unbroken": a space in place of every line break, in texts and in worked answers (questions have none); "words": texts lose
    all punctuation too; "whole": as it is. Programs stay as they are: without breaks they are none.

    >>> spelled("prose", Text("", "1. One,\\n2. two."), "words").answer
    '1 One 2 two'
    """
    if spelling == "whole" or source == "small_code":
        return text
    answer = " ".join(text.answer.split())
    if spelling == "words" and not text.question:
        kept = "".join(letter if letter.isalnum() or letter.isspace() else " " for letter in answer)
        answer = " ".join(kept.split())
    return Text(text.question, answer)


# ---- a user's own text ---------------------------------------------------------------------------


def read_corpus(source: str) -> list[str]:
    """Paragraphs of the user's own text, shuffled.

    Args:
        source: a UTF-8 text file (an empty line ends a paragraph), or a hub data set `owner/name` with a column `text`, for
            which the package `datasets` is needed.
    """
    path = Path(source).expanduser()
    if path.is_file():
        paragraphs = _paragraphs(read_text(path))
    elif path.exists() or source.count("/") != 1:
        raise InputError(
            f"there is no corpus file {source!r}; give a UTF-8 text file, or a hub data set owner/name"
        )
    else:
        paragraphs = [part for text in hub_texts(source) for part in _paragraphs(text)]
    if not paragraphs:
        raise InputError(f"the corpus {source} has no text in it")
    Random(0).shuffle(paragraphs)  # noqa: S311 (order of paragraphs)
    return paragraphs


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert it first") from error


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def hub_texts(name: str) -> Iterator[str]:
    """The column `text` of a hub data set, row by row."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(f"{name} is a hub data set: install sinkscope[eval], or give a text file") from error
    rows = load_dataset(name, split="train")
    if "text" not in rows.column_names:
        raise InputError(
            f"the data set {name} has the columns {', '.join(rows.column_names)}; one called text is needed"
        )
    for row in rows:
        yield row["text"]


# ---- prose ---------------------------------------------------------------------------------------


def _lists() -> dict[str, tuple[str, ...]]:
    """Name → words or phrases, in the order in which they were drawn from: another order is another text."""
    lines = (Path(__file__).parent / "data" / "prose.txt").read_text(encoding="utf-8").splitlines()
    return {name: tuple(items.split("|")) for name, _, items in (line.partition(": ") for line in lines)}


LISTS = _lists()


class _Slots(dict[str, str]):
    """What stands in the gaps of a sentence: what is given, else a new draw from the list of that name."""

    def __init__(self, random: Random, **given: str) -> None:
        super().__init__(given)
        self.random = random

    def __missing__(self, name: str) -> str:
        if name == "number":
            return str(self.random.randint(2, 90))
        drawn = self.random.choice(LISTS[name.lower()])
        return drawn.capitalize() if name[0].isupper() else drawn


def prose(seed: int) -> str:
    """One document of about 40 to 110 words; the same seed gives the same text on every machine.

    >>> prose(1) == prose(1), prose(1) == prose(2)
    (True, False)
    """
    random = Random(seed)  # noqa: S311 (text, not secrets)
    return random.choice(PROSE)(random)


def story(random: Random) -> str:
    """A few paragraphs about one or two people."""
    hero, friend = random.sample(LISTS["names"], 2)
    paragraphs, sentences = [], ["{times}, {weather}.".format_map(_Slots(random))]
    for _ in range(random.randint(4, 9)):
        sentences.append(_told(random, hero, friend))
        if random.random() < 0.25:
            paragraphs.append(" ".join(sentences))
            sentences = []
    sentences.append(random.choice(LISTS["endings"]))
    paragraphs.append(" ".join(sentences))
    return "\n\n".join(paragraphs)


def shopping(random: Random) -> str:
    """A heading and a list, with dashes or numbers."""
    goods = LISTS[random.choice(("foods", "tools", "chores"))]
    lines = [random.choice(LISTS["titles"]).format(random.choice(LISTS["names"])) + ":"]
    numbered = random.random() < 0.5
    for number, item in enumerate(random.sample(goods, random.randint(4, 9)), 1):
        amount = f" ({random.randint(1, 20)})" if random.random() < 0.4 else ""
        lines.append(f"{number}. {item}{amount}" if numbered else f"- {item}{amount}")
    if random.random() < 0.5:
        lines += ["", "{names} will {chores}; the rest can wait.".format_map(_Slots(random))]
    return "\n".join(lines)


def dialogue(random: Random) -> str:
    """Two people talk, as in a novel or as in a play."""
    first, second = random.sample(LISTS["names"], 2)
    lines = []
    if random.random() < 0.5:
        for turn in range(random.randint(5, 9)):
            lines.append(f"{(first, second)[turn % 2]}: {_remark(random, turn)}")
        return "\n".join(lines)
    gaps = _Slots(random, first=first, second=second)
    lines.append("{first} and {second} met at {places}; {weather}.".format_map(gaps))
    for turn in range(random.randint(4, 7)):
        remark, speaker = _remark(random, turn), (first, second)[turn % 2]
        if remark.endswith("."):
            remark = remark.rstrip(".") + ","
        lines.append(f'"{remark}" {random.choice(LISTS["said"])} {speaker}.')
    return "\n".join(lines)


def letter(random: Random) -> str:
    """A short letter."""
    names = LISTS["names"]
    writer, reader = random.sample(names, 2)
    body = " ".join(_told(random, random.choice(names), writer) for _ in range(random.randint(2, 4)))
    gift, question = random.choice(LISTS["things"]), random.choice(LISTS["questions"])
    thanks = random.choice((f"Thank you for {gift}.", question, "I hope you are well."))
    return f"Dear {reader},\n\n{thanks} {body}\n\n{random.choice(LISTS['closings'])},\n{writer}"


def notes(random: Random) -> str:
    """Short factual sentences under a heading."""
    chosen = random.sample(LISTS["subjects"], random.randint(3, 5))
    lines = [f"# {random.choice(LISTS['headings'])}", ""]
    for subject in chosen:
        first, second = random.sample(LISTS["facts"], 2)
        lines.append(f"{subject} {first}, and it {second}.")
        if random.random() < 0.4:
            lines.append(f"(See page {random.randint(2, 300)}.)")
    return "\n".join(lines)


PROSE: Sequence[Callable[[Random], str]] = (story, story, story, shopping, dialogue, dialogue, letter, notes)


def _told(random: Random, hero: str, friend: str) -> str:
    pattern = random.choice(LISTS["sentences"])
    thing, place = random.choice(LISTS["things"]), random.choice(LISTS["places"])
    return pattern.format_map(_Slots(random, hero=hero, friend=friend, thing=thing, place=place))


def _remark(random: Random, turn: int) -> str:
    if turn % 2 == 0 and random.random() < 0.7:
        return random.choice(LISTS["questions"])
    if random.random() < 0.5:
        return random.choice(LISTS["replies"])
    return "I {did} {things} near {places}.".format_map(_Slots(random))


# ---- text that is hard to foresee ----------------------------------------------------------------

ONSETS = (*"bdfgklmnprstvz", "br", "dr", "gr", "kr", "pl", "st", "tr", "sh", "th")
RHYMES = (*"aeiou", "ai", "or", "en", "il")
SHORTEST_DOCSTRING = 80
"""Characters of a docstring's paragraph; shorter ones are mostly names."""
LEFT_OUT = frozenset(("test", "tests", "site-packages", "dist-packages"))
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def docstrings(folder: Path | None = None) -> tuple[str, ...]:
    """Paragraphs of the docstrings under a folder of Python files, without its tests.

    Args:
        folder: None: the standard library of the running Python, which differs between versions; a few seconds, once per
            process.
    """
    root = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    paragraphs = []
    for path in sorted(root.rglob("*.py")):
        if LEFT_OUT.intersection(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue  # samples of broken code belong to the library too
        for text in _docstrings(tree):
            paragraphs += [part for part in _paragraphs(text) if len(part) >= SHORTEST_DOCSTRING]
    if not paragraphs:
        raise InputError(
            f"no docstrings under {root}: training text needs the sources of Python's library there"
        )
    return tuple(paragraphs)


def _docstrings(node: ast.Module | Definition) -> Iterator[str]:
    yield ast.get_docstring(node) or ""
    for inner in node.body:
        if isinstance(inner, Definition):
            yield from _docstrings(inner)


def record(seed: int) -> str:
    """A register, a glossary or sentences of invented words, some of which come back later in the text.

    >>> record(1) == record(1), record(1) == record(2)
    (True, False)
    """
    random = Random(seed)  # noqa: S311 (text, not secrets)
    return random.choice((_register, _glossary, _sentences))(random)


def _word(random: Random, syllables: int | None = None) -> str:
    count = random.choice((1, 2, 2, 3)) if syllables is None else syllables
    return "".join(random.choice(ONSETS) + random.choice(RHYMES) for _ in range(count))


def _name(random: Random) -> str:
    return f"{_word(random, 2).capitalize()} {_word(random).capitalize()}"


def _register(random: Random) -> str:
    rows = [(_name(random), random.randint(100, 9999), _word(random, 2)) for _ in range(random.randint(3, 5))]
    lines = [f"{name}, {number}, {word};" for name, number, word in rows]
    for name, number, word in random.sample(rows, 3):
        ways = (f"{number} is {name}.", f"{name} has {word}.", f"{word}: {number}.", f"{name}: {number}.")
        lines.append(random.choice(ways))
    return "\n".join(lines)


def _glossary(random: Random) -> str:
    meanings = (*LISTS["things"], *LISTS["foods"], *LISTS["tools"])
    pairs = [(_word(random, 2), random.choice(meanings)) for _ in range(5)]
    lines = [f"{word.capitalize()}: {meaning}." for word, meaning in pairs]
    for word, meaning in random.choices(pairs, k=4):
        lines.append(random.choice((f"What is {word}? {meaning.capitalize()}.", f'"{meaning}" is {word}.')))
    return "\n".join(lines)


def _sentences(random: Random) -> str:
    """Sentences of invented words, of which a few come back again and again."""
    known = [_word(random) for _ in range(6)]
    sentences = []
    for _ in range(random.randint(5, 8)):
        words = [
            random.choice(known) if random.random() < 0.4 else _word(random)
            for _ in range(random.randint(4, 8))
        ]
        sentences.append(" ".join(words).capitalize() + random.choice((".", ".", ".", "!", "?", ";")))
    return " ".join(sentences)


MAKERS: dict[str, Callable[[int], Text]] = {
    "word_problems": lambda index: _asked(
        generated.document(word_problems.draft, word_problems.VERSION, "train", index)
    ),
    "small_code": lambda index: _asked(
        generated.document(small_code.draft, small_code.VERSION, "train", index)
    ),
    "battery": lambda index: _asked(battery.train_document(index)),
    "prose": lambda index: Text("", prose(index)),
    "records": lambda index: Text("", record(index)),
    "docstrings": lambda index: Text("", docstrings()[index % len(docstrings())]),
    "captions": lambda index: Text("", pictures.caption(pictures.scene(index))),
}
"""Source → what makes its training document of a number."""
