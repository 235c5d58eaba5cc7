"""The sink rule: numpy and torch decide alike, as its sentence says, and nobody else states it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sinkscope
from sinkscope.base.sink_rule import EPSILON, torch_sinks_of
from sinkscope.sinks import sinks_of


@given(
    rows=st.integers(1, 4), keys=st.integers(1, 80), sigma=st.floats(0, 4), missing=st.floats(0, 1),
    epsilon=st.sampled_from([0.0, 0.5, 3.0, 10.0]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_numpy_and_torch_agree_bit_for_bit(rows, keys, sigma, missing, epsilon, seed):
    rng = np.random.default_rng(seed)
    received = rng.lognormal(0.0, sigma, (rows, 2, keys)).astype(np.float32)
    received[rng.random(received.shape) < missing] = np.nan
    expected = sinks_of(received, epsilon)
    np.testing.assert_array_equal(torch_sinks_of(torch.from_numpy(received), epsilon).numpy(), expected)


def test_the_rule_is_its_sentence_at_the_very_edge():
    """Sixteen keys with a mean of others of 1: 4 is not above 1 + 3, the next number is."""
    row = np.ones(16, dtype=np.float32)
    for score, expected in ((4.0, False), (np.nextafter(np.float32(4), np.float32(5)), True)):
        row[3] = score
        assert sinks_of(row)[3] == expected
        assert bool(torch_sinks_of(torch.from_numpy(row))[3]) == expected
    assert not sinks_of(np.full(5, np.nan)).any()
    assert not sinks_of(np.array([9.0, np.nan])).any(), "one key has no others to compare with"


def test_epsilon_is_stated_once():
    """No other constant, default or literal of the source says what the paper's ε is; examples may."""
    root = Path(sinkscope.__file__).parent
    stated = re.compile(r"(epsilon|EPSILON)\w*(: float)?( = |=)3(\.0)?\b")
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if stated.search(line) and ">>>" not in line
    ]
    assert found == ["base/sink_rule.py: EPSILON = 3.0"]
    assert EPSILON == 3.0


def test_the_rule_is_light():
    program = "import sys, sinkscope.base.sink_rule; assert not {'torch', 'xarray', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
