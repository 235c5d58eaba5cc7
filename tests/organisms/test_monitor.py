"""The training monitor writes what the official loops write, though its rows are padded on the right."""

from __future__ import annotations

import pytest
import torch

from sinkscope.generation.generate import generate
from sinkscope.models.load import load
from sinkscope.organisms import monitor
from sinkscope.organisms.recipe import recipe
from sinkscope.organisms.vocabulary import shipped
from sinkscope.tasks import registry
from sinkscope.tasks.evaluate import decoding_for

CPU = torch.device("cpu")
COUNT = 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["causal", "scratch"])
def test_it_writes_what_the_official_loop_writes(name: str) -> None:
    model, chosen = load(f"organism/{name}", device="cpu", dtype="float32"), recipe(name)
    words = shipped(chosen.layout)
    asked = monitor.questions(chosen, words, COUNT, CPU)[0]
    written = monitor.Writer(model.network, chosen.objective, words).write(asked.batch, 64)
    task = registry.get("word_problems", model.family)
    texts = [document.question for document in asked.documents]
    official = generate(model, texts, decoding_for(task, model.family)).texts
    assert [monitor._text(words, row) for row in written.tolist()] == official


def test_it_needs_logits_of_the_asked_places_alone() -> None:
    """[N, V] of the places that are asked for, in the order of rows, and aligned with the token that they say."""
    model, chosen = load("organism/causal", device="cpu", dtype="float32"), recipe("causal")
    words = shipped(chosen.layout)
    writer = monitor.Writer(model.network, chosen.objective, words)
    ids = monitor.questions(chosen, words, COUNT, CPU)[0].batch.ids[:, :20]
    where = torch.zeros_like(ids, dtype=torch.bool)
    where[0, 5] = where[1, [3, 9]] = where[2, 1] = True
    with torch.no_grad():
        found = writer.logits(ids, torch.ones_like(where), where)
        whole = model.logits(ids)
    wanted = torch.stack([whole[0, 4], whole[1, 2], whole[1, 8], whole[2, 0]])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
