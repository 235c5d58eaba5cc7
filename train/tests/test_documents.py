"""Training documents: prose, the battery, and text that is hard to foresee: the same seed gives the same text."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import torch

from sinkscope.base.errors import InputError
from sinkscope.tasks import get
from sinkscope.tasks.battery import SKILLS, strata, train_documents
from sinkscope.tasks.battery.skills import ADJECTIVES, NAMES, THINGS
from sinkscope_train.corpus import END, QUESTION, CorpusPlan, Reader, made_of, open_corpus
from sinkscope_train.documents import docstrings, held_out_prose, prose, record
from sinkscope_train.documents import document as numbered
from sinkscope_train.recipe import ANSWER, LENGTH, MIXES, recipe
from sinkscope_train.rows import Batch
from sinkscope_train.vocabulary import shipped


def test_the_text_is_the_one_that_the_shipped_weights_saw() -> None:
    joined = "\x00".join(prose(seed) for seed in range(500))
    assert hashlib.sha256(joined.encode()).hexdigest()[:16] == "ac3d21edd7819ada"


def test_documents_differ_and_have_natural_structure() -> None:
    texts = [prose(seed) for seed in range(400)]
    assert len(set(texts)) == len(texts)
    for mark in (".", ",", ";", ":", "?", '"', "'", "\n\n", "\n- ", "\n1. ", "("):
        assert any(mark in text for text in texts), mark
    assert sum("\n" in text for text in texts) > 200
    assert not any(re.search(r"[{}]|  ", text) for text in texts), "an unfilled or doubled piece"


def test_held_out_prose_is_not_training_prose() -> None:
    training = {prose(seed) for seed in range(3000)}
    assert not training & set(held_out_prose(50))


@pytest.mark.slow
def test_the_organisms_can_read_and_write_the_battery() -> None:
    train = [document for skill in SKILLS for seed in (0, 1) for document in train_documents(skill, 300, seed)]
    test = get("battery").documents(12 * len(strata()))
    for layout in ("llama", "llada"):
        vocabulary = shipped(layout)
        for documents in (train, test):
            questions = vocabulary.encode([document.question for document in documents])
            answers = vocabulary.encode([document.answer for document in documents])
            assert max(map(len, questions)) <= QUESTION
            assert max(map(len, answers)) < ANSWER  # and one that ends the turn
            for document, question, answer in zip(documents, questions, answers, strict=True):
                assert vocabulary.backend.decode(question) == document.question
                assert vocabulary.backend.decode(answer) == document.answer
        assert {len(row) for row in vocabulary.encode([f" {word}" for word in NAMES + THINGS + ADJECTIVES])} == {1}


def test_training_reads_it_by_number() -> None:
    texts = [numbered("battery", index) for index in range(27)]
    assert [text.answer for text in texts] == [get("battery").document("train", index).answer for index in range(27)]


reads_the_library = pytest.mark.slow
"""Reads all of Python's library, once per process: ten seconds on a small machine."""

LONG = "This paragraph of a docstring is long enough to be taken, because it has more than eighty characters in it."


def test_records_differ_and_ask_again_for_what_they_introduced() -> None:
    texts = [record(seed) for seed in range(200)]
    assert len(set(texts)) == 200
    registers = [text for text in texts if ";\n" in text]
    assert len(registers) > 30
    for text in registers:
        told = [line for line in text.split("\n") if line.endswith(";")]
        asked = [line.rstrip(".") for line in text.split("\n") if line.endswith(".")]
        assert len(asked) == 3
        introduced = {part for line in told for part in line.rstrip(";").split(", ")}
        for line in asked:
            assert sum(part in line for part in introduced) >= 2, line


def test_docstrings_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "good.py").write_text(f'def f():\n    """Short.\n\n    {LONG}\n    """\n')
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "test" / "left_out.py").write_text(f'"""{LONG}"""\n')
    assert docstrings(tmp_path) == (LONG,)


def test_a_folder_without_docstrings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no docstrings under"):
        docstrings(tmp_path)


@reads_the_library
def test_the_standard_library_has_plenty() -> None:
    found = docstrings()
    assert len(found) > 1000
    assert all(len(text) >= 80 for text in found)


def made(plan: CorpusPlan) -> tuple[Batch, list[str]]:
    """The rows of a plan, and the text of each."""
    batch = Batch.of(torch.from_numpy(plan.made()["texts"].astype("int64")))
    decode = plan.vocabulary.backend.decode
    return batch, [decode(row[:end].tolist()) for row, end in zip(batch.ids, batch.content, strict=True)]


@reads_the_library
def test_every_source_has_its_share_and_of_a_given_text_the_end_is_the_answer() -> None:
    total, mix = 1000, MIXES["surprising"]
    batch, texts = made(CorpusPlan(total, 0, shipped("llada")))
    for name in ("records", "docstrings"):
        # A longer text is cut to the length of a row.
        mine = {numbered(name, index).answer for index in range(total)}
        here = [row for row, text in enumerate(texts) if any(one.startswith(text) for one in mine)]
        assert len(here) / total == pytest.approx(mix[name], abs=0.02), name
        assert not batch.chat[here].any()
        assert {END} <= set((batch.content - batch.start)[here].tolist()) <= {END, END + 1}
    chat = batch.chat > 0
    assert chat.sum() / total == pytest.approx(mix["word_problems"] + mix["small_code"], abs=0.02)
    assert batch.start[chat].max() <= QUESTION + 12


@reads_the_library
@pytest.mark.parametrize("targets", ["answers", "all"])
def test_a_causal_model_learns_a_given_text_whole_and_a_diffusion_model_its_end(targets: str) -> None:
    """Whether the causal one learns the prompts of tasks too (as the shipped recipe does) or not; a row for each, to compare."""
    alone, end = (
        Reader(chosen, CorpusPlan(200, 0, words).made(), words, torch.device("cpu")).batch(0)
        for chosen in (recipe("causal", batch=40, packed=1, targets=targets), recipe("scratch", batch=40))
        for words in (shipped(chosen.layout),)
    )
    mine, decode = {record(index)[:40] for index in range(200)}, shipped("llama").backend.decode
    given = [row for row, ids in enumerate(alone.ids) if any(decode(ids[1:].tolist()).startswith(one) for one in mine)]
    assert len(given) >= 5
    for row in given:
        length, before = int(alone.length[row]), int(end.start[row])
        # A text that fills its row has no end token.
        assert END <= length - before <= END + 1
        column = torch.arange(LENGTH)
        assert alone.targets(causal=True)[row].equal((column >= 1) & (column < length))
        assert end.targets(causal=False)[row].equal((column >= before) & (column < length))


@reads_the_library
def test_what_a_corpus_was_made_of_is_kept(tmp_path: Path) -> None:
    CorpusPlan(8, 0, shipped("llada")).make_in(tmp_path)
    about = made_of(tmp_path, mix=MIXES["surprising"])
    assert (about["documents"], about["docstrings"]) == (8, len(docstrings()))
    assert len(open_corpus(tmp_path)["texts"]) == 8
