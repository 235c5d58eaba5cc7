"""What a page embeds equals the trace, within the error that it states, and cannot become markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from lab.causal_types import tiny
from tests.helpers import golden
from tests.report import pages
from tests.report.packed import unpack, values_of
from tests.sinks import synthetic
from tests.sinks.test_modes import alternating

import sinkscope as ss
from sinkscope.base.errors import InputError
from sinkscope.report.html import asset, embedded_json, viewer_page, viewer_parts, viewer_script, write_viewer
from sinkscope.report.payload import MISSING, MOST_RESIDENCES, mixed, pack, pack_coded, quantise, views
from sinkscope.sinks import detect, layer_head_map, paths, residences, step_position_map


def decoded(packed: dict[str, Any]) -> np.ndarray:
    return values_of(unpack(packed), packed["scale"])


@given(arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(0, 2000, width=32) | st.just(float("nan"))))
def test_quantised_scores_keep_the_error_that_is_stated(values):
    codes, scale, error = quantise(values)
    back = values_of(codes, scale)
    assert np.array_equal(np.isnan(back), np.isnan(values))
    real = ~np.isnan(values)
    off = np.abs(back[real] - values[real]) / (1 + values[real])
    assert (off <= error * (1 + 1e-4) + 1e-6).all()
    # Half a step of a log scale with 253 steps: under 1.6 % even for a score of 2000.
    top = values[real].max(initial=1e-3)
    assert error <= np.expm1(np.log1p(max(top, 1e-3)) / 506) + 1e-9


@pytest.mark.parametrize(
    ("kind", "dtype"), [("u8", np.uint8), ("u16", np.uint16), ("i16", np.int16), ("f32", np.float32)]
)
def test_packed_arrays_come_back(kind, dtype):
    values = np.random.default_rng(0).integers(0, 200, (3, 5, 7)).astype(dtype)
    if kind == "i16":
        values -= 100
    if kind == "u16":
        values *= 300
    back = unpack(pack(values, kind))
    assert back.shape == values.shape
    assert np.array_equal(back, values)


def test_steps_of_a_model_with_two_modes_stay_aligned() -> None:
    """Causal forwards are shown, and counted nowhere."""
    plain, two = alternating([[5, 11]])
    score, expected = (views(data)[0]["scores"][0] for data in (two, plain))
    total, usual = unpack(score["sinks_total"]), unpack(expected["sinks_total"])
    use = np.setdiff1d(np.arange(len(usual)), [5, 11])
    assert (total[[5, 11]] == 0).all()
    assert (usual[5] > 0).any()
    assert np.array_equal(total[use], usual[use])
    assert (unpack(score["path"])[..., [5, 11]] == -1).all()
    assert unpack(score["residences"])[4].max() == len(usual) - 1


def test_a_view_holds_layer_means_strongest_keys_averages_and_chosen_heads():
    data = pages.diffusion(anatomy="drain")
    view = views(data, heads=[(2, 1)])[1]
    score = view["scores"][0]
    received = data["received"].values[1]
    mean = received.mean(axis=2)

    def close(packed: dict[str, Any], wanted: np.ndarray) -> None:
        got = decoded(packed)
        assert np.array_equal(np.isnan(got), np.isnan(wanted))
        assert np.nanmax(np.abs(got - wanted) / (1 + wanted)) <= packed["error"] * 1.001

    close(score["layers"], mean.swapaxes(0, 1))
    close(score["mean"], step_position_map(data).values[1])
    close(score["average"], received.mean(axis=0))
    assert list(score["full"]) == ["2:1"]
    close(score["full"]["2:1"], received[:, 2, 1])
    best = np.argsort(-np.nan_to_num(received, nan=-1), axis=-1, kind="stable")[..., :8].transpose(1, 2, 0, 3)
    assert np.array_equal(unpack(score["top_keys"]), best)
    close(score["top_values"], np.take_along_axis(received.transpose(1, 2, 0, 3), best, axis=-1))


def test_sinks_paths_and_residences_are_those_of_the_analysis():
    data = pages.diffusion()
    view = views(data)[0]
    score = view["scores"][0]
    sinks = detect(data).values[0]
    assert sinks.any()
    assert np.array_equal(unpack(score["sinks"]), sinks.sum(axis=2).swapaxes(0, 1))
    assert np.array_equal(unpack(score["sinks_total"]), sinks.sum(axis=(1, 2)))
    assert np.array_equal(unpack(score["path"]), paths(data)["key"].values[0].transpose(1, 2, 0))
    assert np.allclose(unpack(score["strength"]), layer_head_map(data).values[0], rtol=1e-6)
    table = residences(data)
    table = table[table["sample"] == 0].sort_values(["layer", "head", "key", "start"])
    columns = unpack(score["residences"])
    for i, name in enumerate(("layer", "head", "key", "start", "stop")):
        assert np.array_equal(columns[i], table[name])
    assert [view["fates"][i] for i in columns[5]] == list(table["fate"])
    assert np.allclose(unpack(score["residence_strength"]), table["strength"], rtol=1e-6)


def test_too_many_residences_leave_out_the_least_and_say_so(monkeypatch):
    import sinkscope.report.payload as payload

    data = synthetic.trace(synthetic.flicker(), lengths=(20,), seed=2)
    whole = views(data)[0]["scores"][0]
    assert whole["residences_left_out"] == 0
    assert MOST_RESIDENCES > 1000
    monkeypatch.setattr(payload, "MOST_RESIDENCES", 5)
    cut = views(data)[0]["scores"][0]
    many = whole["residences"]["shape"][1]
    assert cut["residences"]["shape"][1] == 5
    assert cut["residences_left_out"] == many - 5

    def weight(one: dict[str, Any]) -> np.ndarray:
        columns = unpack(one["residences"])
        return unpack(one["residence_strength"]) * (columns[4] - columns[3] + 1.0)

    assert np.sort(weight(cut))[0] >= np.sort(weight(whole))[-5] * 0.999


def test_a_causal_trace_has_its_sinks_first_and_the_newest_row_without_any_besides():
    view = views(pages.causal())[0]
    assert [one["name"] for one in view["scores"]] == ["received_all", "received"]
    assert view["scores"][1]["title"] == "newest query’s row"
    assert [one["unit"] for one in view["scores"]] == ["% of a query’s attention", "× uniform"]
    assert [one["above"] is None for one in view["scores"]] == [False, True]
    assert unpack(view["scores"][0]["sinks_total"]).any()
    assert not unpack(view["scores"][1]["sinks_total"]).any()
    assert all(one["unknown"] for one in view["scores"])
    assert (unpack(view["scores"][0]["mean"]) == MISSING).sum() > (unpack(view["scores"][1]["mean"]) == MISSING).sum()


def test_two_kinds_of_attention_stand_on_one_scale_as_shares_of_a_query():
    """Multiples of uniform attention mean different things in a causal and in a bidirectional model."""
    alone, beside = views(pages.diffusion())[0], views(pages.diffusion(), percent=True)[0]
    assert [one["scores"][0]["unit"] for one in (alone, beside)] == ["× uniform", "% of a query’s attention"]
    assert mixed([pages.diffusion(), pages.causal()])
    assert not mixed([pages.diffusion(), pages.diffusion()])
    keys = int((pages.diffusion()["position"].values[0] >= 0).sum())
    strength = [unpack(one["scores"][0]["strength"]) for one in (alone, beside)]
    np.testing.assert_allclose(strength[0] * 100 / keys, strength[1], rtol=1e-5)
    assert alone["scores"][0]["sinks_total"] == beside["scores"][0]["sinks_total"]


def test_head_means_have_no_heads_and_refuse_them():
    data = pages.diffusion()
    means = data.assign(received=data["received"].mean("head")).drop_vars("head")
    view = views(means)[0]
    assert view["heads"] == []
    assert "top_keys" not in view["scores"][0]
    with pytest.raises(InputError, match="means over heads"):
        views(means, heads=[(0, 0)])


def test_the_keys_that_a_policy_hides_are_counted():
    data = pages.diffusion()
    hidden = np.random.default_rng(0).random(data["received"].shape) < 0.1
    packed = np.packbits(hidden, axis=-1)
    data = data.assign(masked_keys=(("sample", "step", "layer", "head", "byte"), packed))
    view = views(data)[1]
    assert np.array_equal(unpack(view["masked_keys"]), hidden[1].sum(axis=2).swapaxes(0, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"heads": [(9, 0)]}, "layer 9"), ({"heads": [(0, 9)]}, "head 9"), ({"samples": [5]}, "samples 0 to 1")],
)
def test_wrong_choices_are_explained(options, message):
    with pytest.raises(InputError, match=message):
        views(pages.diffusion(), **options)


def test_embedded_json_holds_no_character_that_markup_needs():
    value = {"texts": list(pages.HOSTILE.values())}
    text = embedded_json(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == value
    text.encode("utf-8")


def test_a_page_allows_its_own_script_and_style_and_nothing_else():
    page = viewer_page(pages.hostile())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == digest(viewer_script())
    assert rules["style-src"] == digest(asset("viewer/viewer.css"))
    assert "connect-src" not in rules
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "onerror" not in re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    assert not re.search(r"https?://(?!www\.w3\.org)", page)


def test_views_can_be_put_into_another_page():
    parts = viewer_parts(views(pages.diffusion()), name="study-1", address=False)
    assert 'data-sinkscope="study-1-data"' in parts.body
    assert 'data-address="off"' in parts.body
    with pytest.raises(InputError, match="letters"):
        viewer_parts(views(pages.diffusion()), name='x"')


def test_writing_needs_an_html_name_and_a_folder(tmp_path: Path):
    with pytest.raises(InputError, match=r"\.html"):
        write_viewer(tmp_path / "page.txt", pages.diffusion())
    with pytest.raises(InputError, match="does not exist"):
        write_viewer(tmp_path / "none" / "page.html", pages.diffusion())
    made = write_viewer(tmp_path / "page.html", pages.diffusion(), pages.causal(), names=("a", None))
    data = re.search(r'id="trace-data">(.*?)</script>', made.read_text(), re.DOTALL)[1]
    found = json.loads(data)
    assert [view["name"] for view in found["views"]] == ["a", "a", "causal"]
    assert found["compare"] == 2
    assert pack_coded(np.array([1.0]))["kind"] == "coded"


def test_both_modes_of_one_checkpoint_side_by_side(tmp_path: Path):
    model, ids = golden.model("nemotron_diffusion"), torch.arange(3, 14)[None]
    decodings = ss.NemotronDecoding(16, 8, 0.3, eos=None), ss.NemotronCausalDecoding(16, eos=None)
    traces = [ss.generate(model, ids, decoding, capture=True).trace for decoding in decodings]
    text = write_viewer(tmp_path / "modes.html", *traces).read_text()
    found = json.loads(re.search(r'id="trace-data">(.*?)</script>', text, re.DOTALL)[1])
    assert found["compare"] == 1
    assert [(view["name"], view["causal"]) for view in found["views"]] == [
        ("checkpoint", False),
        ("checkpoint@causal", True),
    ]
    for view, trace in zip(found["views"], traces, strict=True):
        keys = (trace.dataset["position"].values >= 0).sum()
        assert (len(view["steps"]), view["keys"]) == (trace.dataset.sizes["step"], keys)
        assert view["scores"][0] == views(trace, percent=True)[0]["scores"][0]
    # The same weights, and one column for each token of the answer in both.
    assert found["views"][0]["keys"] == found["views"][1]["keys"] == 11 + 16


def test_learned_sinks_and_gates_of_every_head_and_step(tmp_path: Path):
    tiny("gpt_oss").save_pretrained(tmp_path)
    model = ss.load(tmp_path, device="cpu", dtype="float32")
    ids = torch.arange(3, 15)[None]
    data = ss.generate(model, ids, ss.GreedyDecoding(3, eos=None), capture=ss.Capture()).trace.dataset
    (view,) = views(data)
    assert list(view["shares"]) == ["to the learned sink"]
    wanted = data["learned_sink"].isel(sample=0).transpose("layer", "head", "step").values
    found = view["shares"]["to the learned sink"]
    np.testing.assert_allclose(decoded(found), wanted, atol=2 * found["error"] + 1e-6)
    means = ss.generate(model, ids, ss.GreedyDecoding(3, eos=None), capture=ss.Capture(level="layers")).trace
    assert views(means)[0]["shares"]["to the learned sink"]["shape"][0] == 4
