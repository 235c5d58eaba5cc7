"""Other seeds, sizes and settings than the fixtures': sinkscope's loops against naive ones, step by step."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding import naive_loops
from tests.helpers import golden

import sinkscope as ss
from sinkscope.decoding import decoding_from_options

EOS, EOT, MASK = 480, 506, 504
DREAM_MASK = 501
SOME = settings(max_examples=settings.default.max_examples // 2)
"""An example is two whole generations."""


@pytest.fixture(autouse=True)
def _own_stream() -> Any:
    """The naive loops seed torch's global stream; nobody else may notice."""
    with torch.random.fork_rng():
        yield


def prompts(seed: int, rows: int, length: int, vocabulary: int = 470) -> torch.Tensor:
    return torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


def padding(rows: int, length: int, pads: int) -> torch.Tensor | None:
    """The first row padded on the left by `pads`, the others full."""
    if not pads or rows < 2 or pads >= length:
        return None
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, :pads] = 0
    return mask


def with_masks(ids: torch.Tensor, mask_id: int, places: list[int]) -> torch.Tensor:
    """Mask tokens inside the prompt, in different number per row."""
    ids = ids.clone()
    for index, place in enumerate(places):
        ids[index % len(ids), place % ids.shape[1]] = mask_id
    return ids


def same(states: torch.Tensor, expected: list[torch.Tensor]) -> None:
    assert len(states) == len(expected)
    for step, (found, wanted) in enumerate(zip(states, expected, strict=True)):
        assert torch.equal(found, wanted), f"first difference after {step} steps"


class Batch(NamedTuple):
    """Prompts, and what goes with them into both loops."""

    ids: torch.Tensor
    given: dict[str, Any]


def batch(mask_id: int, rows: int, prompt: int, masks: list[int], pads: int, seed: int) -> Batch:
    ids = with_masks(prompts(seed, rows, prompt), mask_id, masks)
    return Batch(ids, {"attention_mask": padding(rows, prompt, pads), "seed": seed})


def batches(mask_id: int, masks: int = 3) -> st.SearchStrategy[Batch]:
    """Up to three rows, with masks in the prompt and one row padded."""
    return st.builds(
        batch, st.just(mask_id), st.integers(1, 3), st.integers(1, 14), st.lists(st.integers(0, 40), max_size=masks),
        st.integers(0, 5), st.integers(0, 10_000),
    )  # fmt: skip


SIZES = st.sampled_from(
    [(8, 8, 8), (12, 6, 4), (12, 12, 4), (12, 9, 4), (10, 3, 10), (6, 12, 3), (9, 9, 3), (4, 4, 1)]
).map(lambda sizes: dict(zip(("length", "steps", "block"), sizes, strict=True)))


@pytest.mark.slow
@SOME
@given(
    batch=batches(MASK),
    sizes=SIZES,
    temperature=st.sampled_from([0.0, 0.0, 0.4, 1.0, 1.7]),
    cfg=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    remasking=st.sampled_from(["low_confidence", "random"]),
    logits_eos_inf=st.booleans(),
    confidence_eos_eot_inf=st.booleans(),
)
def test_llada(batch: Batch, sizes: dict[str, int], **options: Any) -> None:
    model = golden.model("llada")
    run = ss.generate(model, batch.ids, ss.LladaDecoding(**sizes, **options, eot_id=EOT), **batch.given)
    expected = naive_loops.llada(model, batch.ids, **sizes, **options, eos=EOS, eot=EOT, **batch.given)
    same(run.states, expected)


@pytest.mark.slow
@SOME
@given(
    batch=batches(MASK), sizes=SIZES, stop=st.booleans(), temperature=st.sampled_from([0.0, 0.0, 0.6, 1.0]),
    cfg=st.sampled_from([0.0, 0.0, 1.0]), remasking=st.sampled_from(["low_confidence", "random"]),
)  # fmt: skip
def test_mmada_text(batch: Batch, sizes: dict[str, int], stop: bool, **options: Any) -> None:
    model, options = golden.model("mmada"), sizes | options
    loop = partial(naive_loops.llada, model, batch.ids, **options, float64=True, **batch.given)
    full, end = loop(), batch.ids.shape[1] + sizes["block"] - 1
    # Stopping is tried with a token that the free run really writes at the end of its first block.
    stop_at = int(full[-1][0, end]) if stop else None
    run = ss.generate(model, batch.ids, ss.MmadaDecoding(**options, stop_at=stop_at), **batch.given)
    same(run.states, loop(stop_at=stop_at))
    per_block = sizes["steps"] // (sizes["length"] // sizes["block"])
    if len(batch.ids) == 1 and int(full[per_block][0, end]) == stop_at:
        assert len(run) == per_block


@pytest.mark.slow
@SOME
@given(
    batch=batches(DREAM_MASK),
    drawn=batches(DREAM_MASK, masks=0),
    length=st.integers(1, 14),
    steps=st.integers(1, 14),
    algorithm=st.sampled_from(["origin", "maskgit_plus", "topk_margin", "entropy"]),
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.3]),
    top_p=st.sampled_from([None, 1.0, 0.95, 0.5, 0.01]),
    top_k=st.sampled_from([None, None, 1, 7, 10_000]),
    alg_temp=st.sampled_from([None, 0.0, 0.2, 2.0]),
    eps=st.sampled_from([1e-3, 0.2]),
)
def test_dream(batch: Batch, drawn: Batch, **options: Any) -> None:
    model = golden.model("dream")
    if options["top_k"] == 1 and options["algorithm"] == "topk_margin":
        options["top_k"] = 2
    if options["alg_temp"] and len(batch.ids) > 1:
        # Rows with fewer masks than the batch mean would have to be drawn from nothing: official and ours both fail there.
        batch = drawn
    run = ss.generate(model, batch.ids, ss.DreamDecoding(**options), **batch.given)
    same(run.states, naive_loops.dream(model, batch.ids, **options, **batch.given))


@pytest.mark.slow
@pytest.mark.parametrize("timesteps", [1, 3, 9])
@pytest.mark.parametrize(("guidance", "temperature"), [(0.0, 1.0), (2.0, 0.5), (5.0, 0.0)])
def test_mmada_pictures(timesteps: int, guidance: float, temperature: float) -> None:
    model, offset, codes, size = golden.model("mmada"), 507, 64, 11
    for seed in range(3):
        text = prompts(seed, 2, 7)
        slots = torch.full((2, size), MASK)
        if seed == 2:  # part of the picture is given
            slots[0, 2:5] = offset + torch.tensor([1, 60, 33])
        closing = torch.full((2, 1), 483)
        ids = torch.cat([text, slots, closing], 1)
        mask = torch.ones_like(ids)
        mask[1, :3] = 0
        free, free_mask = ids.clone(), torch.ones_like(ids)
        free[:, :6], free_mask[:, :6] = EOS, 0
        run = ss.generate(
            model,
            ids,
            ss.MmadaImageDecoding(timesteps=timesteps, guidance=guidance, temperature=temperature, offset=offset),
            seed=seed,
            attention_mask=mask,
            unconditional=(free, free_mask),
        )
        states, found = naive_loops.picture(
            model, ids, first=7, size=size, offset=offset, codes=codes, timesteps=timesteps, guidance=guidance,
            temperature=temperature, attention_mask=mask, unconditional=(free, free_mask), seed=seed,
        )  # fmt: skip
        same(run.states, states)
        assert torch.equal(run.codes, found)


@pytest.mark.slow
@SOME
@given(
    length=st.integers(1, 12),
    sampling=st.sampled_from([None, (1.0, 1.0), (0.3, 1.0), (1.5, 0.8), (2.0, 0.3), (1.0, 0.001)]),
    ends=st.integers(0, 3),
    rows=st.integers(1, 3),
    prompt=st.integers(1, 12),
    pads=st.integers(0, 6),
    seed=st.integers(0, 10_000),
)
def test_causal(
    length: int, sampling: tuple[float, float] | None, ends: int, rows: int, prompt: int, pads: int, seed: int
) -> None:
    model = golden.model("llama")
    ids, mask = prompts(seed, rows, prompt), padding(rows, prompt, pads)
    options: dict[str, Any] = {} if sampling is None else {"temperature": sampling[0], "top_p": sampling[1]}
    free = naive_loops.causal(model, ids, length=length, attention_mask=mask, seed=seed, **options)
    # Several end ids, taken from what the free run writes at different places, so that rows end at different steps.
    stops = tuple(sorted({int(free[n % rows, prompt + (5 * n + 2) % length]) for n in range(ends)}))
    kind = ss.GreedyDecoding if sampling is None else ss.SamplingDecoding
    run = ss.generate(model, ids, kind(length=length, eos=stops or None, **options), seed=seed, attention_mask=mask)
    pad = model.ids.pad if model.ids.pad is not None else (stops[0] if stops else 0)
    expected = naive_loops.causal(
        model, ids, length=length, ends=stops, filler=pad, attention_mask=mask, seed=seed, **options
    )
    assert torch.equal(run.sequences, expected)
    for step, state in enumerate(run.states):
        written = prompt + step
        assert torch.equal(state[:, :written], expected[:, :written])
        assert (state[:, written:] == -1).all()


def test_the_model_names_several_ends() -> None:
    """eos="model" stops at every end id that the checkpoint names."""
    import dataclasses

    source = golden.model("llama")
    ids = prompts(4, 1, 6)
    free = ss.generate(source, ids, ss.GreedyDecoding(length=12, eos=None)).sequences
    second = int(free[0, 6 + 3])
    keep = source.ids
    try:
        source.ids = dataclasses.replace(keep, eos=(keep.eos[0], second))
        run = ss.generate(source, ids, ss.GreedyDecoding(length=12))
    finally:
        source.ids = keep
    first = free[0, 6:].tolist().index(second)
    assert torch.equal(run.sequences, free[:, : 6 + first + 1])


def test_guidance_honours_padding_where_the_official_mmada_drops_it() -> None:
    """A documented difference: a padded row under guidance must depend on its mask."""
    model, ids = golden.model("mmada"), prompts(8, 2, 9)
    decoding = ss.MmadaDecoding(length=8, steps=8, block=8, cfg=1.0)
    mask = padding(2, 9, 4)
    padded = ss.generate(model, ids, decoding, attention_mask=mask).states
    free = ss.generate(model, ids, decoding).states
    assert torch.equal(padded[:, 1], free[:, 1])
    changed = ids.clone()
    changed[0, :4] = 7  # what stands in padding has no influence
    again = ss.generate(model, changed, decoding, attention_mask=mask).states
    assert torch.equal(again[:, 0, 4:], padded[:, 0, 4:])
    assert not torch.equal(padded[:, 0], free[:, 0])


@pytest.mark.parametrize(("length", "block"), [(40, 40), (100, 25), (48, 24), (64, 32), (8, 8), (67, 67)])
def test_a_length_alone_gets_blocks_that_fill_it(length: int, block: int) -> None:
    """The divisor nearest to the usual 32 as a ratio; what is written out stays as it is, or is refused."""
    for family in ("llada", "mmada", "nemotron"):
        decoding: Any = decoding_from_options(family, {"length": length})
        assert decoding.block == block
    assert decoding_from_options("a2d", {"length": length}) == ss.MdlmDecoding(length=length)
    with pytest.raises(ss.InputError, match="not a multiple"):
        decoding_from_options("llada", {"length": length, "block": 11})
    if length % 32:
        with pytest.raises(ss.InputError, match="not a multiple"):
            ss.LladaDecoding(length=length)
