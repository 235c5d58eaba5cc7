"""With a seed per row, a row in a ragged batch equals its run alone, token for token, whatever the loop and its ties."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden

import sinkscope as ss

EOT = 506

LLADA = {
    "greedy blocks": ss.LladaDecoding(length=12, steps=12, block=4),
    "uneven steps": ss.LladaDecoding(length=12, steps=9, block=4),
    "temperature": ss.LladaDecoding(length=8, steps=4, block=8, temperature=0.8),
    "random": ss.LladaDecoding(length=8, steps=4, block=4, remasking="random"),
    "temperature and random": ss.LladaDecoding(length=8, steps=8, block=8, temperature=1.0, remasking="random"),
    "guidance": ss.LladaDecoding(length=8, steps=4, block=8, cfg=1.0),
    "guidance, temperature": ss.LladaDecoding(length=8, steps=4, block=4, cfg=2.0, temperature=0.5),
    # Every end token has confidence exactly 0: ties.
    "ties": ss.LladaDecoding(length=24, steps=12, block=24, confidence_eos_eot_inf=True, eot_id=EOT),
    "no end tokens": ss.LladaDecoding(length=8, steps=8, block=4, logits_eos_inf=True),
}
DREAM = {
    f"{algorithm}, {what}": ss.DreamDecoding(length=10, steps=7, algorithm=algorithm, **options)
    for algorithm in ("origin", "maskgit_plus", "topk_margin", "entropy")
    for what, options in {
        "greedy": {},
        "sampled": {"temperature": 0.6, "top_p": 0.9},
        # One candidate survives the truncation: all confidences are equal.
        "ties": {"temperature": 0.1, "top_p": 0.01},
        "drawn positions": {"temperature": 0.3, "top_k": 20, "alg_temp": 0.5},
    }.items()
}
MMADA = {
    "greedy": ss.MmadaDecoding(length=12, steps=6, block=4),
    "temperature": ss.MmadaDecoding(length=8, steps=8, block=8, temperature=1.0),
    "random, guidance": ss.MmadaDecoding(length=8, steps=4, block=4, remasking="random", cfg=1.5),
}
CAUSAL = {
    "greedy": ss.GreedyDecoding(length=8, eos=None),
    "sampling": ss.SamplingDecoding(length=8, temperature=1.3, top_p=0.9, eos=None),
}
CASES = [
    pytest.param(family, decoding, id=f"{family}: {what}")
    for family, many in (("llada", LLADA), ("dream", DREAM), ("mmada", MMADA), ("llama", CAUSAL))
    for what, decoding in many.items()
]
SEEDS = [3, 2**40, 11]


@pytest.fixture(params=["apart", "together"])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Rows of different lengths grouped by length, as on a CPU, or padded and run together, as on a GPU."""
    chosen = request.param == "together"
    monkeypatch.setattr("sinkscope.decoding.groups.runs_together", lambda *_: chosen)
    return chosen


def ragged(
    number: int, rows: int = 4, masks: int | None = None, shortest: int = 1
) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Random prompts of up to 13 tokens, two of one length: as they are, and as one left-padded batch with its mask."""
    generator = torch.Generator().manual_seed(number)
    lengths = torch.randint(shortest, 14, (rows,), generator=generator).tolist()
    if masks is not None:  # of masks alone all positions are alike, and rounding decides between them
        lengths[0] = max(lengths[0], 2)
    lengths[-1] = lengths[0]
    alone = [torch.randint(0, 470, (length,), generator=generator) for length in lengths]
    if masks is not None:
        alone[0][lengths[0] // 2] = masks
    longest = max(lengths)
    ids = torch.stack([torch.nn.functional.pad(row, (longest - len(row), 0), value=480) for row in alone])
    mask = torch.stack([torch.nn.functional.pad(torch.ones(len(row)), (longest - len(row), 0)) for row in alone]).long()
    return alone, ids, mask


def check(
    model: Any, decoding: Any, number: int, seeds: list[int], masks: int | None = None, shortest: int = 1, **more: Any
) -> ss.Run:
    """States in the batch = states alone, for every step that the run alone has; afterwards a row does not change."""
    alone, ids, mask = ragged(number, len(seeds), masks, shortest)
    batch = ss.generate(model, ids, decoding, seed=seeds, attention_mask=mask, **more)
    for row, (prompt, seed) in enumerate(zip(alone, seeds, strict=True)):
        run = ss.generate(model, prompt[None], decoding, seed=[seed], **more)
        offset = ids.shape[1] - len(prompt)
        width = run.states.shape[-1]
        steps = len(run.states)
        found = batch.states[:, row, offset : offset + width]
        assert torch.equal(found[:steps], run.states[:, 0]), f"row {row} differs"
        assert (found[steps:] == run.states[-1, 0]).all(), f"row {row} went on after its end"
        assert torch.equal(batch.states[:, row, :offset], ids[row, :offset].expand(len(batch.states), -1))
        assert torch.equal(batch.ties[: steps - 1, row], run.ties[:, 0])
        assert not batch.ties[steps - 1 :, row].any()
    return batch


@pytest.mark.parametrize(
    ("family", "decoding", "together"),
    [
        # Padded together every second loop in `make test`; of Dream's, which come in fours, other ones of each four.
        pytest.param(
            *case.values,
            way,
            id=f"{way}-{case.id}",
            marks=pytest.mark.slow if way == "apart" or turn % 2 == 0 else pytest.mark.soak,
        )
        for way in ("apart", "together")
        for number, case in enumerate(CASES)
        for turn in [number + number // 4 if case.values[0] == "dream" else number]
    ],
    indirect=["together"],
)
def test_a_row_equals_its_run_alone(family: str, decoding: Any, together: bool) -> None:
    if together and decoding in (LLADA["ties"], *(DREAM[name] for name in DREAM if name.endswith("ties"))):
        pytest.skip("which of equal confidences torch.topk takes depends on the length of the row, padding included")
    model = golden.model(family)
    number = zlib.crc32(f"{family} {decoding}".encode())
    check(model, decoding, number, SEEDS, masks=model.ids.mask if number % 2 else None)


@pytest.mark.soak
@pytest.mark.parametrize(("family", "decoding"), CASES)
@pytest.mark.parametrize("number", range(4))
def test_more_batches(family: str, decoding: Any, number: int) -> None:
    """Prompts of two tokens at least, because one of them is a mask: in a row of nothing but masks all positions are tied."""
    mask = golden.model(family).ids.mask
    check(golden.model(family), decoding, 1000 + number, [number, 5, 9, 2, number], mask, shortest=2)


@pytest.mark.parametrize(("family", "decoding"), CASES)
def test_one_row_with_a_list_equals_the_official_stream(family: str, decoding: Any) -> None:
    model, ids = golden.model(family), ragged(5)[0][1][None]
    single = ss.generate(model, ids, decoding, seed=17)
    listed = ss.generate(model, ids, decoding, seed=[17])
    assert torch.equal(single.states, listed.states)
    assert torch.equal(single.ties, listed.ties)


@pytest.mark.parametrize(
    ("family", "decoding"),
    [("llada", LLADA["ties"]), ("dream", DREAM["entropy, ties"]), ("dream", DREAM["maskgit_plus, ties"])],
)
def test_the_ties_above_are_ties(family: str, decoding: Any) -> None:
    run = check(golden.model(family), decoding, 77, [1, 2, 3])
    assert int(run.ties.sum()) > 5


def test_seeds_make_the_difference() -> None:
    """Equal prompts: rows with equal seeds are equal, rows with different seeds are not."""
    ids = ragged(1)[0][0].repeat(3, 1)
    for family, decoding in (
        ("llada", LLADA["temperature"]),
        ("dream", DREAM["entropy, sampled"]),
        ("mmada", MMADA["temperature"]),
        ("llama", CAUSAL["sampling"]),
    ):
        states = ss.generate(golden.model(family), ids, decoding, seed=[4, 5, 4]).states
        assert torch.equal(states[:, 0], states[:, 2])
        assert not torch.equal(states[:, 0], states[:, 1])


def test_causal_rows_end_by_themselves(together: bool) -> None:
    model = golden.model("llama")
    for decoding in (CAUSAL["greedy"], CAUSAL["sampling"]):
        free = check(model, decoding, 21, [7, 8, 9])
        prompt = free.states.shape[-1] - 8
        ends = (int(free.sequences[0, prompt + 2]), int(free.sequences[1, prompt + 4]))
        stopping = type(decoding)(**{**vars(decoding), "eos": ends})
        filler = ends[0] if model.ids.pad is None else model.ids.pad
        alone, ids, mask = ragged(21, 3)
        batch = ss.generate(model, ids, stopping, seed=[7, 8, 9], attention_mask=mask)
        for row, (tokens, seed) in enumerate(zip(alone, [7, 8, 9], strict=True)):
            run = ss.generate(model, tokens[None], stopping, seed=[seed])
            own = run.sequences[0, len(tokens) :]
            found = batch.sequences[row, ids.shape[1] :]
            assert torch.equal(found[: len(own)], own)
            assert (found[len(own) :] == filler).all()
            assert batch.forwards[row] >= run.forwards[0]


def test_mmada_rows_stop_by_themselves(together: bool) -> None:
    model = golden.model("mmada")
    decoding = ss.MmadaDecoding(length=16, steps=8, block=4, temperature=1.0)
    _, ids, mask = ragged(31, 4)
    seeds = [1, 2, 3, 4]
    free = ss.generate(model, ids, decoding, seed=seeds, attention_mask=mask)
    stop = int(free.sequences[0, ids.shape[1] + 3])  # what row 0 (and only it, or few) ends its first block with
    stopping = ss.MmadaDecoding(length=16, steps=8, block=4, temperature=1.0, stop_at=stop)
    batch = check(model, stopping, 31, seeds)
    assert (batch.sequences[0, ids.shape[1] + 4 :] == model.ids.mask).all()
    assert len(batch) == 8, "another row goes on to its end"
    single = ss.generate(model, ids, stopping, seed=1, attention_mask=mask)
    assert len(single) == 8, "with one stream all rows must agree to stop"
    assert not (single.sequences[0, ids.shape[1] + 4 :] == model.ids.mask).all()


@pytest.mark.parametrize("guidance", [0.0, 2.0])
def test_pictures_by_row(guidance: float) -> None:
    model, size = golden.model("mmada"), 9
    decoding = ss.MmadaImageDecoding(timesteps=5, guidance=guidance, offset=507)
    texts, seeds = [[5, 9, 2, 30], [7], [8, 1, 77, 12], [3, 3]], [4, 5, 6, 7]
    rows = [torch.tensor([*text, *[504] * size, 483]) for text in texts]
    longest = max(map(len, rows))

    def padded(row: torch.Tensor, value: int) -> torch.Tensor:
        return torch.nn.functional.pad(row, (longest - len(row), 0), value=value)

    def twin(row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompt without its text: all but its last token are padding."""
        keep, ids = torch.ones_like(row), row.clone()
        text = len(row) - size - 2
        ids[:text], keep[:text] = 480, 0
        return ids, keep

    ids = torch.stack([padded(row, 480) for row in rows])
    mask = torch.stack([padded(torch.ones_like(row), 0) for row in rows])
    twins = [twin(row) for row in rows]
    both = (torch.stack([padded(ids, 480) for ids, _ in twins]), torch.stack([padded(keep, 0) for _, keep in twins]))
    batch = ss.generate(model, ids, decoding, seed=seeds, attention_mask=mask, unconditional=both)
    for row, seed in enumerate(seeds):
        own = (twins[row][0][None], twins[row][1][None])
        run = ss.generate(model, rows[row][None], decoding, seed=seed, unconditional=own)
        assert torch.equal(batch.states[:, row, longest - len(rows[row]) :], run.states[:, 0])
        assert torch.equal(batch.codes[row], run.codes[0])


@pytest.mark.parametrize(
    ("family", "policy", "together"),
    [
        pytest.param(
            family, policy, way, id=f"{way}-{policy}-{family}",
            marks=pytest.mark.soak if (number + turn + place) % 2 else pytest.mark.slow,
        )
        for number, family in enumerate(("llada", "dream", "mmada", "llama"))
        for turn, policy in enumerate(
            (ss.MaskRandom(like=ss.MaskTop(2), seed=5), ss.MaskFirst(1) & ss.Window(6))
        )
        for place, way in enumerate(("apart", "together"))
    ],
    indirect=["together"],
)  # fmt: skip
def test_rows_are_independent_under_a_policy(family: str, policy: Any, together: bool) -> None:
    decoding = {
        "llada": LLADA["guidance, temperature"],
        "dream": DREAM["entropy, sampled"],
        "mmada": MMADA["greedy"],
        "llama": CAUSAL["sampling"],
    }[family]
    check(golden.model(family), decoding, 41, [3, 4, 5], shortest=6, policy=policy)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "dream", "mmada", "llama"])
def test_the_trace_of_a_row_is_that_of_its_run_alone(family: str, together: bool) -> None:
    """Not bit for bit: a batch of another size rounds otherwise in the last digits."""
    decoding = {
        "llada": LLADA["guidance, temperature"],
        "dream": DREAM["entropy, sampled" if together else "entropy, ties"],
        "mmada": MMADA["temperature"],
        "llama": CAUSAL["sampling"],
    }[family]
    model, capture = golden.model(family), ss.Capture(by_query=True, anatomy=True)
    alone, ids, mask = ragged(51, 3)
    seeds = [1, 2, 3]
    batch = ss.generate(model, ids, decoding, seed=seeds, attention_mask=mask, capture=capture).trace.dataset
    for row, prompt in enumerate(alone):
        run = ss.generate(model, prompt[None], decoding, seed=[seeds[row]], capture=capture).trace.dataset
        offset = ids.shape[1] - len(prompt)
        found = batch.isel(sample=row, key=slice(offset, None))
        for name, expected in run.isel(sample=0).data_vars.items():
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(found[name].values, expected.values, atol=1e-4, rtol=1e-4, err_msg=name)
            else:
                np.testing.assert_array_equal(found[name].values, expected.values, err_msg=name)
        outside = batch.isel(sample=row, key=slice(0, offset))
        for name in ("received", "value_norm", "key_norm", "hidden_norm", "largest_activation", "confidence"):
            assert np.isnan(outside[name].values).all(), name
        assert (outside["region"] == "padding").all()
