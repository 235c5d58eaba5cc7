"""Loading a hundred megabytes and more: the weights never exist twice in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.shapes import SHAPES, tensors_of
from tests.helpers import golden
from tests.helpers.checkpoints import dream_config, llada_config, llama_config, write

PROGRAM = """
import json, os, sys, threading, time
import sinkscope as ss

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024

def measured(folder, dtype):
    before, peak, done = anonymous(), 0, False

    def watch():
        nonlocal peak
        while not done:
            peak = max(peak, anonymous())
            time.sleep(0.001)

    thread = threading.Thread(target=watch)
    thread.start()
    model = ss.load(folder, device="cpu", dtype=dtype)
    done = True
    thread.join()
    weights = sum(p.numel() * p.element_size() for p in model.network.parameters())
    return {"weights": weights, "grown": peak - before}

cases = [case.split(",") for case in sys.argv[1:]]
for _, dtype, warm in cases:
    ss.load(warm, device="cpu", dtype=dtype).logits([[1, 2, 3]])  # everything is imported and every pool is warm
for folder, dtype, _ in cases:
    child = os.fork()  # of one thread; so that no load finds memory that an earlier one has left
    if child == 0:
        print(json.dumps(measured(folder, dtype)), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def big(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a config, constant and in bfloat16: only their size matters."""
    from tests.helpers import checkpoints

    if "num_experts" in config:
        return {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in tensors_of(config).items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", lambda *shape, generator=None: torch.ones(*shape, dtype=torch.bfloat16))
        return checkpoints.tensors_for(config)


CONFIGS = {
    "llada": llada_config(d_model=1024, n_heads=8, n_kv_heads=8, n_layers=3, mlp_hidden_size=4096, embedding_size=8000,
                          vocab_size=8000),
    "dream": dream_config(hidden_size=1024, num_attention_heads=8, num_hidden_layers=3, intermediate_size=4096,
                          vocab_size=8000),
    "llama": llama_config(hidden_size=1024, num_attention_heads=8, num_hidden_layers=3, intermediate_size=4096,
                          vocab_size=8000),
    "llada2": {**SHAPES["llada2-small"], "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 512,
               "num_experts": 32, "num_hidden_layers": 3, "vocab_size": 8000},
}  # fmt: skip


CASES = (("llada", "bfloat16"), ("llada", "float32"), ("dream", "float32"), ("llama", "float32"), ("llada2", "bfloat16"),
         ("llada2", "float32"))  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, int]]:
    """Case → bytes of weights, and by how much the process that loaded them grew."""
    folder = tmp_path_factory.mktemp("big")
    for family, config in CONFIGS.items():
        write(folder / family, config, big(config), shards=4)
    words = [f"{folder / family},{dtype},{golden.checkpoint(family)}" for family, dtype in CASES]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see the memory of a process")
@pytest.mark.parametrize(("family", "dtype"), CASES)
def test_weights_never_exist_twice(loaded: dict[tuple[str, str], dict[str, int]], family: str, dtype: str) -> None:
    found = loaded[family, dtype]
    assert found["weights"] > 80e6
    # In the file's own dtype they are mapped from it: not even one copy in the process's own memory. Experts lie in stacks.
    most = 0.3 if dtype == "bfloat16" and family != "llada2" else 1.3
    assert found["grown"] < most * found["weights"], f"{found['grown'] / found['weights']:.2f} times the weights"
