"""Generated prose: stories, lists, dialogues, letters and notes, each a pure function of its seed.

It gives the organisms text in which punctuation and newlines carry structure, as they do in real text. It teaches nothing
about the world. Words, phrases and sentences with gaps are in data/prose.txt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random


def _lists() -> dict[str, tuple[str, ...]]:
    """Name → words or phrases, in the order in which they were drawn from: another order is another text."""
    lines = (Path(__file__).parent / "data" / "prose.txt").read_text(encoding="utf-8").splitlines()
    return {name: tuple(items.split("|")) for name, _, items in (line.partition(": ") for line in lines)}


LISTS = _lists()


class _Gaps(dict[str, str]):
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
    return random.choice(KINDS)(random)


def story(random: Random) -> str:
    """A few paragraphs about one or two people."""
    hero, friend = random.sample(LISTS["names"], 2)
    paragraphs, sentences = [], ["{times}, {weather}.".format_map(_Gaps(random))]
    for _ in range(random.randint(4, 9)):
        sentences.append(_sentence(random, hero, friend))
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
        lines += ["", "{names} will {chores}; the rest can wait.".format_map(_Gaps(random))]
    return "\n".join(lines)


def dialogue(random: Random) -> str:
    """Two people talk, as in a novel or as in a play."""
    first, second = random.sample(LISTS["names"], 2)
    lines = []
    if random.random() < 0.5:
        for turn in range(random.randint(5, 9)):
            lines.append(f"{(first, second)[turn % 2]}: {_remark(random, turn)}")
        return "\n".join(lines)
    gaps = _Gaps(random, first=first, second=second)
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
    body = " ".join(_sentence(random, random.choice(names), writer) for _ in range(random.randint(2, 4)))
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


KINDS: Sequence[Callable[[Random], str]] = (story, story, story, shopping, dialogue, dialogue, letter, notes)


def _sentence(random: Random, hero: str, friend: str) -> str:
    pattern = random.choice(LISTS["sentences"])
    thing, place = random.choice(LISTS["things"]), random.choice(LISTS["places"])
    return pattern.format_map(_Gaps(random, hero=hero, friend=friend, thing=thing, place=place))


def _remark(random: Random, turn: int) -> str:
    if turn % 2 == 0 and random.random() < 0.7:
        return random.choice(LISTS["questions"])
    if random.random() < 0.5:
        return random.choice(LISTS["replies"])
    return "I {did} {things} near {places}.".format_map(_Gaps(random))
