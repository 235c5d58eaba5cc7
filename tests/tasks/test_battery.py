"""The battery: right and wrong answers of every skill, a dial that makes questions harder, splits that are disjoint."""

from __future__ import annotations

import re
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.helpers.byte_tokenizer import TURNS, checkpoint_with_tokenizer

import sinkscope as ss
from sinkscope.base.errors import InputError
from sinkscope.tasks import generated, get
from sinkscope.tasks.battery import SKILLS, skill_of, strata, stratum_of, train_documents
from sinkscope.tasks.battery.skills import OPERATIONS, after_mark
from sinkscope.tasks.evaluate import decoding_options
from sinkscope.tasks.generated import split_of
from sinkscope.tasks.grading import task_of
from sinkscope.tasks.registry import guessed
from sinkscope.tasks.task import Document

EACH = 12


@pytest.fixture(scope="module")
def test() -> list[Document]:
    return get("battery").documents(EACH * len(strata()))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def train() -> list[Document]:
    return [document for skill in SKILLS for seed in (0, 1) for document in train_documents(skill, 300, seed)]


def test_every_stratum_has_its_turn(test: list[Document]) -> None:
    assert len(strata()) == 27
    assert [stratum_of(document.id) for document in test] == list(strata()) * EACH
    assert {stratum.skill for stratum in strata()[:9]} == set(SKILLS)
    one = get("battery:logic").documents(6)
    assert [document.id for document in one] == [document.id for document in test if document.id.startswith("logic")][
        :6
    ]


@pytest.mark.parametrize("skill", SKILLS)
def test_gold_answers_are_right_and_others_are_not(skill: str, train: list[Document]) -> None:
    task = get(f"battery:{skill}")
    mine = [document for document in train if document.id.startswith(f"{skill}@")]
    golds = [after_mark(document.answer) for document in mine]
    for document, gold, other in zip(mine, golds, golds[1:] + golds[:1], strict=True):
        assert task.grade(document, document.answer).passed, document
        loosely = gold.replace(" ", "") if skill == "brackets" else f"{gold.upper().replace(' ', ', ')}."
        assert task.grade(document, f"#### wrong\nNo:\n#### {loosely}\n").passed
        assert not task.grade(document, gold).passed  # the form is part of the task
        assert not task.grade(document, "").passed
        assert not task.grade(document, "####").passed
        assert not task.grade(document, f"#### {gold} {gold}x").passed
        if skill != "planning":
            assert task.grade(document, f"#### {other}").passed == (
                set(other.split()) == set(gold.split()) if skill == "logic" else other == gold
            )
    assert get(f"battery:{skill}:chat").grade(mine[0], f"I think.\n\n{golds[0]}\n").passed
    assert len(set(golds)) > len(golds) / 25 or skill in ("planning", "brackets")  # no answer worth guessing


def test_signs_and_the_words_around_an_answer() -> None:
    """An instruct model's usual forms of a right answer are right; the negative of a number is another number."""

    def graded(part: str, before: str = "", between: str = " ", after: str = "", last: str = "") -> bool:
        task = get(f"battery:{part}:chat")
        document = task.documents(1)[0]
        *first, end = after_mark(document.answer).split()
        given = between.join((*first, last + end))
        return task.grade(document, f"#### {before}{given}{after}").passed

    assert not graded("arithmetic@2", before="-")
    assert not graded("arithmetic@2", before="−")
    assert not graded("arithmetic@2", before="= -")
    assert graded("arithmetic@2", before="**", after="**.")
    assert graded("logic@3", between=", ", last="and ")
    assert graded("copying@4", before="_", after="_")
    assert not graded("logic@3", last="not ")
    for quote in ("`", '"'):
        assert graded("brackets@2", before=quote, between=", ", after=quote)
    assert not graded("brackets@2", before="( ")


@pytest.mark.parametrize("skill", ["retrieval", "relations", "logic", "state"])
def test_who_draws_an_answer_from_the_question_is_right_as_often_as_guessed(skill: str) -> None:
    rng = Random(0)
    for level in skill_of(skill).levels:
        task, right = get(f"battery:{skill}@{level}"), 0
        documents = [document for _ in range(8) for document in task.documents(100)]
        for document in documents:
            if skill == "logic":
                offered = re.findall(r"then (\w+)", document.question)
                answer = " ".join([document.question.split()[2], *(word for word in offered if rng.random() < 0.5)])
            elif skill == "relations":
                links = re.findall(r"(\w+) gives to (\w+)", document.question)
                people = {name for link in links for name in link}
                answer = rng.choice(sorted(people - set(re.findall(r"starts with (\w+)", document.question))))
            else:
                answer = rng.choice(re.findall(r"the (\w+)[.,]", document.question))
            right += task.grade(document, f"#### {answer}").passed
        expected = guessed(task.name, [document.id for document in documents])
        assert right / 800 == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 800) ** 0.5)


def test_guessing_in_all_strata_is_the_mean_over_documents(test: list[Document]) -> None:
    levels = [stratum.guessed for stratum in strata()]
    ids = [document.id for document in test]
    assert guessed("battery:chat", ids) == pytest.approx(sum(levels) / 27)
    assert guessed("battery", ids[:2]) == pytest.approx(
        (1 / 2 + 1 / 3) / 2
    )  # two facts; three people besides the first
    assert guessed("battery:copying", ["copying@4/test-0"]) == guessed("gsm8k", ["test-0"]) == 0
    assert guessed("blimp", []) == 0.5


def test_answers_follow_from_their_questions(train: list[Document]) -> None:
    """Every skill solved a second time, from the words of the question alone."""
    for document in train:
        stratum = stratum_of(document.id)
        assert stratum is not None
        solved = SOLVERS[stratum.skill](document.question)
        assert get("battery").grade(document, f"#### {solved}").passed, (document, solved)


def _retrieval(question: str) -> str:
    facts = dict(re.findall(r"(\w+) has the (\w+)\.", question))
    return str(facts[re.findall(r"does (\w+) have", question)[0]])


def _relations(question: str) -> str:
    links = dict(re.findall(r"(\w+) gives to (\w+)\.", question))
    who, times = re.findall(r"starts with (\w+) and moves (\d+)", question)[0]
    for _ in range(int(times)):
        who = links[who]
    return str(who)


def _logic(question: str) -> str:
    true = {re.findall(r"^\w+ is (\w+)\.", question)[0]}
    rules = [(set(left.split(" and ")), right) for left, right in re.findall(r"If ([\w ]+) then (\w+)", question)]
    for _ in rules:
        true |= {right for left, right in rules if left <= true}
    return " ".join(true)


def _planning(question: str) -> str:
    """Depth-first, so that the way is mostly another one than the gold."""
    squares = [tuple(map(int, found)) for found in re.findall(r"(\d),(\d)", question)]
    *walls, start, goal = squares
    steps = {"right": (1, 0), "left": (-1, 0), "down": (0, -1), "up": (0, 1)}

    def ways(at: tuple[int, ...], seen: tuple[Any, ...]) -> str | None:
        if at == goal:
            return ""
        for name, (across, along) in steps.items():
            there = (at[0] + across, at[1] + along)
            if min(there) >= 1 and max(there) <= 4 and there not in walls and there not in seen:
                rest = ways(there, (*seen, there))
                if rest is not None:
                    return f"{name} {rest}"
        return None

    found = ways(start, (start,))
    assert found is not None
    return found


def _composition(question: str) -> str:
    words, told = question.removeprefix("Words: ").rstrip(".").split(". ")
    items = words.split()
    for name in told.lower().split(", then "):
        items = OPERATIONS[name](items)
    return " ".join(items)


def _state(question: str) -> str:
    first, *rest = question.split(". ")
    has = dict(re.findall(r"(\w+)(?: has)? the (\w+)", first))
    for one, other in re.findall(r"(\w+) and (\w+) swap", " ".join(rest)):
        has[one], has[other] = has[other], has[one]
    return str(has[re.findall(r"does (\w+) have", question)[0]])


def _arithmetic(question: str) -> str:
    value = int(re.findall(r"Start with (\d+)", question)[0])
    for name, number in re.findall(r"then (\w+) (\d+)", question):
        value = {"plus": value + int(number), "minus": value - int(number), "times": value * int(number)}[name]
    return str(value)


def _brackets(question: str) -> str:
    left = question.partition(": ")[2].replace(" ", "")
    while any(pair in left for pair in ("()", "[]", "{}")):
        left = left.replace("()", "").replace("[]", "").replace("{}", "")
    return left[::-1].translate(str.maketrans("([{", ")]}"))


def _copying(question: str) -> str:
    return question.partition(": ")[2].partition(".")[0]


SOLVERS = {
    "retrieval": _retrieval, "relations": _relations, "logic": _logic, "planning": _planning, "composition": _composition,
    "state": _state, "arithmetic": _arithmetic, "brackets": _brackets, "copying": _copying,
}  # fmt: skip


def test_a_plan_is_right_when_it_arrives() -> None:
    task = get("battery:planning")
    document = Document("planning@2/x-0", "", "#### up up", {"world": "[[1, 1], [1, 3], [[2, 2], [4, 4], [4, 1]]]"})
    for plan, right in {
        "up up": True, "Up, up.": True, "up down up up": True, "up": False, "right up left up": False, "left up right up": False,
        "up up up down": True, "down up up up": False, "up up now": False,
    }.items():  # fmt: skip
        assert task.grade(document, f"#### {plan}").passed == right, plan


@pytest.mark.parametrize("skill", SKILLS)
def test_the_dial_makes_questions_longer_or_answers(skill: str) -> None:
    chosen = skill_of(skill)
    lengths, counted = [], []
    for level in range(chosen.least, min(chosen.most, 9) + 1):
        documents = train_documents(skill, 40, level=level)
        assert len({document.id for document in documents}) == 40
        lengths.append(sum(len(d.question.split()) + len(d.answer.split()) for d in documents) / 40)
        counted.append(DIALS[skill](documents[0]))
    assert all(one < other for one, other in pairwise(lengths)), lengths
    assert counted == list(range(chosen.least, min(chosen.most, 9) + 1))
    with pytest.raises(InputError, match=f"from {chosen.least} to {chosen.most}"):
        get(f"battery:{skill}@{chosen.most + 1}")
    get(f"battery:{skill}@{chosen.most}").documents(1)


DIALS: dict[str, Any] = {
    "retrieval": lambda document: document.question.count(" has the "),
    "relations": lambda document: len(document.answer.split()) - 2,
    "logic": lambda document: document.question.count("If "),
    "planning": lambda document: len(document.answer.split()) - 1,
    "composition": lambda document: document.question.count(", then ") + 1,
    "state": lambda document: document.question.count(" swap."),
    "arithmetic": lambda document: document.answer.count("="),
    "brackets": lambda document: len(document.answer.split()) - 1,
    "copying": lambda document: len(document.question.partition("Then: ")[2].partition(".")[0].split()),
}


def test_splits_are_disjoint(train: list[Document], test: list[Document]) -> None:
    """By content: the same facts in another order are the same problem."""
    assert {split_of(document.extra["skeleton"]) for document in train} == {"train"}  # whatever the seed

    def content(document: Document) -> frozenset[str]:
        return frozenset(document.question.split(". "))

    unordered = ("retrieval", "relations", "logic")
    mine = {content(document) for document in train if document.id.startswith(unordered)}
    assert not mine & {content(document) for document in test if document.id.startswith(unordered)}


def test_composition_is_tested_on_pairs_that_training_never_shows() -> None:
    def pairs(document: Document) -> set[tuple[str, str]]:
        return set(pairwise(document.question.partition(". ")[2].rstrip(".").lower().split(", then ")))

    seen = set().union(*(pairs(document) for document in train_documents("composition", 3000)))
    tested = [pairs(document) for document in get("battery:composition").documents(300)]
    assert all(found - seen for found in tested)  # each has a pair that is new
    assert {name for pair in seen for name in pair} == set(OPERATIONS)  # and no operation is
    assert set(product(OPERATIONS, OPERATIONS)) - seen <= set().union(*tested)


def test_training_documents_follow_from_their_seed_and_level() -> None:
    document = get("battery:state@3").document("train", 5)  # type: ignore[attr-defined]
    assert document == train_documents("state", 6, level=3)[5]
    assert train_documents("state", 5, seed=1) != train_documents("state", 5)


@pytest.mark.slow
def test_names_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("battery", "plain"), ("battery:logic", "chat"), ("battery:logic@3", "plain")):
        task = get(f"{name}:{version}", "dream")
        assert task.name == name
        assert task.scheme.name == version
        again = task_of({"task": task.settings()})  # as `sinkscope evaluate --grade` finds it
        assert again.settings() == task.settings()
        assert again.documents(3) == task.documents(3)
    assert get("battery:chat", "llada").scheme.decoding["length"] == 128
    assert get("battery:plain", "llada").scheme.decoding["length"] == 64
    assert decoding_options(get("battery:logic:chat"), "causal") == {"length": 128}  # type: ignore[arg-type]
    assert decoding_options(get("battery:logic"), "causal") == {"length": 64}  # type: ignore[arg-type]
    for name, word in (
        ("battery:logics", "logic"), ("battery:logic@x", "whole number"), ("battery:logic:chatty", "chat"),
        ("battery:@3", "skill"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=word):
            get(name)
    monkeypatch.setattr(generated, "MOST_REPEATED", 100)  # 10,000 draws say the same after eight seconds
    with pytest.raises(InputError, match="different test questions"):
        get("battery:brackets@1").documents(10_000)


@pytest.mark.slow
def test_an_organism_answers_it(tmp_path: Path) -> None:
    found = ss.evaluate("organism/causal", "battery", ss.GreedyDecoding(length=8), limit=9, out=tmp_path / "run")
    frame = found.table()
    assert list(frame["skill"]) == list(SKILLS)
    assert list(frame["difficulty"]) == [skill_of(skill).levels[0] for skill in SKILLS]
    skills = found.skills()
    assert list(skills.columns) == ["skill", "difficulty", "n", "accuracy", "low", "high"]
    assert skills["accuracy"].mean() == pytest.approx(found.accuracy)
    assert "skills     retrieval " in repr(found)
    one = ss.evaluate("organism/causal", "battery:copying@4", ss.GreedyDecoding(length=8), limit=2)
    assert {record.document for record in one.records} == {"copying@4/test-0", "copying@4/test-1"}
    with pytest.raises(InputError, match="no skills"):
        ss.evaluate("organism/causal", "word_problems", ss.GreedyDecoding(length=2), limit=1).skills()


def test_an_instruct_model_is_asked_under_its_chat_template(tmp_path: Path) -> None:
    model = ss.load(checkpoint_with_tokenizer("llama", tmp_path / "hub", TURNS), device="cpu")
    found = ss.evaluate(model, "battery:chat", ss.GreedyDecoding(length=4), policy="first:1", limit=9)
    for record, document in zip(found.records, get("battery").documents(9), strict=True):
        form = skill_of(record.document.partition("@")[0]).form
        asked = f"{document.question}\nEnd your answer with a line that has #### and then {form}."
        assert record.prompt == f"u:{asked}\na:"
    assert found.settings["task"]["scheme"]["name"] == "chat"
    assert set(found.skills()["skill"]) == set(SKILLS)
