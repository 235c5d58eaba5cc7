"""Varied generated prose: stories, lists, dialogues, letters, notes.

It gives the organisms text in which punctuation and newlines carry structure, as they do in real text. Every document is a
pure function of its seed. It is not meant to teach a model anything about the world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from sinkscope.organisms.words import (
    CHORES,
    COLOURS,
    DID,
    ENDINGS,
    FACTS,
    FOODS,
    MOODS,
    NAMES,
    PEOPLE,
    PLACES,
    QUESTIONS,
    REPLIES,
    SAID,
    SUBJECTS,
    THINGS,
    TIMES,
    TOOLS,
    WANTED,
    WEATHER,
    WENT,
)


def prose(seed: int) -> str:
    """One document of about 40 to 110 words; the same seed gives the same text on every machine.

    >>> prose(1) == prose(1), prose(1) == prose(2)
    (True, False)
    """
    random = Random(seed)  # noqa: S311 (text, not secrets)
    kind = random.choice(KINDS)
    return kind(random)


def story(random: Random) -> str:
    """A few paragraphs about one or two people."""
    hero, friend = random.sample(NAMES, 2)
    paragraphs, sentences = [], [f"{random.choice(TIMES)}, {random.choice(WEATHER)}."]
    for _ in range(random.randint(4, 9)):
        sentences.append(_sentence(random, hero, friend))
        if random.random() < 0.25:
            paragraphs.append(" ".join(sentences))
            sentences = []
    sentences.append(random.choice(ENDINGS))
    paragraphs.append(" ".join(sentences))
    return "\n\n".join(paragraphs)


def shopping(random: Random) -> str:
    """A heading and a list, with dashes or numbers."""
    goods = random.choice((FOODS, TOOLS, CHORES))
    title = random.choice(
        ("To buy", "To do today", "Things to bring", "Notes for {}", "List of {}", "Before we leave")
    )
    lines = [title.format(random.choice(NAMES)) + ":"]
    numbered = random.random() < 0.5
    for number, item in enumerate(random.sample(goods, random.randint(4, 9)), 1):
        amount = f" ({random.randint(1, 20)})" if random.random() < 0.4 else ""
        lines.append(f"{number}. {item}{amount}" if numbered else f"- {item}{amount}")
    if random.random() < 0.5:
        lines += ["", f"{random.choice(NAMES)} will {random.choice(CHORES)}; the rest can wait."]
    return "\n".join(lines)


def dialogue(random: Random) -> str:
    """Two people talk, as in a novel or as in a play."""
    first, second = random.sample(NAMES, 2)
    lines = []
    if random.random() < 0.5:
        for turn in range(random.randint(5, 9)):
            lines.append(f"{(first, second)[turn % 2]}: {_remark(random, turn)}")
        return "\n".join(lines)
    lines.append(f"{first} and {second} met at {random.choice(PLACES)}; {random.choice(WEATHER)}.")
    for turn in range(random.randint(4, 7)):
        remark, speaker = _remark(random, turn), (first, second)[turn % 2]
        if remark.endswith("."):
            remark = remark.rstrip(".") + ","
        lines.append(f'"{remark}" {random.choice(SAID)} {speaker}.')
    return "\n".join(lines)


def letter(random: Random) -> str:
    """A short letter."""
    writer, reader = random.sample(NAMES, 2)
    body = " ".join(_sentence(random, random.choice(NAMES), writer) for _ in range(random.randint(2, 4)))
    thanks = random.choice(
        (f"Thank you for {random.choice(THINGS)}.", random.choice(QUESTIONS), "I hope you are well.")
    )
    closing = random.choice(("Yours", "Love", "Best wishes", "See you soon"))
    return f"Dear {reader},\n\n{thanks} {body}\n\n{closing},\n{writer}"


def notes(random: Random) -> str:
    """Short factual sentences under a heading."""
    chosen = random.sample(SUBJECTS, random.randint(3, 5))
    lines = [f"# {random.choice(('Notes', 'Field book', 'What we know', 'Questions and answers'))}", ""]
    for subject in chosen:
        first, second = random.sample(FACTS, 2)
        lines.append(f"{subject} {first}, and it {second}.")
        if random.random() < 0.4:
            lines.append(f"(See page {random.randint(2, 300)}.)")
    return "\n".join(lines)


KINDS: Sequence[Callable[[Random], str]] = (story, story, story, shopping, dialogue, dialogue, letter, notes)


def _sentence(random: Random, hero: str, friend: str) -> str:
    pattern = random.randrange(10)
    thing, place = random.choice(THINGS), random.choice(PLACES)
    if pattern == 0:
        return f"{hero} {random.choice(WENT)} {place} and {random.choice(DID)} {thing}."
    if pattern == 1:
        return f"{friend} was {random.choice(MOODS)}, because {hero} {random.choice(DID)} {thing}."
    if pattern == 2:
        return f'"{random.choice(QUESTIONS)}" {random.choice(SAID)} {random.choice(PEOPLE)}.'
    if pattern == 3:
        return (
            f"Near {place} stood {random.choice(PEOPLE)}, {random.choice(MOODS)} and {random.choice(MOODS)}."
        )
    if pattern == 4:
        return f"{hero} wanted {random.choice(WANTED)}; {friend} wanted {random.choice(WANTED)}."
    if pattern == 5:
        return f"There were {random.randint(2, 90)} {random.choice(COLOURS)} boats at {place}."
    if pattern == 6:
        when, did = random.choice(TIMES), random.choice(DID)
        return f"{when}, {hero} {did} {thing}, {random.choice(THINGS)} and {random.choice(THINGS)}."
    if pattern == 7:
        return f"When {hero} {random.choice(WENT)} {place}, {random.choice(WEATHER)}."
    if pattern == 8:
        return f"{random.choice(PEOPLE).capitalize()} gave {friend} {thing}: it was {random.choice(COLOURS)} and very old."
    return f"{friend} {random.choice(WENT)} {place}, but {hero} stayed."


def _remark(random: Random, turn: int) -> str:
    if turn % 2 == 0 and random.random() < 0.7:
        return random.choice(QUESTIONS)
    if random.random() < 0.5:
        return random.choice(REPLIES)
    return f"I {random.choice(DID)} {random.choice(THINGS)} near {random.choice(PLACES)}."
