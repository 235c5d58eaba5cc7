"""The runs of the English experiment, tiny: all processes agree on the steps, and what comes out can be loaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import sinkscope as ss
from sinkscope.models.load import find
from sinkscope.models.tokenizer import read_tokenizer
from sinkscope.organisms.documents import prose
from sinkscope.organisms.text import tokenise

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_pairs_of_runs(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for part, count in (("train", 300), ("valid", 40)):
        words = "\n\f\n".join(prose(seed) for seed in range(count))
        (folder / f"{part}-0.txt").write_text(words, encoding="utf-8")
    tokenizer = read_tokenizer(find("organism/causal").folder, None)
    tokenise(str(folder), tokenizer, tokenizer.get_vocab()["<|endoftext|>"], None, tmp_path / "tokens")
    places = [f"--{name}={tmp_path / name}" for name in ("work", "out")]
    small = (
        "--source organism/causal --device cpu --seconds 1 --batch 4 --rows 2 --length 32 --lora 2 --seeds 1"
    )
    command = [
        sys.executable,
        "-m",
        "lab.english_runs",
        f"--text={tmp_path / 'tokens'}",
        *places,
        *small.split(),
        *["--ways", "lora", "full", "random"],
    ]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    for _ in range(2):  # the second time nothing is left to do
        subprocess.run([*command, "--mask-token", "<|mask|>"], cwd=ROOT, env=environment, check=True)
    about = {}
    for kind in ("twin", "causal"):
        with tarfile.open(tmp_path / "out" / f"{kind}-lora.tar.xz") as tar:
            tar.extractall(tmp_path / "found", filter="data")
        place = tmp_path / "found" / f"{kind}-lora-0"
        shutil.copyfile(tmp_path / "out" / f"{kind}-lora-0.safetensors", place / "adapter_model.safetensors")
        about[kind] = json.loads((place / "training.json").read_text())
        model = ss.load(place, device="cpu")
        assert model.family == ("dream" if kind == "twin" else "causal")
        assert len(json.loads((place / "emergence.json").read_text())["points"]) > 5
        full = tmp_path / "work" / f"{kind}-full-0"
        whole = json.loads((full / "training.json").read_text())["adaptation"]
        assert whole["lora"] == 0
        assert whole["steps"] == about[kind]["adaptation"]["steps"]
        assert ss.load(full, device="cpu").family == model.family
    assert about["twin"]["adaptation"]["steps"] == about["causal"]["adaptation"]["steps"] == 10
    assert about["twin"]["text"] == about["causal"]["text"]
    anew = json.loads((tmp_path / "work" / "twin-random-0" / "training.json").read_text())
    assert anew["source_digest"] != about["twin"]["source_digest"]
    assert anew["adaptation"]["steps"] == 10
    start = json.loads((tmp_path / "work" / "twin-random-0" / "emergence.json").read_text())["points"][0]
    assert start["levels"]["0.5"]["sink_heads"] < 0.05
    assert ss.load(tmp_path / "work" / "twin-random-0", device="cpu").family == "dream"
