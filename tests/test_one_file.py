"""Adding in the tree: a family, a decoding, a policy and a reuse rule are one file each, and nothing else is touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.byte_tokenizer import TURNS, checkpoint_with_tokenizer

ROOT = Path(__file__).parents[1]
THINGS = (ROOT / "tests/extension/distribution/src/sinkscope_extension/__init__.py").read_text("utf-8")
OFTEN = """
import sinkscope as ss
from dataclasses import dataclass

@dataclass(frozen=True)
class Often(ss.PrefixReuse):
    word = "often"
"""
ADDED = {
    "models": f"{THINGS}\nfrom sinkscope.models.family import FAMILIES\nFAMILIES.add(ECHO)\n",
    "decoding": f"{THINGS}\nfrom sinkscope.decoding import DECODINGS\nDECODINGS.add(EchoDecoding)\n",
    "policies": f"{THINGS}\nfrom sinkscope.policies import POLICIES\nPOLICIES.add(MaskRank)\n",
    "reuse": f"{OFTEN}\nfrom sinkscope.reuse.rule import REUSES\nREUSES.add(Often)\n",
}
"""Folder → the file that is added to it: what the tests of extension packages have, registered inside."""

PROGRAM = """
import json, sys
import sinkscope as ss

model = ss.load(sys.argv[1], device="cpu")
run = ss.generate(model, "Say a.", policy=ss.parse_policy("rank:0"), seed=[0], capture=ss.Capture())
fast = ss.generate(model, "Say a.", reuse="often:2", seed=[0])
graded = ss.evaluate(model, "word_problems", limit=1)
print(json.dumps({
    "from": ss.__file__, "family": model.family, "decoding": run.decoding.kind, "reuse": str(ss.parse_reuse("often:2")),
    "masked": int(run.trace.masked_keys().sum()), "saved": fast.extras["reuse"].work.saved, "answers": len(graded.records),
}))
"""


@pytest.mark.slow
def test_one_file_each(tmp_path: Path) -> None:
    tree = tmp_path / "src" / "sinkscope"
    left_out = shutil.ignore_patterns("weights", "adapters", "__pycache__")
    shutil.copytree(ROOT / "src" / "sinkscope", tree, ignore=left_out)
    for folder, text in ADDED.items():
        (tree / folder / "strangers.py").write_text(text, encoding="utf-8")
    checkpoint = checkpoint_with_tokenizer("llada", tmp_path / "echo", TURNS)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "model_type": "echo"}))

    def python(*words: object) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, words)], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
            env={**os.environ, "PYTHONPATH": str(tree.parent), "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout

    shown = json.loads(python("-c", PROGRAM, checkpoint))
    assert Path(shown["from"]).is_relative_to(tree), "the copy is what runs"
    assert (shown["family"], shown["decoding"], shown["reuse"]) == ("echo", "echo", "often:2")
    assert (shown["masked"] > 0, 0 < shown["saved"] < 1, shown["answers"]) == (True, True, 1)
    assert "echo" in python("-m", "sinkscope", "models")
