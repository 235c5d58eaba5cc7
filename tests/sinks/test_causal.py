"""A causal model: the numbers of its trace equal the same metrics computed from plain `output_attentions`
maps.

The trace is built here from the maps of transformers' own eager Llama on the golden checkpoint; the metrics
are computed again from those maps, each as its source writes it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from tests.sinks import synthetic

from sinkscope.base.sink_rule import distant
from sinkscope.sinks import detect, layer_head_map, sink_heads_share, sink_table, unknown
from sinkscope.sinks.detection import sinks_of
from sinkscope.sinks.scan import scans

CHECKPOINT = Path(__file__).parents[1] / "golden" / "llama" / "checkpoint"
PROMPTS, STEPS, FEWEST_QUERIES = (40, 27), 10, 16


@pytest.fixture(scope="module")
def recorded() -> tuple[xr.Dataset, list[list[np.ndarray]]]:
    """(trace, maps): maps[sample][step] is [layer, head, query, key] over the real tokens, from plain
    transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM.from_pretrained(
        CHECKPOINT, attn_implementation="eager", dtype=torch.float32
    ).eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    every: list[list[np.ndarray]] = []
    texts = []
    for length in PROMPTS:
        ids = torch.tensor(rng.integers(3, 470, (1, length)))
        ids[0, 0] = 480
        maps = []
        for _ in range(STEPS):
            with torch.no_grad():
                out = model(ids, output_attentions=True)
            maps.append(torch.stack([a[0] for a in out.attentions]).double().numpy())
            ids = torch.cat([ids, out.logits[:, -1:].argmax(-1)], dim=1)
        every.append(maps)
        texts.append(ids[0].numpy())
    torch.set_num_threads(threads)
    return as_trace(every, texts), every


def as_trace(every: list[list[np.ndarray]], texts: list[np.ndarray]) -> xr.Dataset:
    N, (L, H) = len(every), every[0][0].shape[:2]
    K = max(PROMPTS) + STEPS
    shape = (N, STEPS, L, H, K)
    last, everyone = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    prefill = np.full((N, L, H, K), np.nan, np.float32)
    tokens, position = np.full((N, STEPS, K), -1), np.full((N, K), -1)
    region = np.full((N, K), "padding", dtype="<U7")
    for n, length in enumerate(PROMPTS):
        first = max(PROMPTS) - length
        region[n, first : first + length], region[n, first + length :] = "prompt", "answer"
        position[n, first:] = np.arange(K - first)
        tokens[n, :, :first] = 0
        for t, maps in enumerate(every[n]):
            size = maps.shape[-1]
            here = slice(first, first + size)
            tokens[n, t, here] = texts[n][:size]
            uniform = np.tril(np.ones((size, size)) / np.arange(1, size + 1)[:, None])
            last[n, t, :, :, here] = maps[:, :, -1] * size
            column = maps.sum(axis=2) / uniform.sum(axis=0)
            column[..., size - FEWEST_QUERIES + 1 :] = np.nan
            everyone[n, t, :, :, here] = column
            if t == 0:
                prefill[n, :, :, here] = maps.sum(axis=2) / uniform.sum(axis=0)
    dims = ("sample", "step", "layer", "head", "key")
    return synthetic.dataset(
        {
            "received": (dims, last),
            "received_all": (dims, everyone),
            "prefill_received": (("sample", "layer", "head", "key"), prefill),
            "tokens": (("sample", "step", "key"), tokens),
            "masked": (("sample", "step", "key"), np.zeros(tokens.shape, bool)),
            "region": (("sample", "key"), region),
            "position": (("sample", "key"), position),
        },
        STEPS,
        K,
        family="causal",
    )


@pytest.mark.parametrize("epsilon", [0.02, 0.05, 0.3])
def test_the_metric_of_gu(recorded, epsilon):
    """Their code: `(attention / arange(T, 0, -1)).sum(-2)`, then the share of heads above ε."""
    trace, every = recorded
    found = sink_heads_share(trace, epsilon, positions=8)
    for n, length in enumerate(PROMPTS):
        alpha = (every[n][0] / np.arange(length, 0, -1)).sum(axis=-2)
        share = (alpha > epsilon).mean(axis=(0, 1))[:8]
        np.testing.assert_allclose(found[n], share)
    if epsilon < 0.1:
        assert 0 < float(found.mean()) < 1


def test_gu_is_not_trivial_on_a_real_sink():
    """A head that looks at its first token with .9 and elsewhere with the rest has α = .9 there."""
    size = 24
    maps = np.tril(np.ones((size, size)))
    maps[:, 1:] *= 0.1 / np.maximum(1, np.arange(size))[:, None]
    maps[:, 0] = np.where(np.arange(size) == 0, 1.0, 0.9)
    uniform = np.tril(np.ones((size, size)) / np.arange(1, size + 1)[:, None])
    prefill = (maps.sum(axis=0) / uniform.sum(axis=0))[None, None, None]
    data = synthetic.dataset(
        {
            "received": (("sample", "step", "layer", "head", "key"), prefill[:, None]),
            "prefill_received": (("sample", "layer", "head", "key"), prefill),
            "region": (("sample", "key"), np.full((1, size), "prompt")),
        },
        1,
        size,
        family="causal",
    )
    assert sink_heads_share(data, 0.89).values[0].tolist() == [1, 0, 0, 0]
    assert sink_heads_share(data, 0.95).values[0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("scores", ["received_all", "received"])
def test_detection_on_the_plain_maps(recorded, scores):
    trace, every = recorded
    epsilon = 0.3
    found = detect(trace, epsilon, "sum", scores=scores)
    hits = 0
    for n, length in enumerate(PROMPTS):
        first = max(PROMPTS) - length
        for t, maps in enumerate(every[n]):
            size = maps.shape[-1]
            if scores == "received":
                score = maps[:, :, -1] * size
            else:
                seen = np.arange(size, 0, -1)
                uniform = np.array([sum(1.0 / (i + 1) for i in range(k, size)) for k in range(size)])
                score = np.where(seen >= FEWEST_QUERIES, maps.sum(axis=2) / uniform, np.nan)
            expected = sinks_of(score.astype(np.float32), epsilon)
            got = found.values[n, t][:, :, first : first + size]
            assert (got == expected).all()
            assert not found.values[n, t][:, :, first + size :].any()
            hits += int(expected.sum())
    assert hits > 100


def by_the_sentence(maps: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """(sinks, unknown) bool [layer, head, key] of the rule "distance", key by key, as docs/attention.md says it."""
    n = maps.shape[-1]
    gap = 1
    while 2 * gap <= n / 8:
        gap *= 2
    least = max(-(-n // 8), min(8, n // 2), 4)
    sinks, unknown = np.zeros((*maps.shape[:2], n), bool), np.ones((*maps.shape[:2], n), bool)
    for j in range(n - gap - least + 1):
        far = np.arange(j + gap, n)
        limit = np.mean(1 / (far - j + 1)) + epsilon / 64 + 1 / (2 * n)
        sinks[..., j] = maps[:, :, far, j].mean(axis=-1) > limit
        unknown[..., j] = False
    return sinks, unknown


def test_sinks_of_distant_queries_on_the_plain_maps(recorded):
    """By the rule that causal traces have unless told."""
    trace, every = recorded
    whole = with_far(trace, every)
    epsilon = 0.02
    found, not_known = detect(whole, epsilon), unknown(whole)
    assert (found.attrs["scores"], found.attrs["rule"]) == ("received_far", "distance")
    hits = 0
    for n, length in enumerate(PROMPTS):
        first = max(PROMPTS) - length
        for t, maps in enumerate(every[n]):
            expected = by_the_sentence(maps, epsilon)
            here = slice(first, first + maps.shape[-1])
            for got, wanted in zip((found, not_known), expected, strict=True):
                assert (got.values[n, t][..., here] == wanted).all()
                assert not got.values[n, t][..., first + maps.shape[-1] :].any()
            hits += int(expected[0].sum())
    assert hits > 20
    assert detect(trace).attrs["scores"] == "received_all"
    assert "no received_far" in detect(trace).attrs["note"]
    table = sink_table(whole, epsilon)
    assert len(table) == hits
    row = table.iloc[len(table) // 2]
    maps = every[row["sample"]][row["step"]][row["layer"], row["head"]]
    gap = 4 if len(maps) < 64 else 8
    assert row["share"] == pytest.approx(maps[row["position"] + gap :, row["position"]].mean(), rel=1e-4)
    assert (table["excess"] > 0).all()


def test_absorbed_attention_on_the_plain_maps(recorded):
    trace, every = recorded
    epsilon = 0.3
    for scores in ("received_all", "received"):
        found = np.stack([scan.absorbed for scan in scans(trace, epsilon, "sum", scores=scores)])
        chosen = detect(trace, epsilon, "sum", scores=scores).values
        for n, length in enumerate(PROMPTS):
            first = max(PROMPTS) - length
            for t in (0, 5, STEPS - 1):
                maps = every[n][t] if scores == "received_all" else every[n][t][:, :, -1:]
                sinks = chosen[n, t][:, :, first : first + maps.shape[-1]]
                share = (maps * sinks[:, :, None]).sum(axis=(2, 3)) / maps.sum(axis=(2, 3))
                np.testing.assert_allclose(found[n, t], share, atol=1e-5)


def test_the_table_agrees_with_detection(recorded):
    trace, every = recorded
    table = sink_table(trace, 0.3, "sum", scores="received")
    assert len(table) == int(detect(trace, 0.3, "sum", scores="received").sum())
    row = table.iloc[len(table) // 2]
    maps = every[row["sample"]][row["step"]]
    weight = maps[row["layer"], row["head"], -1, row["position"]]
    assert row["share"] == pytest.approx(weight, abs=1e-5)
    assert row["received"] == pytest.approx(weight * maps.shape[-1], rel=1e-4)
    assert set(table["kind"]) == {"unknown"}


def test_the_layer_head_map_on_the_plain_maps(recorded):
    trace, every = recorded
    found = layer_head_map(trace, scores="received")
    for n in range(len(PROMPTS)):
        top = np.mean([maps[:, :, -1].max(axis=-1) * maps.shape[-1] for maps in every[n]], axis=0)
        np.testing.assert_allclose(found[n], top, rtol=1e-5)


def with_far(trace: xr.Dataset, every: list[list[np.ndarray]]) -> xr.Dataset:
    """The same trace with the attention of distant queries, from the map of every step over all queries so far."""
    far = np.full(trace["received"].shape, np.nan, dtype=np.float32)
    for n, length in enumerate(PROMPTS):
        first = max(PROMPTS) - length
        for t, plain in enumerate(every[n]):
            size = plain.shape[-1]
            seen = distant(np.array([size]), np.arange(size))
            mass = np.tril(plain, -int(seen.gap[0])).sum(axis=2)
            far[n, t, ..., first : first + size] = np.where(
                seen.known, mass / np.where(seen.known, seen.uniform, 1), np.nan
            )
    return trace.assign(received_far=(trace["received"].dims, far))


def test_a_recorded_trace_gives_the_same_numbers(recorded):
    """From the recorder's own trace of the same generation, not one built here."""
    torch = pytest.importorskip("torch")
    import sinkscope as ss

    plain, _ = recorded
    size = max(PROMPTS)
    ids, mask = torch.zeros((2, size), dtype=torch.long), torch.zeros((2, size), dtype=torch.long)
    for n, length in enumerate(PROMPTS):
        ids[n, size - length :] = torch.tensor(plain["tokens"].values[n, 0, size - length : size])
        mask[n, size - length :] = 1
    model = ss.load(str(CHECKPOINT), device="cpu", dtype="float32")
    decoding = ss.GreedyDecoding(length=STEPS, eos=None)
    trace = ss.generate(model, ids, decoding, capture=ss.Capture(), attention_mask=mask).trace
    assert trace is not None
    np.testing.assert_allclose(sink_heads_share(trace, 0.05, 8), sink_heads_share(plain, 0.05, 8))
    for scores in ("received_all", "received"):
        ours, theirs = (detect(t, 0.3, "sum", scores=scores) for t in (trace, plain))
        assert (ours.values[..., : size + STEPS - 1] == theirs.values[..., : size + STEPS - 1]).mean() > 0.9999
    ours, theirs = (layer_head_map(t, scores="received_all") for t in (trace, plain))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_the_newest_query_alone_tells_no_sink(recorded):
    """It is what a mask ranks; whatever it gives a key, it is one query."""
    from sinkscope.sinks import summary
    from sinkscope.verdicts.diagnosis import diagnose

    trace, _ = recorded
    found = detect(trace, 0.0, scores="received")
    assert not found.any()
    assert "rule='sum'" in found.attrs["note"]
    rows = summary(trace, scores="received").set_index("measure")
    assert rows.loc["unknown keys", "value"] == 1
    assert np.isnan(rows.loc["sinks per head", "value"])
    assert diagnose(trace, scores="received")["sinks"].status == "undecided"
    assert detect(trace, 0.3, "sum", scores="received").any()
