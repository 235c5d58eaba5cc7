"""Under every rule a row of a ragged batch equals its run alone; work is counted for each row."""

from __future__ import annotations

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss

DIFFUSION = (
    "prefix:2", "prefix:block,fresh=rest", "prefix:3,fresh=masks", "sparse:0.4,by=sinks,refresh=3",
    "sparse:4,by=random", "sparse:5,by=received+recent", "drift:0.999", "drift:0.999,refresh=layers",
    "drift:1.0,by=union",
)  # fmt: skip
CAUSAL = (
    "sparse:6,by=first:2+recent", "sparse:0.5,by=received+recent", "sparse:4,by=sinks,refresh=3", "sparse:3,by=random",
)  # fmt: skip
CASES = [
    # LLaDA under every rule in `make test`, Dream under one half of them and MMaDA under the other.
    *(
        pytest.param(
            family, text, marks=pytest.mark.soak if family != "llada" and (number + turn) % 2 else pytest.mark.slow
        )
        for turn, family in enumerate(("llada", "dream", "mmada"))
        for number, text in enumerate(DIFFUSION)
    ),
    *(pytest.param("llama", text, marks=pytest.mark.slow) for text in CAUSAL),
]


def decoding_of(family: str) -> ss.Decoding:
    return {
        "llada": ss.LladaDecoding(12, steps=9, block=4),
        "dream": ss.DreamDecoding(10, steps=7),
        "mmada": ss.MmadaDecoding(12, steps=12, block=6),
        "llama": ss.GreedyDecoding(10, eos=None),
    }[family]


@pytest.mark.parametrize(("family", "text"), CASES)
def test_a_row_equals_its_run_alone(family: str, text: str) -> None:
    model, decoding = golden.model(family), decoding_of(family)
    generator = torch.Generator().manual_seed(7)
    lengths = (9, 14, 9)
    ids = torch.randint(4, 400, (3, 14), generator=generator)
    mask = torch.stack([torch.arange(14) >= 14 - length for length in lengths]).long()
    together = ss.generate(model, ids, decoding, attention_mask=mask, seed=[1, 2, 3], reuse=text)
    assert together.extras["reuse"].work is not None
    assert together.extras["reuse"].work.saved > 0
    for row, length in enumerate(lengths):
        alone = ss.generate(model, ids[row : row + 1, 14 - length :], decoding, seed=[row + 1], reuse=text)
        assert torch.equal(alone.states[:, 0], together.states[:, row, 14 - length :])
        assert alone.extras["reuse"].work is not None
        assert (alone.extras["reuse"].work.done[0], alone.extras["reuse"].work.exact[0]) == (
            together.extras["reuse"].work.done[row],
            together.extras["reuse"].work.exact[row],
        )


@pytest.mark.slow
@pytest.mark.parametrize("text", [text for text in DIFFUSION if not text.startswith("drift")])
def test_padding_does_not_matter(text: str) -> None:
    """With one seed for the batch rows are padded; a padded row still does what it does alone (here without ties)."""
    model, decoding = golden.model("llada"), ss.LladaDecoding(12, steps=12, block=4)
    ids = torch.randint(4, 400, (2, 12), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    together = ss.generate(model, ids, decoding, attention_mask=mask, reuse=text)
    if "random" in text:  # keyed by the place in the batch
        assert together.states.shape == (13, 2, 24)
        return
    for row, first in ((0, 0), (1, 4)):
        # LLaDA counts positions from the first column, padding included; a mask of ones and zeros keeps them.
        padded = ss.generate(model, ids[row : row + 1], decoding, attention_mask=mask[row : row + 1], reuse=text)
        assert torch.equal(padded.states[:, 0, first:], together.states[:, row, first:])
