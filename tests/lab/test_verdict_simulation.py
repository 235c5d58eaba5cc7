"""Every claim's rule is simulated, and keeps wrong verdicts at or under 5 %; the command prints it."""

from __future__ import annotations

import pytest

from lab import verdict_simulation as simulation
from sinkscope.report.study.claims import CLAIMS
from sinkscope.report.study.rules import CONTRADICTED, SUPPORTED


def test_every_claim_is_simulated_under_a_null_and_with_an_effect():
    assert set(simulation.SIMULATIONS) == {claim.name for claim in CLAIMS}
    for name, found in simulation.SIMULATIONS.items():
        assert any(null.wrong == simulation.BOTH for null in found.nulls), name
        assert {effect.verdict for effect in found.effects} == {SUPPORTED, CONTRADICTED}, name


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_wrong_verdicts_stay_rare(claim):
    """150 studies of 16 and 64: a rate of 5 % gives more than 16 wrong ones in fewer than 1 of 1,000 draws."""
    for null in simulation.SIMULATIONS[claim.name].nulls:
        for n in (16, 64):
            assert simulation.wrong_share(claim, null, n, 150) <= 16 / 150, (null.name, n)


@pytest.mark.parametrize(
    ("name", "n", "size", "verdict"),
    [
        ("collapse", 64, 0.1, SUPPORTED),
        ("robust-1", 64, 0.4, CONTRADICTED),
        ("rival", 200, 0.4, SUPPORTED),
        ("moving", 64, 0.8, SUPPORTED),
        ("newline", 64, 2.0, SUPPORTED),
        ("right", 200, 0.3, SUPPORTED),
    ],
)
def test_planted_effects_are_seen(name, n, size, verdict):
    claim = next(claim for claim in CLAIMS if claim.name == name)
    effect = next(one for one in simulation.SIMULATIONS[name].effects if one.verdict == verdict)
    found = simulation.verdicts(claim, effect.study(size), n, 60, "planted")
    assert found.count(verdict) >= 48


def test_the_command_prints_its_tables(capsys):
    simulation.main(["--runs", "20", "--claims", "collapse"])
    printed = capsys.readouterr().out
    assert "| collapse | nothing is lost | supported | 0.0" in printed
    assert "Beside each rule, n = 16 / 64 / 200 / 500" in printed
