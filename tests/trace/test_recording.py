"""Recording changes nothing: not a token, not a bit of a logit, and the model is left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.helpers import golden
from tests.helpers.forked import forked

import sinkscope as ss
from sinkscope.attention.context import ForwardContext
from sinkscope.gpu.outbox import Outbox
from sinkscope.trace.recorder import Parcel
from sinkscope.trace.step_recorder import StepRecorder

CAPTURES = {
    "heads": ss.Capture(),
    "layers": ss.Capture(level="layers"),
    "maps": ss.Capture(level="maps"),
    "anatomy": ss.Capture(anatomy=True),
    "every third": ss.Capture(every=3, anatomy=True),
    "subsets": ss.Capture(layers=(0, 2), heads=(1, 3), anatomy=True),
    "by query": ss.Capture(by_query=True),
    "layers by query": ss.Capture(level="layers", by_query=True, anatomy=True, every=2),
}
DECODINGS: dict[str, list[Any]] = {
    "llada": [
        ss.LladaDecoding(length=8, steps=8, block=4),
        ss.LladaDecoding(length=8, steps=4, block=8, temperature=0.9, remasking="random"),
        ss.LladaDecoding(length=8, steps=4, block=4, cfg=1.0),
    ],
    "dream": [
        ss.DreamDecoding(length=8, steps=8),
        ss.DreamDecoding(length=8, steps=6, algorithm="origin", temperature=0.5, top_p=0.9),
        ss.DreamDecoding(length=8, steps=6, temperature=0.1, top_p=0.01),
    ],
    "mmada": [ss.MmadaDecoding(length=8, steps=4, block=4, temperature=0.7)],
    "llama": [ss.GreedyDecoding(length=8), ss.SamplingDecoding(length=8, temperature=1.2, top_p=0.95)],
}
CASES = [
    pytest.param(family, number, capture, id=f"{family} {number}: {what}")
    for family, many in DECODINGS.items()
    for number in range(len(many))
    for what, capture in CAPTURES.items()
    if number == 0 or what in ("maps", "every third", "layers by query")
]


def prompt() -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows, the second padded on the left."""
    ids = torch.randint(0, 470, (2, 9), generator=torch.Generator().manual_seed(7))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    return ids, mask


@cache
def without(family: str, number: int, per_row: bool) -> ss.Run:
    """The run of a decoding without recording, once per process."""
    ids, mask = prompt()
    seed = [8, 9] if per_row else 5
    return ss.generate(golden.model(family), ids, DECODINGS[family][number], seed=seed, attention_mask=mask)


def run_and_logits(model: Any, *args: Any, **options: Any) -> tuple[ss.Run, list[torch.Tensor]]:
    """A run, and what the head computed in it for the positions that the loop looked at first in each step."""
    heads: list[torch.Tensor] = []
    hook = model.network.lm_head.register_forward_hook(lambda _, __, out: heads.append(out.clone()))
    try:
        return ss.generate(model, *args, **options), heads
    finally:
        hook.remove()


@pytest.mark.parametrize("family", list(DECODINGS))
def test_the_runs_below_are_not_trivial(family: str) -> None:
    for number, per_row in product(range(len(DECODINGS[family])), (False, True)):
        run = without(family, number, per_row)
        assert len(set(run.sequences[0, 9:].tolist())) > 2


@pytest.mark.slow
@pytest.mark.parametrize(("family", "number", "capture"), CASES)
def test_states_with_capture_are_states_without(family: str, number: int, capture: ss.Capture) -> None:
    model, decoding, (ids, mask) = golden.model(family), DECODINGS[family][number], prompt()
    per_row = (number + len(str(capture))) % 2 == 0  # both kinds of streams meet all captures over the decodings
    seed = [8, 9] if per_row else 5
    plain = without(family, number, per_row)
    run = ss.generate(model, ids, decoding, seed=seed, attention_mask=mask, capture=capture)
    assert torch.equal(run.states, plain.states)
    assert torch.equal(run.ties, plain.ties)
    assert run.forwards == plain.forwards
    assert run.trace is not None
    assert plain.trace is None


@pytest.mark.parametrize("family", list(DECODINGS))
def test_logits_are_bit_equal(family: str) -> None:
    """Positions past the current block are looked at besides, but in a call of their own."""
    model, (ids, mask) = golden.model(family), prompt()
    for decoding in DECODINGS[family]:
        options = {"seed": 5, "attention_mask": mask}
        _, plain = run_and_logits(model, ids, decoding, **options)
        _, seen = run_and_logits(model, ids, decoding, **options, capture=ss.Capture(anatomy=True))
        position = 0
        for logits in plain:  # in order, with others in between
            while not (seen[position].shape == logits.shape and torch.equal(seen[position], logits)):
                position += 1
            position += 1
        assert position <= len(seen)


@pytest.mark.slow
@pytest.mark.parametrize("family", list(DECODINGS))
def test_recording_to_disk_changes_nothing(family: str, tmp_path: Path) -> None:
    model, (ids, mask) = golden.model(family), prompt()
    decoding = DECODINGS[family][-1]
    plain = ss.generate(model, ids, decoding, seed=5, attention_mask=mask)
    run = ss.generate(model, ids, decoding, seed=5, attention_mask=mask, out=tmp_path / "t.zarr.zip")
    assert torch.equal(run.states, plain.states)


@pytest.mark.slow
def test_recording_under_a_policy_changes_nothing() -> None:
    for family in DECODINGS:
        model, (ids, mask) = golden.model(family), prompt()
        for policy in (ss.MaskKeys({0: [3], 2: [5, 6]}), ss.MaskRandom(like=ss.MaskTop(1))):
            options = {"seed": 5, "attention_mask": mask, "policy": policy}
            plain = ss.generate(model, ids, DECODINGS[family][0], **options)
            run = ss.generate(model, ids, DECODINGS[family][0], **options, capture=ss.Capture())
            assert torch.equal(run.states, plain.states)


class Stop(BaseException):
    """Stands for Ctrl-C: no error, so that nothing may swallow it."""


@pytest.mark.slow
@pytest.mark.parametrize("family", list(DECODINGS))
@pytest.mark.parametrize(
    ("kind", "where"),
    [(KeyboardInterrupt, "between steps"), (RuntimeError, "inside a forward"), (Stop, "inside a forward")],
)
def test_an_interruption_leaves_the_model_as_it_was(family: str, kind: type[BaseException], where: str) -> None:
    model, (ids, mask) = golden.model(family), prompt()
    decoding = DECODINGS[family][0]
    options = {"seed": 5, "attention_mask": mask}
    before, logits = run_and_logits(model, ids, decoding, **options)
    hooks = {module: len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.network.modules()}
    calls = 0

    def interrupt(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise kind

    more: dict[str, Any] = {"progress": interrupt} if where == "between steps" else {}
    handle = None
    if where == "inside a forward":
        handle = model.network.model.layers[1].register_forward_hook(interrupt)
    try:
        with pytest.raises(kind):
            ss.generate(
                model, ids, decoding, policy=ss.MaskTop(2), capture=ss.Capture(anatomy=True), **options, **more,
            )  # fmt: skip
    finally:
        if handle is not None:
            handle.remove()
    after = {module: len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.network.modules()}
    assert hooks == after
    assert not model.network.training
    again, logits_again = run_and_logits(model, ids, decoding, **options)
    assert torch.equal(again.states, before.states)
    assert all(torch.equal(a, b) for a, b in zip(logits, logits_again, strict=True))


def test_an_interrupted_recording_in_memory_leaves_nothing_in_the_way() -> None:
    model, (ids, mask) = golden.model("llada"), prompt()

    def interrupt(done: int, expected: int, states: torch.Tensor) -> None:
        assert expected == 8
        assert states.shape == (2, 17)
        if done == 2:
            raise KeyboardInterrupt

    decoding = DECODINGS["llada"][0]
    with pytest.raises(KeyboardInterrupt):
        ss.generate(model, ids, decoding, capture=ss.Capture(), attention_mask=mask, progress=interrupt)
    run = ss.generate(model, ids, decoding, capture=ss.Capture(), attention_mask=mask)
    assert len(run.trace) == 8


def test_arrays_copied_by_several_threads_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = (golden.model("llama"), torch.randint(0, 400, (3, 6), generator=torch.Generator().manual_seed(1)))
    plain = ss.generate(model, prompts, ss.GreedyDecoding(length=5, eos=None), capture=ss.Capture())
    monkeypatch.setattr("sinkscope.trace.recorder.PIECE", 64)
    threaded = ss.generate(model, prompts, ss.GreedyDecoding(length=5, eos=None), capture=ss.Capture())
    assert plain.trace is not None
    assert threaded.trace is not None
    assert plain.trace.dataset.equals(threaded.trace.dataset)


def test_a_forked_process_copies_with_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinkscope.trace.recorder.PIECE", 64)

    def record() -> None:
        model, prompt = golden.model("llama"), torch.arange(3, 9)[None]
        ss.generate(model, prompt, ss.GreedyDecoding(length=3, eos=None), capture=ss.Capture())

    record()
    process = forked(record)
    process.join(60)
    process.kill()  # if it still waits for threads that were left behind
    process.join()
    assert process.exitcode == 0


def test_pinned_memory_is_kept_only_where_its_shape_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a captured step sends always has one shape; arrays of a growing cache have a new one in every step."""
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda *_: True)
    outbox = Outbox(lambda *_: None)
    for keys in range(4, 8):
        field, array = torch.zeros(2, 9), torch.zeros(2, keys)
        outbox._give_back([Parcel([0, 1], 0, {"tokens": field}, {"received": array})])
    assert {shape: len(spare) for (shape, _), spare in outbox._spare.items()} == {torch.Size([2, 9]): 4}
    outbox._give_back([Parcel([0], 0, {}, {"received": torch.zeros(2, 30)}, repeated=True)])
    assert (torch.Size([2, 30]), torch.float32) in outbox._spare
    outbox.close()
    assert not outbox._spare


def test_gates_are_measured_where_their_call_is() -> None:
    """On a GPU that is a second stream: what the main one read of it could be half done."""
    inside, ended = [], []

    @contextmanager
    def beside(inputs: object) -> Iterator[None]:
        inside.append(inputs)
        yield
        ended.append(sorted(recorder._gates))

    recorder = object.__new__(StepRecorder)
    recorder.frame, recorder.rows, recorder._gates = SimpleNamespace(causal=True), [0], {}
    output = torch.full((1, 2, 3, 4), 2.0)
    recorder._ungated = SimpleNamespace(layer=5, output=output, context=ForwardContext(beside=beside))
    taken = output.transpose(1, 2).reshape(1, 3, 8) * 0.25
    recorder.gated(5, taken)
    assert len(inside) == 1
    assert ended == [[5]], "it was computed there"
    assert torch.equal(recorder._gates[5], torch.full((1, 2), 0.25))
