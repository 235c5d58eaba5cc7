"""With a refresh in every step a reuse rule is the exact loop, bit for bit, on every golden generation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.decoding.golden_runs import decoding_of, generate, plain
from tests.helpers import golden

import sinkscope as ss

EXACT = ("prefix:1", "prefix:1,fresh=masks", "sparse:0.5,refresh=1", "drift:1")
CASES = golden.cases("generate")


CAN_REUSE = [
    (family, name)
    for family, name in CASES
    if family in ("llada", "dream", "mmada", "llama")
    and not name.startswith("t2i")
    and not decoding_of(family, name).guided
    and not golden.manifest(family)["generate"][name].get("sink_columns_per_layer")
]


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(*case, marks=pytest.mark.soak if case in CAN_REUSE and number % 5 else pytest.mark.slow)
        for number, case in enumerate(CASES)
    ],
)
def test_refresh_at_every_step_is_the_exact_loop(family: str, name: str) -> None:
    exact = plain(family, name)
    number = CASES.index((family, name))
    text = EXACT[number % len(EXACT)]
    run = generate(family, name, reuse=text)
    assert torch.equal(run.states, exact.states)
    assert torch.equal(run.ties, exact.ties)
    assert run.extras["reuse"].rule == ss.parse_reuse(text)
    assert run.extras["reuse"].work is None


@pytest.mark.parametrize("family", ["llada", "mmada", "dream"])
def test_full_forwards_that_leave_something_behind_are_the_exact_ones(family: str) -> None:
    """One step per block: every step is a refresh, and what it measures and keeps may not change a bit."""
    model = golden.model(family)
    prompt = torch.arange(5, 16)[None]
    kind = ss.MmadaDecoding if family == "mmada" else ss.LladaDecoding
    decoding = ss.DreamDecoding(8, steps=1) if family == "dream" else kind(8, steps=2, block=4)
    exact = ss.generate(model, prompt, decoding, capture=ss.Capture())
    for text in ("prefix:block", "prefix:block,fresh=masks", "sparse:3", "drift:0.9", "drift:0.9,refresh=layers"):
        run = ss.generate(model, prompt, decoding, reuse=text, capture=ss.Capture())
        assert torch.equal(run.states, exact.states), text
        assert run.extras["reuse"].work is not None
        assert run.extras["reuse"].work.done == run.extras["reuse"].work.exact, text
        received, before = (one.trace.dataset["received"].values for one in (run, exact))
        np.testing.assert_allclose(received, before, rtol=1e-5, err_msg=text)
        assert bool(run.trace.dataset["fresh"].all()), text


def rules(family: str) -> tuple[str, ...]:
    return ("sparse:0.5,refresh=1",) if family == "llama" else ("prefix:1", "sparse:3,refresh=1", "drift:1")


@pytest.mark.parametrize(
    ("family", "name", "text"),
    [
        # One rule for every second fixture in `make test`, all rules for all fixtures in `make soak`.
        pytest.param(
            family,
            name,
            text,
            marks=pytest.mark.soak if number % 2 or (number // 2 + turn) % len(rules(family)) else pytest.mark.slow,
        )
        for number, (family, name) in enumerate(CAN_REUSE)
        for turn, text in enumerate(rules(family))
    ],
)
def test_full_forwards_in_every_step_are_the_golden_ones(
    family: str, name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refresh 1 takes the plain loop; here the rule itself runs, and each forward is a full one that leaves keys behind."""
    exact, rule = plain(family, name), ss.parse_reuse(text)
    monkeypatch.setattr(type(rule), "exact", False)
    if text == "drift:1":
        monkeypatch.setattr(ss.DriftReuse, "due", lambda self, age, begins: True)
    run = generate(family, name, reuse=rule)
    assert torch.equal(run.states, exact.states)
    assert run.extras["reuse"].work is not None
    assert run.extras["reuse"].work.done == run.extras["reuse"].work.exact
