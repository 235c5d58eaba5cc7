"""Rows of tokens: BOS first, targets where they should be, the same documents for every recipe."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from sinkscope.base.errors import InputError
from sinkscope_train import corpus, pictures
from sinkscope_train.corpus import Corpus, CorpusPlan, Reader, in_order
from sinkscope_train.recipe import ANSWER, LENGTH, RECIPES, recipe
from sinkscope_train.rows import CAPTION_ANSWER, Batch
from sinkscope_train.vocabulary import SINK, shipped, vocabulary_of, with_sink_token

CPU = torch.device("cpu")


@cache
def documents(layout: str, extra_sink: str) -> Corpus:
    words = shipped(layout) if extra_sink == "none" else with_sink_token(shipped(layout))
    return CorpusPlan(300, 60 if layout == "mmada" else 0, words, "plain").made()


def reader(name: str, **changes: object) -> Reader:
    chosen = recipe(name, batch=20, **changes)
    return Reader(chosen, documents(chosen.layout, chosen.extra_sink), vocabulary_of(chosen), CPU)


def answers(name: str, batch: Batch) -> list[str]:
    words = shipped(recipe(name).layout)
    return [
        words.backend.decode(row[start:content].tolist())
        for row, start, content in zip(batch.ids, batch.start, batch.content, strict=True)
    ]


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_row_starts_with_bos_and_ends_in_padding_of_end_tokens(name: str) -> None:
    words = shipped(recipe(name).layout)
    batch, packed = reader(name).batch(0), recipe(name).packed
    assert batch.ids.shape == (20 // packed, LENGTH * packed)
    assert (batch.ids[:, 0] == words.bos).all()
    assert (batch.ids[~batch.real] == words.eos).all()
    assert (batch.start >= 1).all()
    assert (batch.content <= batch.stop).all()
    assert (batch.stop <= batch.length).all()
    assert (batch.length <= LENGTH * packed).all()


def test_all_recipes_read_the_same_documents_in_the_same_order() -> None:
    for step in (0, 13, 14, 40):  # the corpus begins anew at step 15
        expected = answers("scratch", reader("scratch").batch(step))
        assert answers("adapted", reader("adapted").batch(step)) == expected
        # Packed rows hold the same ones (see below), so the causal recipe is compared with a row for each.
        alone = reader("causal", packed=1, targets="answers").batch(step)
        assert answers("causal", alone) == expected
        mixed = answers("multimodal", reader("multimodal").batch(step))
        assert mixed[10:] == expected[10:]


def test_every_document_once_per_epoch() -> None:
    places = torch.cat([in_order(0, 300, step * 20, 20, CPU) for step in range(30)])
    assert sorted(places[:300].tolist()) == list(range(300))
    assert sorted(places[300:].tolist()) == list(range(300))
    assert places[:300].tolist() != places[300:].tolist()


def test_tasks_have_64_answer_tokens_of_which_a_causal_model_learns_the_first_end() -> None:
    words = shipped("llada")
    batch = reader("scratch").batch(0)
    chat = batch.ids[:, 1] == words.encode([words.before])[0][1]
    assert chat.sum() >= 8
    assert (batch.stop - batch.start)[chat].eq(ANSWER).all()
    rows = torch.arange(len(batch.ids))
    assert (batch.ids[rows, batch.content - 1][chat] == words.eot).all()
    whole = ~chat & (batch.content < LENGTH)  # a longer text is cut
    assert (batch.ids[rows, batch.content - 1][whole] == words.eos).all()
    assert batch.targets(causal=True).sum(1).equal(batch.content - batch.start)
    assert batch.targets(causal=False).sum(1).equal(batch.stop - batch.start)


def test_targets_all_takes_prompts_in() -> None:
    batch = reader("scratch", targets="all").batch(0)
    assert (batch.start == 1).all()
    assert batch.ids.equal(reader("scratch").batch(0).ids)


def test_the_causal_recipe_learns_every_token_of_a_row_but_bos() -> None:
    batch = reader("causal").batch(0)
    expected = batch.real.clone()
    expected[:, 0] = False
    assert batch.targets(causal=True).equal(expected)


@pytest.mark.parametrize("targets", ["answers", "all"])
@pytest.mark.parametrize("extra_sink", ["none", "seen"])
@pytest.mark.parametrize("name", ["causal", "scratch"])
def test_packed_rows_hold_the_same_documents_one_after_the_other(name: str, extra_sink: str, targets: str) -> None:
    alone, packed = (reader(name, targets=targets, packed=count, extra_sink=extra_sink).batch(3) for count in (1, 4))
    words, causal, lead = shipped(recipe(name).layout), name == "causal", 1 if extra_sink == "none" else 2
    for row in range(5):
        ids, learned = alone.ids[0, :lead].tolist(), [False] * lead
        assert ids == ([words.bos] if lead == 1 else [words.token(SINK), words.bos])
        for one in range(4 * row, 4 * row + 4):
            end = int((alone.content if causal else alone.stop)[one])
            ids += alone.ids[one, lead:end].tolist()
            learned += alone.targets(causal)[one, lead:end].tolist()
        assert int(packed.length[row]) == len(ids)
        assert packed.ids[row, : len(ids)].tolist() == ids
        assert packed.ids[row, len(ids) :].eq(words.eos).all()
        assert packed.targets(causal=True)[row].tolist() == learned + [False] * (4 * LENGTH - len(ids))
        assert packed.real[row].tolist() == [True] * len(ids) + [False] * (4 * LENGTH - len(ids))
    assert packed.rows(slice(1, 3)).targets(causal=True).equal(packed.targets(causal=True)[1:3])


@pytest.mark.parametrize("name", ["causal", "scratch", "adapted"])
def test_a_sink_token_leaves_the_documents_as_they_are(name: str) -> None:
    plain, opened = (reader(name, packed=1, extra_sink=kind).batch(2) for kind in ("none", "alone"))
    assert opened.ids[:, 0].unique().tolist() == [shipped("llada").token(SINK)]
    assert opened.ids[:, 1:].equal(plain.ids)
    assert opened.length.equal(plain.length + 1)
    causal = recipe(name).causal
    assert opened.targets(causal)[:, 1:].equal(plain.targets(causal))
    assert not opened.targets(causal)[:, 0].any()


def test_packing_is_for_text_and_divides_the_batch() -> None:
    with pytest.raises(InputError, match="rows with pictures are not packed"):
        recipe("multimodal", packed=4)
    with pytest.raises(InputError, match="must divide the batch of 10"):
        recipe("causal", packed=4, batch=10)


def test_pictures_both_ways() -> None:
    words = shipped("mmada")
    batch = reader("multimodal").batch(0)
    offset = len(words)
    for row in range(10):
        ids, start = batch.ids[row].tolist(), int(batch.start[row])
        if row < 5:
            text, codes = words.backend.decode(ids[:start]), ids[start : int(batch.stop[row])]
            assert ids[start - 1] == words.token("<|soi|>")
            assert ids[int(batch.length[row]) - 1] == words.token("<|eoi|>")
            assert int(batch.length[row]) == start + pictures.CELLS + 1
        else:
            text, codes = answers("multimodal", batch)[row], ids[3 : 3 + pictures.CELLS]
            assert int(batch.stop[row]) - start == CAPTION_ANSWER
        assert pictures.describes(text, [code - offset for code in codes])


def test_making_many_documents_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CHUNK", 2)
    said: list[str] = []
    CorpusPlan(40, 0, shipped("llada"), "plain").made(say=said.append)
    assert said == [f"documents: {tenth * 10}% of 40" for tenth in range(1, 11)]


@pytest.mark.slow
def test_a_corpus_does_not_depend_on_the_number_of_workers() -> None:
    plan = CorpusPlan(60, 10, shipped("mmada"), "plain")
    once, again = plan.made(workers=1), plan.made(workers=2)
    assert all((once[name] == again[name]).all() for name in corpus.TABLES)
