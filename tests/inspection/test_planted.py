"""Every measure tells a sink that carries information from one that is only a drain; both networks are built by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.inspection import planted

import sinkscope as ss
from sinkscope.inspection.lens import lens
from sinkscope.inspection.maps import DESTINATIONS, destinations, over_depth, over_time, union
from sinkscope.inspection.observation import MASK, PROMPT, Observation, matched, observe
from sinkscope.inspection.patch import patch
from sinkscope.inspection.probes import probe, shuffled
from sinkscope.inspection.survey import void
from sinkscope.inspection.tuned_lens import tuned_lens
from sinkscope.inspection.vectors import channels, movement, scores


class Case:
    """A planted network with a run and observations of its steps."""

    def __init__(self, model: ss.Model) -> None:
        self.model, self.run = model, planted.run_of(model)

    def step(self, number: int) -> Observation:
        (seen,) = observe(self.model, self.run, number)
        return seen


@pytest.fixture(scope="module")
def carrier() -> Case:
    return Case(planted.carrier())


@pytest.fixture(scope="module")
def drain() -> Case:
    return Case(planted.drain())


def both(carrier: Case, drain: Case) -> tuple[Observation, Observation]:
    return carrier.step(2), drain.step(2)


def test_both_answer_with_the_message_and_have_their_sink_at_the_start(carrier: Case, drain: Case) -> None:
    message = planted.FIRST + torch.arange(8) % planted.MESSAGES
    for case in (carrier, drain):
        answer = case.run.sequences[:, planted.PROMPT :]
        assert (answer == message[:, None]).all()
        sinks = case.step(2).layer_sinks
        assert sinks[1, :, 0].all()
        assert not sinks[1, :, 1:].any()
        assert not sinks[0].any()


def test_the_lens_reads_the_answer_at_the_carrier_alone(carrier: Case, drain: Case) -> None:
    full, empty = (lens(case.model, case.run, positions=[0], steps=[2]) for case in (carrier, drain))
    assert full.layers == (0, 1, 2)
    assert (full.elsewhere[full.chosen][:, 1:] == 1).all()
    assert (full.probability[full.chosen][:, 1] > 0.9).all()
    assert (empty.probability[empty.chosen][:, 1] < 0.2).all()
    assert (empty.elsewhere[empty.chosen][:, 2] == 0).all()
    assert (full.settled[full.chosen] == 1).all()


def test_the_lens_takes_every_sink_and_as_many_others(carrier: Case) -> None:
    found = lens(carrier.model, carrier.run, steps=[2])
    assert found.chosen.sum() == 8
    assert (~found.chosen).sum() == 8
    assert set(found.column[found.chosen]) == {0}
    assert set(found.table.columns) >= {"row", "layer", "token", "own", "elsewhere"}


def test_a_tuned_lens_is_cached_and_reads_the_carrier_alone(carrier: Case, drain: Case, tmp_path: Path) -> None:
    fitted = tuned_lens(carrier.model, carrier.run, tmp_path)
    again = tuned_lens(carrier.model, carrier.run, tmp_path)
    assert torch.equal(fitted.maps, again.maps)
    assert fitted.tokens == again.tokens == 4 * 8 * 32
    assert len(list((tmp_path / "lenses").iterdir())) == 1
    full = lens(carrier.model, carrier.run, positions=[0], steps=[2], tuned=fitted)
    empty = lens(drain.model, drain.run, positions=[0], steps=[2], tuned=tuned_lens(drain.model, drain.run, tmp_path))
    assert full.tuned
    assert (full.elsewhere[full.chosen][:, 1] == 1).all()
    assert (full.probability[full.chosen][:, 1] > 2 * empty.probability[empty.chosen][:, 1]).all()


def test_only_the_carriers_value_belongs_to_its_run(carrier: Case, drain: Case) -> None:
    full, empty = (patch(case.model, case.run, "mean", what="value") for case in (carrier, drain))
    assert full.effect("kl").above(1.0)
    assert (full.sinks["flipped"] == 1).all()
    assert (full.sinks["answer_lost"] == 1).all()
    assert (full.sinks["confidence_change"] < 0).all()
    assert np.abs(empty.sinks["kl"]).max() < 1e-6


def test_another_run_gives_its_message(carrier: Case) -> None:
    other = ss.generate(carrier.model, planted.prompts(8).roll(1, 0), carrier.run.decoding, seed=list(range(8)))
    done = patch(carrier.model, carrier.run, other, what="value", step=2)
    assert (done.sinks["flipped"] == 1).all()
    assert (done.control["flipped"] == 0).all()
    assert patch(carrier.model, carrier.run, carrier.run, what="both", step=2).sinks["kl"].max() < 1e-6


def test_without_a_value_only_the_carrier_misses_something_and_the_drain_needs_its_key(
    carrier: Case, drain: Case
) -> None:
    full, empty = (patch(case.model, case.run, "nothing", what="value") for case in (carrier, drain))
    assert full.effect("kl").above(0.5)
    assert np.abs(empty.sinks["kl"]).max() < 1e-3
    key = patch(drain.model, drain.run, "ordinary", what="key")
    assert key.effect("flipped").above(0.5) or (key.sinks["flipped"] == 1).all()


def test_patches_in_no_layer_and_of_nothing_but_values_are_refused_or_void(carrier: Case) -> None:
    assert np.isnan(patch(carrier.model, carrier.run, "mean", layers=(0,), step=2).sinks["kl"]).all()
    with pytest.raises(ss.InputError, match="only a value can be nothing"):
        patch(carrier.model, carrier.run, "nothing", what="key")
    with pytest.raises(ss.InputError, match="step 99 is not in this run"):
        patch(carrier.model, carrier.run, "nothing", step=99)


def test_a_probe_reads_the_message_off_the_carrier_alone() -> None:
    skills = {}
    for make in (planted.carrier, planted.drain):
        model = make()
        (seen,) = observe(model, planted.run_of(model, 40), 2)
        features = seen.calls[1].value[:, 0, 0].numpy() + np.random.default_rng(0).normal(0, 1e-4, (40, 16))
        labels, prompts = np.array([f"m{row % 4}" for row in range(40)]), np.arange(40)
        found = probe(features, labels, prompts)
        assert found is not None
        skills[model.source] = found.skill
        wrong = probe(features, shuffled(labels), prompts)
        assert wrong is not None
        assert not wrong.skill.above(0.0)
    assert skills["planted/carrier"].above(0.9)
    assert not skills["planted/drain"].above(0.0)


def test_a_probe_needs_prompts_and_two_labels() -> None:
    features = np.random.default_rng(0).normal(size=(30, 3))
    assert probe(features, np.ones(30), np.arange(30)) is None
    assert probe(features, features[:, 0], np.arange(30) % 10) is None
    exact = probe(features, features @ [1.0, 2.0, 0.0], np.arange(30))
    assert exact is not None
    assert exact.skill.value > 0.95


def test_only_the_carriers_value_moves(carrier: Case, drain: Case) -> None:
    full, empty = (movement(case.step(2), case.step(3)) for case in (carrier, drain))
    assert (full["value at sinks"][1] > 0.005).all()
    assert (empty["value at sinks"][1].abs() < 1e-9).all()
    assert full["value at sinks"][0].isnan().all()  # no sinks there
    still = movement(carrier.step(2), carrier.step(2))
    assert still["key elsewhere"].abs().max() < 1e-9


def test_queries_of_the_drain_want_the_same_keys(carrier: Case, drain: Case) -> None:
    full, empty = (union(seen, 4) for seen in both(carrier, drain))
    assert (empty["with sinks"] == 1).all()
    assert (full["with sinks"][0] > 2).all()
    assert (full["by chance"] > full["with sinks"]).all()


def test_foresight_is_better_for_the_drain(carrier: Case, drain: Case) -> None:
    full, empty = (over_time(case.step(0), case.step(2), 4) for case in (carrier, drain))
    assert (empty["recall"][0] > full["recall"][0] + 0.3).all()
    assert (over_time(carrier.step(2), carrier.step(2), 4)["recall"] == 1).all()


def test_foresight_over_depth_counts_the_sinks_behind() -> None:
    sinks = torch.zeros(3, 1, 10, dtype=torch.bool)
    sinks[0, 0, [0, 4]] = sinks[1, 0, [0, 7]] = sinks[2, 0, [0]] = True
    seen = SimpleNamespace(layer_sinks=sinks, kind=torch.zeros(1, 10, dtype=torch.long))
    found = over_depth(seen)  # type: ignore[arg-type]
    assert found["recall"][:, 0].tolist() == [pytest.approx(2 / 3), 1.0]
    assert found["by chance"][:, 0].tolist() == [0.2, 0.2]


def test_where_attention_goes(carrier: Case, drain: Case) -> None:
    full, empty = (destinations(seen) for seen in both(carrier, drain))
    assert (full["itself"][0, :, 1] > 0.9).all()
    assert (empty["itself"][0, :, 1] < 0.1).all()
    assert (empty["sinks"][1, :, 0] > 0.99).all()
    for shares in (full, empty):
        total = sum(shares[name] for name in DESTINATIONS)
        assert torch.allclose(torch.as_tensor(total), torch.ones(2, 8, 2, dtype=torch.float64), atol=1e-5)
    for shares, layer, head, most in ((full, 0, 1, "itself"), (empty, 1, 0, "prompt")):
        beyond = {name: (shares[name] - shares[f"even: {name}"]).nanmean(1) for name in DESTINATIONS}
        assert max(DESTINATIONS, key=lambda name: float(beyond[name][layer, head])) == most


def test_the_carriers_key_lies_at_an_angle_and_the_drains_is_long(carrier: Case, drain: Case) -> None:
    full, empty = (scores(seen) for seen in both(carrier, drain))
    assert (full["gap by angle"][1] / full["gap"][1] > 0.9).all()
    assert (empty["gap by angle"][1] / empty["gap"][1] < 0.1).all()
    assert (empty["key length at sinks"][1] > 5 * empty["key length elsewhere"][1]).all()
    assert (full["gap"][1] > 0).all()


def test_the_drain_has_a_channel_of_its_own(carrier: Case, drain: Case) -> None:
    full, empty = (channels(seen) for seen in both(carrier, drain))
    assert (empty["at sinks"][1] > 2 * empty["elsewhere"][1]).all()
    assert (full["at sinks"][1] < 2 * full["elsewhere"][1]).all()
    assert (empty["channel"][1] == 12).all()
    assert (empty["same channel"][1] == 1).all()


def test_flags(carrier: Case) -> None:
    seen = carrier.step(2)
    assert void(seen) == {}
    quiet = SimpleNamespace(
        model=SimpleNamespace(spec=SimpleNamespace(causal=True)), calls=[], kind=seen.kind, layer_sinks=torch.zeros(1),
    )  # fmt: skip
    calls = [
        SimpleNamespace(value=torch.nn.functional.normalize(call.value + 1, dim=-1), sink=torch.ones(2))
        for call in seen.calls
    ]
    quiet.calls = calls
    assert set(void(quiet)) == {"movement", "masks", "foresight over time", "value norms", "drain", "sinks"}  # type: ignore[arg-type]


def test_controls_are_of_the_same_kind_and_never_sinks() -> None:
    sinks = torch.zeros(1, 2, 8, dtype=torch.bool)
    sinks[:, :, [0, 5]] = True
    kind = torch.tensor([PROMPT] * 4 + [MASK] * 4).expand(1, 2, 8)
    drawn = matched(sinks, kind, [0, 1])
    assert not (drawn & sinks).any()
    assert (drawn[..., :4].sum(-1) == 1).all()
    assert (drawn[..., 4:].sum(-1) == 1).all()
    assert torch.equal(matched(sinks[:, 1:], kind[:, 1:], [1]), drawn[:, 1:])
