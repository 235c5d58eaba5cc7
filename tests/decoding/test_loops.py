"""Other seeds, sizes and settings than the fixtures': sinkscope's loops against naive ones, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding import naive_loops
from tests.helpers import golden

import sinkscope as ss

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


blocks = st.sampled_from(
    [(8, 8, 8), (12, 6, 4), (12, 12, 4), (12, 9, 4), (10, 3, 10), (6, 12, 3), (9, 9, 3), (4, 4, 1)]
)
places = st.lists(st.integers(0, 40), max_size=3)


@pytest.mark.slow
@SOME
@given(
    sizes=blocks,
    temperature=st.sampled_from([0.0, 0.0, 0.4, 1.0, 1.7]),
    cfg=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    remasking=st.sampled_from(["low_confidence", "random"]),
    eos_inf=st.booleans(),
    conf_inf=st.booleans(),
    rows=st.integers(1, 3),
    prompt=st.integers(1, 14),
    masks=places,
    pads=st.integers(0, 5),
    seed=st.integers(0, 10_000),
)
def test_llada(
    sizes: tuple[int, int, int],
    temperature: float,
    cfg: float,
    remasking: str,
    eos_inf: bool,
    conf_inf: bool,
    rows: int,
    prompt: int,
    masks: list[int],
    pads: int,
    seed: int,
) -> None:
    model = golden.model("llada")
    options: dict[str, Any] = dict(zip(("length", "steps", "block"), sizes, strict=True))
    options.update(temperature=temperature, cfg=cfg, remasking=remasking, logits_eos_inf=eos_inf)
    options["confidence_eos_eot_inf"] = conf_inf
    ids = with_masks(prompts(seed, rows, prompt), MASK, masks)
    mask = padding(rows, prompt, pads)
    run = ss.generate(model, ids, ss.LladaDecoding(**options, eot_id=EOT), seed=seed, attention_mask=mask)
    same(
        run.states, naive_loops.llada(model, ids, **options, eos=EOS, eot=EOT, attention_mask=mask, seed=seed)
    )


@pytest.mark.slow
@SOME
@given(
    sizes=blocks,
    temperature=st.sampled_from([0.0, 0.0, 0.6, 1.0]),
    cfg=st.sampled_from([0.0, 0.0, 1.0]),
    remasking=st.sampled_from(["low_confidence", "random"]),
    stop=st.booleans(),
    rows=st.integers(1, 3),
    prompt=st.integers(1, 14),
    masks=places,
    pads=st.integers(0, 5),
    seed=st.integers(0, 10_000),
)
def test_mmada_text(
    sizes: tuple[int, int, int],
    temperature: float,
    cfg: float,
    remasking: str,
    stop: bool,
    rows: int,
    prompt: int,
    masks: list[int],
    pads: int,
    seed: int,
) -> None:
    model = golden.model("mmada")
    options: dict[str, Any] = dict(zip(("length", "steps", "block"), sizes, strict=True))
    options.update(temperature=temperature, cfg=cfg, remasking=remasking)
    ids = with_masks(prompts(seed, rows, prompt), MASK, masks)
    mask = padding(rows, prompt, pads)
    full = naive_loops.llada(model, ids, **options, float64=True, attention_mask=mask, seed=seed)
    # Stopping is tried with a token that the free run really writes at the end of its first block.
    stop_at = int(full[-1][0, prompt + sizes[2] - 1]) if stop else None
    run = ss.generate(
        model, ids, ss.MmadaDecoding(**options, stop_at=stop_at), seed=seed, attention_mask=mask
    )
    expected = naive_loops.llada(
        model, ids, **options, float64=True, stop_at=stop_at, attention_mask=mask, seed=seed
    )
    same(run.states, expected)
    per_block = sizes[1] // (sizes[0] // sizes[2])
    if rows == 1 and int(full[per_block][0, prompt + sizes[2] - 1]) == stop_at:
        assert run.steps == per_block


@pytest.mark.slow
@SOME
@given(
    length=st.integers(1, 14),
    steps=st.integers(1, 14),
    algorithm=st.sampled_from(["origin", "maskgit_plus", "topk_margin", "entropy"]),
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.3]),
    top_p=st.sampled_from([None, 1.0, 0.95, 0.5, 0.01]),
    top_k=st.sampled_from([None, None, 1, 7, 10_000]),
    alg_temp=st.sampled_from([None, 0.0, 0.2, 2.0]),
    eps=st.sampled_from([1e-3, 0.2]),
    rows=st.integers(1, 3),
    prompt=st.integers(1, 14),
    masks=places,
    pads=st.integers(0, 5),
    seed=st.integers(0, 10_000),
)
def test_dream(
    algorithm: str,
    temperature: float,
    rows: int,
    prompt: int,
    masks: list[int],
    pads: int,
    seed: int,
    **more: Any,
) -> None:
    model = golden.model("dream")
    options = {"algorithm": algorithm, "temperature": temperature, **more}
    if options["top_k"] == 1 and algorithm == "topk_margin":
        options["top_k"] = 2
    ids = with_masks(prompts(seed, rows, prompt), DREAM_MASK, masks)
    mask = padding(rows, prompt, pads)
    if options["alg_temp"] and rows > 1:
        # Rows with fewer masks than the batch mean would have to be drawn from nothing: official and ours both fail there.
        ids = prompts(seed, rows, prompt)
    run = ss.generate(model, ids, ss.DreamDecoding(**options), seed=seed, attention_mask=mask)
    same(run.states, naive_loops.dream(model, ids, **options, attention_mask=mask, seed=seed))


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
            ss.MmadaImageDecoding(
                timesteps=timesteps, guidance=guidance, temperature=temperature, offset=offset
            ),
            seed=seed,
            attention_mask=mask,
            unconditional=(free, free_mask),
        )
        states, found = naive_loops.picture(
            model,
            ids,
            first=7,
            size=size,
            offset=offset,
            codes=codes,
            timesteps=timesteps,
            guidance=guidance,
            temperature=temperature,
            attention_mask=mask,
            unconditional=(free, free_mask),
            seed=seed,
        )
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
    run = ss.generate(
        model, ids, kind(length=length, eos=stops or None, **options), seed=seed, attention_mask=mask
    )
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
