"""`sinkscope trace … --policy TEXT`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.policies.follow import DECODINGS, prompts

import sinkscope as ss
from sinkscope import cli


def arguments(folder: Path, policy: str) -> list[str]:
    """The command line for a short golden generation."""
    ids = folder / "ids.txt"
    ids.write_text(" ".join(map(str, prompts("llada", rows=1)[0].tolist())) + "\n", encoding="utf-8")
    decoding = DECODINGS["llada"]
    options = [
        "--length",
        decoding.length,
        "--steps",
        decoding.steps,
        "--block",
        decoding.block,
        "--device",
        "cpu",
    ]
    source = str(golden.checkpoint("llada"))
    given = [
        "trace",
        source,
        "--prompt-ids",
        ids,
        "--out",
        folder / "run.zarr.zip",
        "--policy",
        policy,
        *options,
    ]
    return [str(one) for one in given]


def test_a_policy_on_the_command_line_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["sinkscope", *arguments(tmp_path, "top:3@layer,effect=silence")])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert not stopped.value.code
    trace = ss.Trace.open(tmp_path / "run.zarr.zip")
    policy = ss.MaskTop(3, scope="layer", effect="silence")
    run = ss.generate(
        golden.model("llada"),
        prompts("llada", rows=1),
        DECODINGS["llada"],
        policy=policy,
        capture=ss.Capture(),
    )
    assert trace.attributes["policy"] == str(policy)
    assert np.array_equal(trace.masked_keys().values, run.trace.masked_keys().values)
    assert torch.equal(torch.from_numpy(trace.dataset["tokens"].values[0]), run.states[:-1, 0])


def test_a_wrong_policy_is_one_line_with_the_nearest_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["sinkscope", *arguments(tmp_path, "tpo:5")])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "did you mean top" in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("*.zarr*"))
