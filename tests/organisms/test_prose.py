"""Generated prose: a pure function of its seed, with structure."""

from __future__ import annotations

import hashlib
import re

from sinkscope.organisms.documents import held_out_prose, prose


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
