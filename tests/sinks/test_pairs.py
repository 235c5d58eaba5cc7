"""What two traces say together: fillers inserted, sinks hidden; and split sinks inside one."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sinks import synthetic

from sinkscope.base.errors import InputError
from sinkscope.sinks import compare_traces, counterfactual, detect, insertion_alignment, mechanisms, summary
from sinkscope.sinks.split import split_counts

FILLERS = 6


def at_index(place: int):
    def plant(state, rng):
        extra = state.empty()
        extra[..., state.key_at(place)] = 30.0
        return extra

    return plant


@pytest.mark.parametrize(("new_place", "verdict"), [(10 + FILLERS, "token"), (10, "index"), (3, "")])
def test_fillers_tell_token_from_index(new_place, verdict):
    """The sink is at position 10; six fillers go in before position 4; where is it now?"""
    lengths = (20, 24, 31)
    original = synthetic.trace(at_index(10), lengths=lengths)
    filled = synthetic.trace(at_index(new_place), lengths=tuple(n + FILLERS for n in lengths))
    alignment = [insertion_alignment(n + 32, 4, FILLERS) for n in lengths]
    table = counterfactual(original, filled, alignment)
    leads = {name: lead.value for name, lead in table.attrs["leads"].items()}
    assert leads == {name: {name: 1.0, "": 0.0}.get(verdict, -2.0) for name in ("token", "index")}
    share = table.set_index("follows")["share"]
    assert share["token"] == (verdict == "token")
    assert share["index"] == (verdict == "index")
    assert share["neither"] == (verdict == "")
    assert (table["chance"] < 0.05).all()


def test_sinks_before_the_fillers_do_not_count():
    lengths = (20, 24)
    traces = [synthetic.trace("static", lengths=tuple(n + k for n in lengths)) for k in (0, FILLERS)]
    table = counterfactual(*traces, insertion_alignment(60, 4, FILLERS))
    assert np.isnan(table.attrs["leads"]["token"].value)
    assert table["sinks"].sum() == 0
    with pytest.raises(InputError, match="same samples"):
        counterfactual(traces[0], traces[1].isel(sample=[0]), insertion_alignment(60, 4, FILLERS))
    assert insertion_alignment(5, 2, 3).tolist() == [0, 1, 5, 6, 7]
    with pytest.raises(InputError, match="cannot insert"):
        insertion_alignment(10, 11, 2)


def counted(data):
    """Head-steps over all samples: split, both, and those of random classes."""
    counts = [split_counts(data, sample) for sample in range(data.sizes["sample"])]
    return {name: float(np.sum([each[name] for each in counts])) for name in counts[0]}


@pytest.mark.slow
def test_split_sinks_need_two_keys():
    apart, together = (counted(synthetic.split_trace(same=same)) for same in (False, True))
    heads_and_steps = synthetic.split_trace()["received"].isel(key=0).size
    first = heads_and_steps / synthetic.split_trace().sizes["step"]
    assert apart["split"] == apart["both"] == heads_and_steps - first, "no query is decided in the first step"
    assert together["split"] == 0


def test_two_shared_sinks_in_another_order_are_not_split():
    data = synthetic.split_trace(sigma=0.1)
    by = data["received_by"].values.copy()
    for n in range(data.sizes["sample"]):
        keys = [int(np.flatnonzero(data["position"].values[n] == p)[0]) for p in (0, 3)]
        by[n][:, :, :, 0, keys], by[n][:, :, :, 1, keys] = (12.0, 9.0), (9.0, 12.0)
    shared = data.assign(received_by=(data["received_by"].dims, by))
    found = counted(shared)
    assert found["both"] > found["split"] == 0


def test_nothing_changes_between_a_trace_and_itself():
    data = synthetic.trace("moving", maps=True, lengths=(9, 12), answer=8, block=4)
    found = compare_traces(data, data)
    for name in ("flow", "flow_same_input", "confidence_change"):
        assert float(np.abs(found[name]).max()) == 0
    assert float(found["delay"].max()) == 0
    assert found["same_input"].all()


def hidden(data, new_place: int):
    """The sink of position 0 is hidden: its attention goes to `new_place`."""
    received = data["received"].values.copy()
    for n in range(len(received)):
        old, new = (int(np.flatnonzero(data["position"].values[n] == p)[0]) for p in (0, new_place))
        received[n, ..., new] += received[n, ..., old]
        received[n, ..., old] = 0.0
    return data.assign(received=(data["received"].dims, received)).assign_attrs(policy="top:1")


def test_removed_attention_is_found_where_it_went():
    data = synthetic.trace("static", lengths=(9, 12, 15), answer=8, block=4)
    found = compare_traces(data, hidden(data, 4))
    flow = found["flow"]
    np.testing.assert_allclose(flow.sum("destination"), 0, atol=1e-6)
    lost = float(flow.sel(destination="old sinks").mean())
    first = detect(data).values
    n = np.isfinite(data["received"].values).sum(-1)
    assert lost == pytest.approx(-float((np.where(first, data["received"], 0).sum(-1) / n).mean()), rel=1e-5)
    assert float(flow.sel(destination="new sinks").mean()) == pytest.approx(-lost, rel=0.01)
    table = mechanisms(found).set_index("measure")
    assert table.loc["attention to old sinks", "value"] == pytest.approx(lost)
    assert table.loc["attention to old sinks", "high"] < 0
    assert "needs maps" in table.loc["dependence and delay", "note"]
    assert found.attrs["policy_b"] == "top:1"


def test_tokens_that_depended_on_the_sink_are_late():
    """Odd answer tokens look at the sink; under the policy they are decided last, with less confidence."""
    base = synthetic.trace("static", lengths=(9, 12, 15), answer=16, block=16, order="left", maps=True)
    attention = base["attention"].values.copy()
    masked_confidence = base["confidence"].values.copy()
    decided, tokens, masked = (base[name].values.copy() for name in ("decided", "tokens", "masked"))
    answer = base.sizes["key"] - 16 + np.arange(16)
    odd = answer[1::2]
    for n in range(3):
        first = int(np.flatnonzero(base["position"].values[n] == 0)[0])
        attention[n, ..., odd, :] *= 0.1
        attention[n, ..., odd, first] = 0.9
        order = np.concatenate([answer[::2], odd])
        for t in range(16):
            decided[n, t] = False
            decided[n, t, order[t]] = True
            masked[n, t, answer] = True
            masked[n, t, order[:t]] = False
            tokens[n, t, answer] = np.where(masked[n, t, answer], synthetic.MASK, 20)
            masked_confidence[n, t] = np.where(masked[n, t], 0.8, np.nan)
            masked_confidence[n, t, odd] -= 0.3
    base = base.assign(
        attention=(base["attention"].dims, attention),
        confidence=(base["confidence"].dims, np.where(base["masked"], 0.8, np.nan)),
    )
    late = base.assign(
        decided=(base["decided"].dims, decided),
        tokens=(base["tokens"].dims, tokens),
        masked=(base["masked"].dims, masked),
        confidence=(base["confidence"].dims, masked_confidence),
    ).assign_attrs(policy="top:1")
    found = compare_traces(base, late)
    assert float(found["delay"].isel(sample=0, key=int(answer[1]))) == 7
    assert float(found["delay"].isel(sample=0, key=int(answer[2]))) == -1
    assert not bool(found["same_input"].isel(sample=0, step=5))
    table = mechanisms(found).set_index("measure")["value"]
    assert table["delay of dependent tokens"] == pytest.approx(3.5)
    assert table["delay of other tokens"] == pytest.approx(-3.5)
    assert table["confidence change of dependent tokens"] == pytest.approx(-0.3)
    assert table["confidence change of other tokens"] == pytest.approx(0.0, abs=1e-6)
    assert table["dependence and delay"] > 0.7


def test_traces_of_other_prompts_are_refused():
    data = synthetic.trace("static", lengths=(9, 12), answer=8)
    with pytest.raises(InputError, match="different prompts or lengths"):
        compare_traces(data, synthetic.trace("static", lengths=(12, 9), answer=8))
    with pytest.raises(InputError, match="of sample"):
        compare_traces(data, data.isel(sample=[0]))


def by_classes(data, real, control):
    """A trace with received attention by class of query: masked, decided, prompt, and two random classes."""
    by = np.stack([*real, np.full_like(real[0], np.nan), *control], axis=4)
    kinds = ["masked", "decided", "prompt", "control a", "control b"]
    dims = ("sample", "step", "layer", "head", "query_kind", "key")
    return data.assign(received_by=(dims, by)).assign_coords(query_kind=kinds)


@pytest.mark.slow
def test_split_sinks_have_a_level_of_chance():
    """Classes without any structure split as often as random ones; real ones split more often."""
    data = synthetic.trace("none", sigma=0.2, lengths=(17, 23, 30, 19, 26, 21))
    rng = np.random.default_rng(0)

    def noisy():
        """One or two strong keys at random, another draw for each class: what few queries look like."""
        values = data["received"].values.copy()
        for at in np.ndindex(*values.shape[:-1]):
            keys = np.flatnonzero(np.isfinite(values[at]))
            values[(*at, rng.choice(keys[:3]))] = 30.0
        return values

    def at(place):
        values = data["received"].values.copy()
        for n in range(len(values)):
            values[n, ..., int(np.flatnonzero(data["position"].values[n] == place)[0])] = 30.0
        return values

    chance = by_classes(data, (noisy(), noisy()), (noisy(), noisy()))
    counts = counted(chance)
    share = counts["split"] / counts["both"]
    assert share > 0.5, "classes of few queries split by chance alone"
    assert share == pytest.approx(counts["control_split"] / counts["control_both"], abs=0.1)
    found = summary(chance).set_index("measure").loc["split beyond random classes"]
    assert found["low"] < 0 < found["high"]
    real = summary(by_classes(data, (at(0), at(3)), (noisy(), noisy()))).set_index("measure")
    assert real.loc["split by query in the deepest layers", "value"] == 1.0
    assert real.loc["split beyond random classes", "low"] > 0.1
    without = summary(synthetic.split_trace()).set_index("measure").loc["split beyond random classes"]
    assert np.isnan(without["value"])
    assert "random classes" in without["note"]
