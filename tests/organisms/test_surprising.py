"""Text that is hard to foresee: the same seed gives the same text, docstrings come from whole files, and a corpus can be read."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from sinkscope.errors import InputError
from sinkscope.organisms import corpus
from sinkscope.organisms.batches import Reader
from sinkscope.organisms.corpus import END, QUESTION, Corpus, make
from sinkscope.organisms.documents import docstrings, document, read_corpus, record
from sinkscope.organisms.recipe import LENGTH, MIXES, RECIPES, recipe
from sinkscope.organisms.vocabulary import shipped

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


@reads_the_library
def test_every_source_has_its_share_and_of_a_given_text_the_end_is_the_answer() -> None:
    words, total, mix = shipped("llada"), 1000, MIXES["surprising"]
    made = make(total, 0, words, workers=1, mix="surprising")
    rows = zip(made.questions, made.question_lengths, made.answers, made.answer_lengths, strict=True)
    pairs = [(q[:m].tolist(), a[:n].tolist()) for q, m, a, n in rows]
    texts = [words.decode(question + answer) for question, answer in pairs]
    found = {"records": 0, "docstrings": 0}
    for name in found:
        # A longer text is cut to the length of a row.
        own = {document(name, index).answer for index in range(total)}
        here = [place for place, text in enumerate(texts) if any(one.startswith(text) for one in own)]
        assert len(here) / total == pytest.approx(mix[name], abs=0.02), name
        assert not made.chat[here].any()
        assert set(made.answer_lengths[here].tolist()) == {END}
    assert made.chat.sum() / total == pytest.approx(mix["word_problems"] + mix["small_code"], abs=0.02)
    assert made.question_lengths[made.chat > 0].max() <= QUESTION
    assert (made.question_lengths[made.chat > 0] > 0).all()


@cache
def documents() -> Corpus:
    """As the shipped recipes read them."""
    return make(200, 0, shipped("llada"), workers=1)


@reads_the_library
@pytest.mark.parametrize("targets", ["answers", "all"])
def test_a_causal_model_learns_a_given_text_whole_and_a_diffusion_model_its_end(targets: str) -> None:
    """Whether the causal one learns the prompts of tasks too (as the shipped recipe does) or not; a row for each, to compare."""
    words = shipped("llama")
    alone, end = (
        Reader(chosen, documents(), shipped(chosen.layout), torch.device("cpu")).batch(0)
        for chosen in (recipe("causal", batch=40, packed=1, targets=targets), recipe("scratch", batch=40))
    )
    own = {f"{record(index)[:40]}" for index in range(200)}
    given = [
        row
        for row, ids in enumerate(alone.ids)
        if any(words.decode(ids[1:].tolist()).startswith(one) for one in own)
    ]
    assert len(given) >= 5
    for row in given:
        length, before = int(alone.length[row]), int(end.start[row])
        # A text that fills its row has no end token.
        assert END <= length - before <= END + 1
        place = torch.arange(LENGTH)
        assert alone.targets(causal=True)[row].equal((place >= 1) & (place < length))
        assert end.targets(causal=False)[row].equal((place >= before) & (place < length))


@reads_the_library
def test_the_command_makes_documents_that_the_shipped_recipes_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["corpus", str(tmp_path), "--documents", "8", "--pictures", "0"])
    corpus.main()
    for chosen in RECIPES.values():
        corpus.same_ingredients(tmp_path, {"mix": MIXES[chosen.mix]})
    assert len(corpus.Corpus.open(tmp_path)) == 8
    assert corpus.made_of(tmp_path)["docstrings"] == len(docstrings())


def test_a_corpus_takes_them_in(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    mine = [record(seed) for seed in range(10_000, 10_050)]  # none of the package's own
    path.write_text("\n\n".join(mine))
    words = shipped("llama")
    made = make(100, 0, words, read_corpus(str(path)), 0.4, workers=1, mix="plain")
    texts = [
        words.decode(row[:length].tolist())
        for row, length in zip(made.answers, made.answer_lengths, strict=True)
    ]
    # A longer one is cut to the length of a row.
    taken = [text for text in texts if any(one.startswith(text) for one in mine)]
    assert 35 <= len(taken) <= 45


@pytest.mark.parametrize("spelling", ["unbroken", "words"])
def test_a_corpus_without_breaks_or_punctuation(spelling: str) -> None:
    """Texts have none, worked answers have no breaks, programs are as they were; the documents are the same ones."""
    words = shipped("llada")
    whole, spelt = (make(120, 0, words, workers=1, mix="plain", spelling=one) for one in ("whole", spelling))
    newline = words.encode(["\n"])[0]
    assert len(newline) == 1
    assert (whole.answers == newline[0]).sum() > 100
    assert whole.chat.tolist() == spelt.chat.tolist()
    for place, chat in enumerate(spelt.chat):
        before, after = (
            words.decode(one.answers[place, : one.answer_lengths[place]].tolist()) for one in (whole, spelt)
        )
        code = bool(chat) and "####" not in before
        assert ("\n" in after) == (code and "\n" in before)
        if code:
            assert after == before
        if not chat and spelling == "words":
            assert all(letter.isalnum() or letter == " " for letter in after)
            assert after.split()[:5] == "".join(c if c.isalnum() else " " for c in before).split()[:5]
        if chat and not code:
            assert after == before.replace("\n", " ")
    about = corpus.ingredients("plain", words, spelling=spelling)
    assert about == {**corpus.ingredients("plain", words), "spelling": spelling}
