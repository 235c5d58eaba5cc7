"""On a CUDA GPU: golden fixtures, kernels against the dense reference, and what the same calls give on a CPU.

Needs pytest and what the package imports, no more: `python -m pytest tests/gpu`. Captured forwards are in `test_graphs.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers import column_cases, layer_cases

import sinkscope as ss
from sinkscope.attention.fused import attend, raw_lse
from sinkscope.attention.kernels import cudnn_works
from sinkscope.attention.key_mask import Band, KeyMask
from sinkscope.attention.received import dense_map, dense_received, received
from sinkscope.attention.visibility import Scores, Visibility, query_weights

pytestmark = pytest.mark.gpu

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES = ("llada", "dream", "mmada", "llama")


def test_forward_fixtures_in_float32() -> None:
    """Every unpadded forward fixture, with tensor cores' reduced precision switched off."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for family in FAMILIES:
        model = ss.load(GOLDEN / family / "checkpoint", device="cuda", dtype="float32")
        for path in sorted((GOLDEN / family).glob("forward_T*.npz")):
            stored = np.load(path)
            ids = torch.tensor(stored["input_ids"])
            rows = len(stored["logits"])  # of the larger inputs one row is stored
            logits = model.logits(ids).cpu().numpy()[:rows]
            np.testing.assert_allclose(logits, stored["logits"], atol=5e-4, rtol=1e-3, err_msg=str(path))
            maps = model.attention(ids).numpy()[:, :rows]
            np.testing.assert_allclose(maps, stored["attn"], atol=5e-5, err_msg=str(path))


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
    assert (model.device.type, model.dtype) == ("cuda", torch.float32)


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
                    for taken in (None, KeyMask(columns), KeyMask(None, Band(7, 2, 3)), KeyMask(columns, Band(9))):
                        _against_dense(query, key, value, pattern, taken, size**-0.5, bound)


def _against_dense(query, key, value, pattern, taken, scale, bound) -> None:  # type: ignore[no-untyped-def]
    out, lse = attend(Scores(query, key, pattern, scale, taken), value)
    attention = dense_map(Scores(query, key, pattern, scale, taken))
    values = value.float().repeat_interleave(query.shape[1] // value.shape[1], 1)
    assert (out.float() - attention @ values).abs().max() < bound * 4
    weights = query_weights(pattern, None, query)
    found = received(Scores(query, key, pattern, scale, taken), lse)
    reference = dense_received(attention, pattern, weights)
    assert torch.equal(found.isnan(), reference.isnan())
    assert (found - reference).nan_to_num().abs().max() < bound * 4
    if taken is not None:
        rows = pattern.real_queries()
        whole = raw_lse(Scores(query, key, pattern, scale, taken), lse)
        plain = attend(Scores(query, key, pattern, scale), value)[1]
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
        f"norm-drawn-{width}-{dtype}": ("drawn", width, dtype) for width in (3584, 4096) for dtype in layer_cases.DTYPES
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


def test_reuse_on_gpu_equals_that_on_cpu() -> None:
    """States and work of approximate runs agree between the devices (float32)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    prompt = torch.randint(0, 470, (2, 13), generator=torch.Generator().manual_seed(3))
    pair = [ss.load(GOLDEN / "llada" / "checkpoint", device=device, dtype="float32") for device in ("cpu", "cuda")]
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
        assert runs[0].extras["reuse"].work == runs[1].extras["reuse"].work, rule


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
        run = ss.generate(model, torch.tensor(stored["prompt"]), decoding, policy=policy, capture=ss.Capture())
        assert np.array_equal(run.states.numpy(), stored["states"]), name
    stored = np.load(GOLDEN / "dream" / "gen_entropy_t0.npz")
    model = ss.load(GOLDEN / "dream" / "checkpoint", device="cuda", dtype="float32")
    run = ss.generate(model, torch.tensor(stored["prompt"]), ss.DreamDecoding(32, 16))
    assert np.array_equal(run.states.numpy(), stored["states"])
    stored = np.load(GOLDEN / "llama" / "gen_greedy.npz")
    model = ss.load(GOLDEN / "llama" / "checkpoint", device="cuda", dtype="float32")
    run = ss.generate(model, torch.tensor(stored["prompt"]), ss.GreedyDecoding(32, eos=None))
    assert np.array_equal(run.sequences.numpy(), stored["sequences"])


def test_the_newest_families_token_for_token() -> None:
    """Nemotron in both modes and BD3LM where nothing is drawn, with a trace; a canvas of DiffusionGemma."""
    torch.backends.cuda.matmul.allow_tf32 = False
    loops = {
        ("nemotron_diffusion", "gen_b8_t0_thr0.9.npz"): ss.NemotronDecoding(32, 8, 0.9),
        ("nemotron_diffusion", "gen_b8_t0_nothreshold.npz"): ss.NemotronDecoding(24, 8, None),
        ("nemotron_diffusion", "gen_ar_t0.npz"): ss.NemotronCausalDecoding(24),
        ("a2d_bd3lm", "gen_b8_s24_t0.npz"): ss.Bd3lmDecoding(24, 8, 24),
    }
    for (family, name), decoding in loops.items():
        mask = json.loads((GOLDEN / family / "manifest.json").read_text())["special_ids"]["mask"]
        model = ss.load(GOLDEN / family / "checkpoint", device="cuda", dtype="float32", mask_token_id=mask)
        stored = np.load(GOLDEN / family / name)
        prompt = torch.tensor(stored["prompt"]).long()
        for capture in (None, ss.Capture()):
            run = ss.generate(model, prompt, decoding, capture=capture)
            states = run.states[1:] if decoding.causal else run.states
            assert np.array_equal(states.numpy(), stored["states"]), (name, capture)
    model = ss.load(GOLDEN / "diffusion_gemma" / "checkpoint", device="cuda", dtype="float32")
    stored = np.load(GOLDEN / "diffusion_gemma" / "forward_T23.npz")
    ids = torch.cat([torch.tensor(stored[key]).long() for key in ("input_ids", "canvas_ids")], 1)
    np.testing.assert_allclose(model.logits(ids).cpu().numpy(), stored["logits"], atol=5e-4, rtol=1e-3)
    decoding = ss.DiffusionGemmaDecoding(16, 6, eos=None)
    run = ss.generate(model, ids[:, :11], decoding, seed=1, policy="top:1", capture=ss.Capture())
    assert run.states.shape == (13, 2, 27)
    assert run.trace.dataset["received"].notnull().any()


def test_layers_on_gpu_and_cpu_give_the_same() -> None:
    """A network spread by accelerate, bit for bit: what lies on the CPU is computed on the GPU."""
    for family in ("llada", "llama"):
        folder = GOLDEN / family / "checkpoint"
        plain = ss.load(folder, device="cuda", dtype="float32")
        plain._fused = None  # kernels of a network on one GPU, which round otherwise
        places = {"model.embed_tokens": 0, "model.norm": 0, "model.rotary_emb": 0, "lm_head": 0}
        places |= {f"model.layers.{layer}": [0, "cpu"][layer % 2] for layer in plain.layers}
        spread = ss.load(folder, dtype="float32", device_map=places)
        assert spread.home is not None
        assert spread.home.type == "cuda"
        ids = torch.arange(40)[None]
        assert torch.equal(spread.logits(ids), plain.logits(ids))
        assert torch.equal(spread.attention(ids), plain.attention(ids))
        one, two = (ss.generate(m, ids[:, :9], length=8, capture=ss.Capture()) for m in (spread, plain))
        assert torch.equal(one.states, two.states)


def test_policies_on_gpu_equal_those_on_cpu() -> None:
    """Hidden sets and states of score-based policies agree between the devices."""
    torch.backends.cuda.matmul.allow_tf32 = False
    prompt = torch.randint(0, 470, (2, 13), generator=torch.Generator().manual_seed(3))
    for family, decoding in (("llada", ss.LladaDecoding(16, 8, 8)), ("llama", ss.GreedyDecoding(12, eos=None))):
        pair = [ss.load(GOLDEN / family / "checkpoint", device=device, dtype="float32") for device in ("cpu", "cuda")]
        for text in ("top:2", "top:2@model", "random(top:2)", "above:2,effect=silence", "keep:0.4", "window:6,first=1"):
            states = [
                ss.generate(model, prompt, decoding, policy=ss.parse_policy(text), seed=[5, 6]).states for model in pair
            ]
            assert torch.equal(*states), (family, text)


def test_ends_are_noticed_beside_the_next_forward() -> None:
    """A GPU is asked whether any row goes on while it runs the next forward, of which nothing may remain."""
    torch.backends.cuda.matmul.allow_tf32 = False
    prompt = torch.tensor(np.load(GOLDEN / "llama" / "gen_greedy.npz")["prompt"])
    pair = [ss.load(GOLDEN / "llama" / "checkpoint", device=device, dtype="float32") for device in ("cpu", "cuda")]
    whole = ss.generate(pair[0], prompt, ss.GreedyDecoding(32, eos=None), policy=ss.MaskTop(2))
    ends = tuple({int(row[prompt.shape[1] + 5]) for row in whole.sequences})
    runs = [
        ss.generate(model, prompt, ss.GreedyDecoding(32, eos=ends), policy=ss.MaskTop(2), capture=ss.Capture())
        for model in pair
    ]
    here, there = runs
    assert len(here.states) < 33, "the fixture has no row that ends"
    assert torch.equal(here.states, there.states)
    assert here.forwards == there.forwards
    assert torch.allclose(here.hidden_share, there.hidden_share, atol=1e-4)
    assert here.trace.dataset.sizes == there.trace.dataset.sizes
