"""On a CUDA GPU: the golden fixtures, the kernels against the dense reference, recording and policies.

Runs under pytest (mark `gpu`), or as a plain script on machines without it: `python tests/gpu/test_cuda.py`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import sinkscope as ss
from sinkscope.attention.fused import attend, raw_lse
from sinkscope.attention.kernels import cudnn_works
from sinkscope.attention.key_mask import Band, KeyMask
from sinkscope.attention.received import dense_map, dense_received, query_weights, received
from sinkscope.attention.visibility import Visibility

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.helpers import column_cases, layer_cases

try:
    import pytest

    pytestmark = pytest.mark.gpu
except ImportError:
    pass

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = ("llada", "dream", "mmada", "llama")


@contextmanager
def counted_captures() -> Iterator[list[bool]]:
    """Whether each capture that is tried inside worked."""
    from sinkscope.decoding.graphs import Graphs

    captures: list[bool] = []
    plain_capture = Graphs._capture

    def counted(self, *given) -> bool:  # type: ignore[no-untyped-def]
        captures.append(plain_capture(self, *given))
        return captures[-1]

    Graphs._capture = counted  # type: ignore[method-assign]
    try:
        yield captures
    finally:
        Graphs._capture = plain_capture  # type: ignore[method-assign]
        os.environ.pop("SINKSCOPE_GRAPHS", None)


def test_forward_fixtures_in_float32() -> None:
    """Every unpadded forward fixture, with tensor cores' reduced precision switched off."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for family in FAMILIES:
        model = ss.load(GOLDEN / family / "checkpoint", device="cuda", dtype="float32")
        for path in sorted((GOLDEN / family).glob("forward_T*.npz")):
            stored = np.load(path)
            ids = torch.tensor(stored["input_ids"])
            logits = model.logits(ids).cpu().numpy()
            np.testing.assert_allclose(logits, stored["logits"], atol=5e-4, rtol=1e-3, err_msg=str(path))
            np.testing.assert_allclose(
                model.attention(ids).numpy(), stored["attn"], atol=5e-5, err_msg=str(path)
            )


def test_left_padding_in_float32() -> None:
    """The left-padded fixtures, real rows."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for family in FAMILIES:
        model = ss.load(GOLDEN / family / "checkpoint", device="cuda", dtype="float32")
        stored = np.load(next((GOLDEN / family).glob("forward_leftpad*.npz")))
        mask = stored["attention_mask"]
        logits = model.logits(torch.tensor(stored["input_ids"]), mask).cpu().numpy()
        real = mask.astype(bool)
        np.testing.assert_allclose(logits[real], stored["logits"][real], atol=5e-4, rtol=1e-3, err_msg=family)


def test_self_check_in_every_dtype() -> None:
    """Recording leaves the output alone, and what is recorded is the model's attention."""
    for family in FAMILIES:
        for dtype in ("float32", "bfloat16", "float16"):
            result = ss.load(GOLDEN / family / "checkpoint", device="cuda", dtype=dtype).check()
            assert result.passed, (family, dtype, result)


def test_auto_takes_the_checkpoints_dtype() -> None:
    """On a GPU "auto" means what the checkpoint was saved in."""
    model = ss.load(GOLDEN / "llada" / "checkpoint")
    assert model.device.type == "cuda"
    assert model.dtype == torch.float32


def test_kernels_against_the_dense_reference() -> None:
    """Random shapes, patterns and taken keys, in float32 and bfloat16."""
    generator = torch.Generator("cuda").manual_seed(0)
    for dtype, bound in ((torch.float32, 2e-5), (torch.bfloat16, 2e-2)):
        for causal in (False, True):
            for padded in (False, True):
                for heads, groups, size in ((4, 4, 64), (8, 2, 128)):
                    shape = {"generator": generator, "device": "cuda"}
                    query = torch.randn(2, heads, 77, size, **shape).to(dtype)
                    key, value = (torch.randn(2, groups, 77, size, **shape).to(dtype) for _ in range(2))
                    real = None
                    if padded:
                        real = torch.ones(2, 77, dtype=torch.bool, device="cuda")
                        real[1, :9] = False
                    pattern = Visibility(77, 77, real, causal)
                    columns = torch.rand(2, heads, 77, **shape) < 0.1
                    for taken in (
                        None,
                        KeyMask(columns),
                        KeyMask(None, Band(7, 2, 3)),
                        KeyMask(columns, Band(9)),
                    ):
                        _against_dense(query, key, value, pattern, taken, size**-0.5, bound)


def _against_dense(query, key, value, pattern, taken, scale, bound) -> None:  # type: ignore[no-untyped-def]
    out, lse = attend(query, key, value, pattern, taken, scale)
    attention = dense_map(query, key, pattern, taken, scale)
    values = value.float().repeat_interleave(query.shape[1] // value.shape[1], 1)
    assert (out.float() - attention @ values).abs().max() < bound * 4
    weights = query_weights(pattern, None, query)
    found = received(query, key, lse, pattern, taken, scale)
    reference = dense_received(attention, pattern, weights)
    assert torch.equal(found.isnan(), reference.isnan())
    assert (found - reference).nan_to_num().abs().max() < bound * 4
    if taken is not None:
        rows = pattern.real_queries()
        whole = raw_lse(query, key, lse, pattern, taken, scale)
        plain = attend(query, key, value, pattern, None, scale)[1]
        difference = (whole - plain).abs()
        difference = difference if rows is None else difference * rows[:, None]
        assert difference.max() < max(bound, 1e-4)


def test_column_kernel_cases() -> None:
    """The cases of the interpreter's test, in the compiled kernel: exact, deterministic, NaN where no key is."""
    for case in (*column_cases.CASES, *column_cases.RAW):
        raw = case in column_cases.RAW
        found = (column_cases.measured_raw if raw else column_cases.measured)(case, "cuda")
        assert found["kernel"] == 1, case
        assert found["error"] <= found["limit"], (case, found)
        assert found["wrong_nan"] == 0, (case, found)


def test_fused_kernels_round_as_the_eager_code_does() -> None:
    """The interpreter's cases in the compiled kernels: bit for bit but for the order of additions in a norm."""
    wide = {
        f"norm-drawn-{width}-{dtype}": ("drawn", width, dtype)
        for width in (3584, 4096)
        for dtype in layer_cases.DTYPES
    }
    layer_cases.NORMS.update(wide)
    with torch.no_grad():
        for cases, measure in (
            (layer_cases.NORMS, layer_cases.norm_case),
            (layer_cases.ROTATIONS, layer_cases.rotate_case),
            (layer_cases.GATES, layer_cases.gate_case),
        ):
            for name in cases:
                found = measure(name, "cuda")
                assert found["sum"] == 1, (name, found)
                if found["exact"]:
                    assert found["differ"] == 0, (name, found)
                assert found["steps"] <= (4 if "float32" in name else 2), (name, found)
                assert found["differ"] <= (0.5 if "float32" in name else 0.01), (name, found)


def test_fused_forward_equals_the_plain_one() -> None:
    """Logits, attention calls, the switch, hooks and moved weights; bounds are those of the self-check."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in (*layer_cases.FORWARDS, *layer_cases.WIDE):
        for batch, length in ((1, 17), (3, 45)):
            found = layer_cases.forward_case(name, "cuda", batch, length)
            bound = 3e-5 if "float32" in name else 3e-2
            assert max(found["error"], found["attention"]) <= bound, (name, found)
            assert found["same_calls"] == found["switched"] == found["aside"] == 1, (name, found)


def test_fused_generation_equals_the_plain_one() -> None:
    """States token for token and scores within rounding, replayed and with the residual stream listened to (float32)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    prompt = torch.randint(0, 470, (3, 21), generator=torch.Generator().manual_seed(4))
    for family, decoding in (
        ("llada", ss.LladaDecoding(32, 16, 8)),
        ("dream", ss.DreamDecoding(32, 16, temperature=0.0, top_p=None)),
        ("mmada", ss.MmadaDecoding(32, 16, 8)),
    ):
        model = ss.load(GOLDEN / family / "checkpoint", device="cuda", dtype="float32")
        for capture in (ss.Capture(), ss.Capture(anatomy=True)):
            runs = []
            for on in (False, True):
                with layer_cases.fused(on), layer_cases.counted() as norms:
                    runs.append(ss.generate(model, prompt, decoding, capture=capture))
                assert (norms[0] > 0) == (on and not capture.anatomy), (family, capture, norms)
            plain, quick = runs
            assert torch.equal(plain.states, quick.states), (family, capture)
            for name, steps in plain.trace._parts.arrays.items():
                own = quick.trace._parts.arrays[name]
                np.testing.assert_allclose(own, steps, atol=1e-3, rtol=1e-3, err_msg=f"{family} {name}")


def test_graphs_change_nothing() -> None:
    """The same states and scores whether a step is launched kernel by kernel or replayed."""
    prompt = torch.randint(0, 470, (3, 21), generator=torch.Generator().manual_seed(4))
    heads, sparse, layers = ss.Capture(), ss.Capture(by_query=True, every=3), ss.Capture(level="layers")
    for family, dtype, decoding in (
        ("llada", "float32", ss.LladaDecoding(32, 16, 8)),
        ("llada", "bfloat16", ss.LladaDecoding(32, 16, 8)),
        ("dream", "bfloat16", ss.DreamDecoding(32, 16, temperature=0.0, top_p=None)),
        ("mmada", "float32", ss.MmadaDecoding(32, 16, 8)),
    ):
        model = ss.load(GOLDEN / family / "checkpoint", device="cuda", dtype=dtype)
        for capture, policy in (
            (None, None),
            (heads, None),
            (sparse, None),
            (None, "top:2"),
            (heads, "top:2"),
            (layers, "top:1@model,effect=silence"),
            (sparse, "top:2"),
            (heads, "random(top:2)"),
            (None, "first:1"),
            (heads, "top:2,epsilon=0.5"),
            (heads, "top:2,queries=masked"),
            (None, "top:2,heads=0 & token:7"),
        ):
            rule = None if policy is None else ss.parse_policy(policy)
            runs = []
            for switch in ("0", "1"):
                os.environ["SINKSCOPE_GRAPHS"] = switch
                runs.append(ss.generate(model, prompt, decoding, policy=rule, capture=capture))
            plain, replayed = runs
            assert torch.equal(plain.states, replayed.states), (family, dtype, capture, policy)
            if policy is not None:
                np.testing.assert_array_equal(plain.hidden_share, replayed.hidden_share)
            if capture is not None:
                for name, steps in plain.trace._parts.arrays.items():
                    np.testing.assert_array_equal(replayed.trace._parts.arrays[name], steps, err_msg=name)


def test_graphs_change_no_partial_step() -> None:
    """Under every kind of reuse rule: states, work and scores of replayed partial steps, bit for bit, padded rows too."""
    prompt = torch.randint(0, 470, (3, 21), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(prompt)
    mask[1, :6] = 0
    cases = [
        ("llada", dtype, ss.LladaDecoding(32, 32, 8), rule)
        for dtype in ("float32", "bfloat16")
        for rule in (
            "prefix:block", "prefix:3", "prefix:block,fresh=rest", "prefix:6,fresh=masks", "sparse:0.5,by=received",
            "sparse:0.25,by=sinks,refresh=4", "sparse:6,by=random", "sparse:6,by=first:2+recent", "drift:0.9", "drift:0.999",
            "drift:0.99,refresh=layers",
        )
    ]  # fmt: skip
    cases += [
        ("dream", "bfloat16", ss.DreamDecoding(16, 16, algorithm="maskgit_plus"), rule)
        for rule in ("prefix:4", "sparse:0.5,by=received")
    ]
    cases += [("mmada", "float32", ss.MmadaDecoding(32, 32, 8), "prefix:block")]
    with counted_captures() as captures:
        for family, dtype, decoding, rule in cases:
            model = ss.load(GOLDEN / family / "checkpoint", device="cuda", dtype=dtype)
            for capture, padding in ((None, None), (None, mask), (ss.Capture(by_query=True, every=2), mask)):
                runs = []
                for switch in ("0", "1"):
                    os.environ["SINKSCOPE_GRAPHS"] = switch
                    captures.clear()
                    runs.append(
                        ss.generate(
                            model, prompt, decoding, reuse=rule, capture=capture, attention_mask=padding
                        )
                    )
                    worked = bool(captures) and all(captures)
                    assert worked == (switch == "1"), (family, dtype, rule, captures)
                plain, replayed = runs
                assert torch.equal(plain.states, replayed.states), (family, dtype, rule, capture)
                assert plain.work == replayed.work
                if capture is not None:
                    for name, steps in plain.trace._parts.arrays.items():
                        np.testing.assert_array_equal(replayed.trace._parts.arrays[name], steps, err_msg=name)


def test_graphs_change_no_block_loop() -> None:
    """Captured and repeated, on a cache of fixed size or block by block without one: the states of launched forwards, and their
    scores to rounding.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    prompt = torch.randint(0, 150, (2, 13), generator=torch.Generator().manual_seed(4))
    greedy = ss.SdarDecoding(length=32, block=4, steps=4, top_k=1, scoring="raw", threshold=1.0)
    fast = ss.FastDllmDecoding(length=32, block=8, small_block=4, stop=None)
    loops = (
        ("sdar", greedy, True), ("sdar", greedy, False), ("llada2", ss.Llada2Decoding(length=32, block=8, steps=8), True),
        ("fast_dllm_v2", fast, True), ("fast_dllm_v2", fast, False), ("fast_dllm_v2", replace(fast, block_cache=True), True),
    )  # fmt: skip
    settings = (
        (None, None), (ss.Capture(), None), (None, "top:2"), (None, "random(top:2)"), (ss.Capture(), "top:2"),
        (ss.Capture(level="layers"), "top:1@model,effect=silence"), (ss.Capture(by_query=True), None),
    )  # fmt: skip
    with counted_captures() as captures:
        for family, decoding, cache in loops:
            mask = json.loads((GOLDEN / family / "manifest.json").read_text())["special_ids"]["mask"]
            path = GOLDEN / family / "checkpoint"
            model = ss.load(path, device="cuda", dtype="float32", mask_token_id=mask)
            for capture, policy in settings:
                runs = []
                for switch in ("0", "1"):
                    os.environ["SINKSCOPE_GRAPHS"] = switch
                    captures.clear()
                    options = {"policy": policy, "capture": capture, "seed": [1, 2], "cache": cache}
                    runs.append(ss.generate(model, prompt, decoding, **options))
                plain, replayed = runs
                where = f"{family} cache={cache} {capture} {policy}"
                # In float32 the experts of a mixture are launched one by one, which a graph cannot repeat.
                if family != "llada2":
                    assert all(captures), where
                    assert captures or not cache or (capture is not None and capture.by_query), where
                assert torch.equal(plain.states, replayed.states), where
                if policy is not None:
                    np.testing.assert_allclose(plain.hidden_share, replayed.hidden_share, atol=1e-4)
                    np.testing.assert_allclose(plain.sinks_hit, replayed.sinks_hit, atol=1e-4)
                for name, steps in () if capture is None else plain.trace._parts.arrays.items():
                    own, message = replayed.trace._parts.arrays[name], f"{where} {name}"
                    np.testing.assert_allclose(own, steps, atol=1e-3, rtol=1e-3, err_msg=message)


def test_reuse_on_gpu_equals_that_on_cpu() -> None:
    """States and work of approximate runs agree between the devices (float32)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    prompt = torch.randint(0, 470, (2, 13), generator=torch.Generator().manual_seed(3))
    pair = [
        ss.load(GOLDEN / "llada" / "checkpoint", device=device, dtype="float32") for device in ("cpu", "cuda")
    ]
    for rule in (
        "prefix:block",
        "prefix:4,fresh=masks",
        "sparse:0.5,by=received",
        "sparse:5,by=random",
        "drift:0.9",
        "drift:0.99,refresh=layers",
    ):
        runs = [ss.generate(model, prompt, ss.LladaDecoding(16, 16, 8), reuse=rule) for model in pair]
        assert torch.equal(runs[0].states, runs[1].states), rule
        assert runs[0].work == runs[1].work, rule


def test_cudnn_is_chosen_on_hopper() -> None:
    """There it is right for the heads of the known models, and refused where it would be wrong."""
    here = torch.device("cuda", torch.cuda.current_device())
    assert not cudnn_works(here, torch.float32, 128)
    if torch.cuda.get_device_capability() == (9, 0):
        assert cudnn_works(here, torch.bfloat16, 128)


def test_generation_fixtures_token_for_token() -> None:
    """Decodings without random numbers give the fixtures' states on a GPU too (float32; ties may fall otherwise)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    manifest = json.loads((GOLDEN / "llada" / "manifest.json").read_text())
    model = ss.load(GOLDEN / "llada" / "checkpoint", device="cuda", dtype="float32")
    for name in ("gen_b8_s16.npz", "gen_b32_s32.npz", "gen_b8_s16_cfg1.5.npz", "gen_b8_s16_sinkmask.npz"):
        entry, stored = manifest["generate"][name], np.load(GOLDEN / "llada" / name)
        options = entry["kwargs"]
        decoding = ss.LladaDecoding(32, options["steps"], options["block_length"], cfg=options["cfg_scale"])
        columns = entry["sink_columns_per_layer"]
        policy = ss.MaskKeys({int(layer): chosen for layer, chosen in columns.items()}) if columns else None
        run = ss.generate(
            model, torch.tensor(stored["prompt"]), decoding, policy=policy, capture=ss.Capture()
        )
        assert np.array_equal(run.states.numpy(), stored["states"]), name
    stored = np.load(GOLDEN / "dream" / "gen_entropy_t0.npz")
    model = ss.load(GOLDEN / "dream" / "checkpoint", device="cuda", dtype="float32")
    run = ss.generate(model, torch.tensor(stored["prompt"]), ss.DreamDecoding(32, 16))
    assert np.array_equal(run.states.numpy(), stored["states"])
    stored = np.load(GOLDEN / "llama" / "gen_greedy.npz")
    model = ss.load(GOLDEN / "llama" / "checkpoint", device="cuda", dtype="float32")
    run = ss.generate(model, torch.tensor(stored["prompt"]), ss.GreedyDecoding(32, eos=None))
    assert np.array_equal(run.sequences.numpy(), stored["sequences"])


def test_policies_on_gpu_equal_those_on_cpu() -> None:
    """Hidden sets and states of score-based policies agree between the devices."""
    torch.backends.cuda.matmul.allow_tf32 = False
    prompt = torch.randint(0, 470, (2, 13), generator=torch.Generator().manual_seed(3))
    for family, decoding in (
        ("llada", ss.LladaDecoding(16, 8, 8)),
        ("llama", ss.GreedyDecoding(12, eos=None)),
    ):
        pair = [
            ss.load(GOLDEN / family / "checkpoint", device=device, dtype="float32")
            for device in ("cpu", "cuda")
        ]
        for text in (
            "top:2",
            "top:2@model",
            "random(top:2)",
            "above:2,effect=silence",
            "keep:0.4",
            "window:6,first=1",
        ):
            states = [
                ss.generate(model, prompt, decoding, policy=ss.parse_policy(text), seed=[5, 6]).states
                for model in pair
            ]
            assert torch.equal(*states), (family, text)


def test_ends_are_noticed_beside_the_next_forward() -> None:
    """A GPU is asked whether any row goes on while it runs the next forward, of which nothing may remain."""
    torch.backends.cuda.matmul.allow_tf32 = False
    prompt = torch.tensor(np.load(GOLDEN / "llama" / "gen_greedy.npz")["prompt"])
    pair = [
        ss.load(GOLDEN / "llama" / "checkpoint", device=device, dtype="float32") for device in ("cpu", "cuda")
    ]
    whole = ss.generate(pair[0], prompt, ss.GreedyDecoding(32, eos=None), policy=ss.MaskTop(2))
    ends = tuple({int(row[prompt.shape[1] + 5]) for row in whole.sequences})
    runs = [
        ss.generate(model, prompt, ss.GreedyDecoding(32, eos=ends), ss.MaskTop(2), ss.Capture())
        for model in pair
    ]
    here, there = runs
    assert len(here.states) < 33, "the fixture has no row that ends"
    assert torch.equal(here.states, there.states)
    assert here.forwards == there.forwards
    assert torch.allclose(here.hidden_share, there.hidden_share, atol=1e-4)
    assert here.trace.dataset.sizes == there.trace.dataset.sizes


def test_static_cache_equals_the_growing_one() -> None:
    """States, recorded scores and masked keys of causal generations, graphs included."""
    torch.backends.cuda.matmul.allow_tf32 = False
    from tests.helpers import decode_cases

    for case, differences in decode_cases.cases("cuda").items():
        assert differences.pop("states") == 0, case
        assert {name: value for name, value in differences.items() if value > 1e-3} == {}, case


if __name__ == "__main__":
    import traceback

    failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_") and (len(sys.argv) == 1 or name in sys.argv[1:]):
            try:
                test()
                print("passed", name, flush=True)
            except Exception:
                failed += 1
                print("FAILED", name, flush=True)
                traceback.print_exc()
    sys.exit(bool(failed))
