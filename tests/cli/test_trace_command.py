"""`sinkscope trace` from end to end: options of each family, the closing summary, errors in one line, and kill -9."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.helpers.byte_tokenizer import checkpoint_with_tokenizer
from tests.helpers.forked import forked

import sinkscope as ss
from sinkscope import cli
from sinkscope.cli.show import WORDS

LLADA = ["--decoding", "length=8,steps=4,block=4"]
OPTIONS = {
    "llada": (LLADA, ss.LladaDecoding(8, 4, 4)),
    "dream": (
        ["--length", "8", "--steps", "4", "--decoding", "algorithm=topk_margin,temperature=0.3,top_p=0.9"],
        ss.DreamDecoding(8, 4, "topk_margin", 0.3, 0.9),
    ),
    "mmada": (["--decoding", "mmada,length=8,steps=4,block=8,cfg=1.0"], ss.MmadaDecoding(8, 4, 8, cfg=1.0)),
    "llama": (["--length", "6", "--decoding", "eos=none"], ss.GreedyDecoding(6, None)),
}
IDS = [[5, 9, 2, 30, 41, 7], [8, 1, 77, 12, 300, 3]]


def ids_file(folder: Path, rows: list[list[int]] = IDS) -> Path:
    path = folder / "ids.txt"
    path.write_text("\n".join(" ".join(map(str, row)) for row in rows))
    return path


def source(family: str) -> list[Any]:
    return ["trace", golden.checkpoint(family), "--device", "cpu", "--dtype", "float32"]


@pytest.fixture(scope="module")
def with_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the LLaDA checkpoint with a byte-level tokenizer beside it."""
    template = "{% for turn in messages %}<{{ turn['content'] }}>{% endfor %}"
    return checkpoint_with_tokenizer("llada", tmp_path_factory.mktemp("model") / "llada", template)


@pytest.mark.slow
@pytest.mark.parametrize("family", list(OPTIONS))
def test_token_ids_of_each_family(family: str, sinkscope: Any, tmp_path: Path) -> None:
    flags, decoding = OPTIONS[family]
    result = sinkscope(*source(family), "--prompt-ids", ids_file(tmp_path), *flags, "--seed", 4, "--out", "t.zarr.zip")
    assert result.code == 0, result.error
    assert "Traceback" not in result.error
    assert "Warning" not in result.error
    trace = ss.Trace.open(tmp_path / "t.zarr.zip")
    assert json.loads(trace.attributes["decoding"]) == decoding.as_dict()
    # Several prompts get a stream each: seed, seed + 1.
    run = ss.generate(golden.model(family), torch.tensor(IDS), decoding, seed=[4, 5])
    np.testing.assert_array_equal(trace.dataset["tokens"].values, run.states[:-1].numpy().transpose(1, 0, 2))
    assert trace.dataset["received"].dims == ("sample", "step", "layer", "head", "key")
    for row, text in enumerate(run.texts):
        assert f"answer {row}: {text}" in result.out
    assert f"steps: {len(run)}" in result.out
    unit = "% of a distant query's attention" if family == "llama" else "× uniform"
    assert re.search(rf"most attention, as a mean over all steps, layers and heads: position \d+ .*{unit}", result.out)
    assert "Diagnosis of" in result.out
    assert "t.zarr.zip" in result.out
    assert not Path("t.zarr.zip.partial").exists()


def test_one_prompt_uses_the_official_stream(sinkscope: Any, tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text(json.dumps(IDS[0]))
    flags = ["--decoding", "length=8,steps=4,block=4,temperature=0.8", "--seed", "7", "--policy", "top:1"]
    result = sinkscope(*source("llada"), "--prompt-ids", "ids.json", *flags, "--out", "t.zarr.zip", "--every", 2)
    assert result.code == 0, result.error
    decoding = ss.LladaDecoding(8, 4, 4, temperature=0.8)
    run = ss.generate(golden.model("llada"), torch.tensor(IDS[:1]), decoding, seed=7, policy=ss.MaskTop(1))
    trace = ss.Trace.open("t.zarr.zip")
    assert trace.dataset["step"].values.tolist() == [0, 2]
    np.testing.assert_array_equal(trace.dataset["tokens"].values[0, 1], run.states[2, 0].numpy())
    assert json.loads(trace.attributes["seed"]) == 7
    assert re.search(r"attention removed [\d.]+%", result.out)
    shown = sinkscope("show", "t.zarr.zip").out
    for word in ("absorbed", "drains", "hubs"):  # the last two are asked about in the diagnosis
        assert f"\n{word}: {WORDS[word]}\n" in shown
    assert "\nenrichment: " not in shown


def test_capture_options(sinkscope: Any, tmp_path: Path) -> None:
    flags = ["--level", "layers", "--by-query", "--anatomy"]
    result = sinkscope(
        *source("dream"), "--prompt-ids", ids_file(tmp_path), *OPTIONS["dream"][0], *flags, "--out", "t.zarr.zip",
    )  # fmt: skip
    assert result.code == 0, result.error
    data = ss.Trace.open("t.zarr.zip").dataset
    assert {"received_by", "sink_heads", "value_norm"} <= set(data.data_vars)
    assert "head" not in data.dims


@pytest.mark.slow
def test_texts_under_the_chat_template(sinkscope: Any, with_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("a longer prompt, wörld\n", encoding="utf-8")
    model = ss.load(with_tokenizer, device="cpu", dtype="float32")
    command = ["trace", with_tokenizer, "--device", "cpu", "--dtype", "float32", *LLADA]
    result = sinkscope(*command, "--prompt", "hi", "--prompt", "hello there", "--out", "two.zarr.zip")
    assert result.code == 0, result.error
    trace = ss.Trace.open("two.zarr.zip")
    assert "".join(trace.tokens_at(0, 1)[:13]) == "<hello there>"
    assert "".join(trace.tokens_at(0, 0)[:4]) == "<hi>"
    assert trace.dataset["region"].values[0].tolist() == ["padding"] * 9 + ["prompt"] * 4 + ["answer"] * 8
    # A prompt beside a longer one is the prompt alone.
    alone = ss.generate(model, "hi", ss.LladaDecoding(8, 4, 4), seed=[0])
    np.testing.assert_array_equal(trace.dataset["tokens"].values[0, :, 9:], alone.states[:-1, 0].numpy())
    result = sinkscope(*command, "--prompts", "p.txt", "--out", "file.zarr.zip")
    assert result.code == 0, result.error
    # Bytes of one letter are tokens of their own here, so only ASCII reads back token by token.
    assert "".join(ss.Trace.open("file.zarr.zip").tokens_at(0)[:19]) == "<a longer prompt, w"
    # A .json file may be one list.
    (tmp_path / "p.json").write_text('["hi", {"prompt": "hello there"}]')
    assert sinkscope(*command, "--prompts", "p.json", "--out", "json.zarr.zip").code == 0
    assert "".join(ss.Trace.open("json.zarr.zip").tokens_at(0, 1)[:13]) == "<hello there>"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "flags", "words"),
    [
        ("llada", ["--decoding", "algorithm=entropy"], ["--decoding", "llada", "'algorithm'", "remasking"]),
        ("dream", ["--decoding", "block=8,cfg=1"], ["'block'", "dream", "alg_temp"]),
        ("llama", ["--steps", "8"], ["'steps'", "causal", "eos"]),
        ("mmada", ["--decoding", "stopat=3"], ["'stopat'", "did you mean stop_at"]),
        ("llada", ["--decoding", "dream,length=8"], ["'dream'", "llada models", "have llada"]),
        ("llada", ["--decoding", "length=8,block"], ["name=value", "'block'"]),
        ("llada", ["--length", "30", "--decoding", "block=8"], ["30", "block 8", "length=32"]),
        ("llada", ["--decoding", "length=32,block=8,steps=10"], ["steps 10", "try steps=8"]),
        ("dream", ["--decoding", "algorithm=entrpy"], ["entrpy", "did you mean entropy?"]),
        ("dream", ["--decoding", "top_p=1.5"], ["top_p", "1.5"]),
        ("llama", ["--decoding", "eos=end"], ["eos", "'end'"]),
        ("llama", ["--decoding", "eos=4000"], ["4000", "512"]),
    ],
)
def test_bad_options_are_explained_in_one_line(
    family: str, flags: list[str], words: list[str], sinkscope: Any, tmp_path: Path
) -> None:
    result = sinkscope(*source(family), "--prompt-ids", ids_file(tmp_path, IDS[:1]), *flags, "--out", "t.zarr.zip")
    assert result.code == 2
    lines = [line for line in result.error.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    for word in words:
        assert word in lines[0], lines[0]
    assert "Traceback" not in result.error
    assert not list(tmp_path.glob("t.zarr.zip*"))


def test_an_older_unfinished_recording_is_in_the_way(sinkscope: Any, tmp_path: Path) -> None:
    Path("t.zarr.zip.partial").mkdir()
    result = sinkscope(*source("llada"), "--prompt-ids", ids_file(tmp_path), *LLADA, "--out", "t.zarr.zip")
    assert result.code == 2
    assert "t.zarr.zip.partial holds some steps of a recording that was not finished" in result.error
    assert "stopped;" not in result.error  # nothing was recorded by this command
    assert not list(Path("t.zarr.zip.partial").iterdir())


def test_ctrl_c_says_where_the_recording_is(sinkscope: Any, tmp_path: Path) -> None:
    calls = 0

    def interrupt(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt

    real = ss.load

    def load(*arguments: Any, **options: Any) -> Any:
        model = real(*arguments, **options)
        model.network.model.layers[0].register_forward_hook(interrupt)
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ss, "load", load)
        result = sinkscope(
            *source("llada"), "--prompt-ids", ids_file(tmp_path), "--decoding", "length=8,steps=8,block=8", "--out",
            "t.zarr.zip",
        )  # fmt: skip
    assert result.code == 130
    assert "Traceback" not in result.error
    assert "sinkscope show t.zarr.zip.partial" in result.error
    assert len(ss.Trace.open("t.zarr.zip.partial")) == 3


@pytest.mark.slow
def test_kill_in_the_middle_of_the_command(tmp_path: Path) -> None:
    out = tmp_path / "t.zarr.zip"
    count = tmp_path / "t.zarr.zip.partial" / "complete.json"
    flags = ["--decoding", "length=96,steps=96,block=96"]
    words = [*source("llada"), "--prompt-ids", ids_file(tmp_path), *flags, "--out", out]

    def command() -> None:
        sys.argv = ["sinkscope", *map(str, words)]
        cli.main()

    process = forked(command)
    try:
        end = time.monotonic() + 120
        while time.monotonic() < end and process.exitcode is None:
            if count.exists() and len(json.loads(count.read_text())["steps"]) >= 5:
                break
            time.sleep(0.005)
        assert process.exitcode is None, "the command ended before it could be killed"
    finally:
        process.kill()
        process.join(60)
    assert not out.exists()
    trace = ss.Trace.open(out)
    assert 5 <= len(trace) < 96
    run = ss.generate(golden.model("llada"), torch.tensor(IDS), ss.LladaDecoding(96, 96, 96), seed=[0, 1])
    np.testing.assert_array_equal(trace.dataset["tokens"].values, run.states[: len(trace)].numpy().transpose(1, 0, 2))
    last = trace.dataset["received"].isel(step=-1).values
    np.testing.assert_allclose(last.mean(-1), 1.0, atol=1e-3)


def test_both_modes_of_a_checkpoint_side_by_side(sinkscope: Any, tmp_path: Path) -> None:
    """SOURCE@causal is traced and described, a trace keeps that name, and the viewer shows both."""
    source, ids = str(golden.checkpoint("nemotron_diffusion")), ids_file(tmp_path, [[5, 9, 2, 30]])
    names = []
    for mode in ("", "@causal"):
        options = ["--prompt-ids", ids, "--length", 32, "--out", f"run{mode}.zarr.zip", "--device", "cpu"]
        assert sinkscope("trace", source + mode, *options).code == 0
        names.append(ss.Trace.open(tmp_path / f"run{mode}.zarr.zip").dataset.attrs["model"])
    assert names == [source, source + "@causal"]
    assert sinkscope("show", "run.zarr.zip", "run@causal.zarr.zip", "--view", "both.html").code == 0
    assert "checkpoint@causal" in (tmp_path / "both.html").read_text()
    described = sinkscope("models", source + "@causal")
    assert "nemotron_causal" in described.out
    refused = sinkscope("models", f"{golden.checkpoint('llada')}@causal")
    assert refused.code == 2
    assert "one mode" in refused.error
