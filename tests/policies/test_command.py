"""`sinkscope trace … --policy TEXT --decoding TEXT`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.policies.follow import DECODINGS, prompts

import sinkscope as ss
from sinkscope import cli


def code_of(folder: Path, policy: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit code of a short golden generation."""
    (folder / "ids.txt").write_text(" ".join(map(str, prompts("llada", rows=1)[0].tolist())), encoding="utf-8")
    where = ["--prompt-ids", folder / "ids.txt", "--out", folder / "run.zarr.zip", "--device", "cpu"]
    words = [
        "trace", golden.checkpoint("llada"), *where, "--policy", policy, "--decoding", DECODINGS["llada"],
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", ["sinkscope", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


def test_a_policy_on_the_command_line_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not code_of(tmp_path, "top:3@layer,effect=silence", monkeypatch)
    trace = ss.Trace.open(tmp_path / "run.zarr.zip")
    policy = ss.MaskTop(3, scope="layer", effect="silence")
    ids, decoding = prompts("llada", rows=1), DECODINGS["llada"]
    run = ss.generate(golden.model("llada"), ids, decoding, policy=policy, capture=ss.Capture())
    assert trace.attributes["policy"] == str(policy)
    assert np.array_equal(trace.masked_keys().values, run.trace.masked_keys().values)
    assert torch.equal(torch.from_numpy(trace.dataset["tokens"].values[0]), run.states[:-1, 0])


def test_a_wrong_policy_is_one_line_with_the_nearest_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(tmp_path, "tpo:5", monkeypatch) == 2
    said = capsys.readouterr().err
    assert "did you mean top" in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("*.zarr*"))
