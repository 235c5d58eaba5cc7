"""Text as a task: nats per token are those of a dense re-implementation, of transformers, and of an enumeration of masks."""

from __future__ import annotations

import gzip
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import golden
from tests.helpers.smollm2 import fetched_smollm2
from tests.policies.dense import Dense

import sinkscope as ss
from sinkscope.base.errors import InputError
from sinkscope.base.masked import Masked
from sinkscope.decoding import decoding_from_json
from sinkscope.decoding.reading import CausalReading, DenoisingReading, MaskedReading
from sinkscope.tasks import likelihood, registry
from sinkscope.tasks.answer import Item
from sinkscope.tasks.prompting import start_token
from sinkscope.tasks.reading import text_ids
from sinkscope.tasks.task import Document
from sinkscope.tasks.text import read_texts, shipped

IDS = torch.tensor([[3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46], [26, 43, 38, 32, 79, 50, 28, 84, 19, 71, 69]])
GIVEN = 5
POLICIES = (
    "none", "top:1", "top:2@layer", "top:2@model", "top:1,effect=silence", "above:1.2", "first:1", "window:4,first=1",
    "keep:0.7", "top:1,when=same", "top:1,scores=masked", "top:2,layers=1",
)  # fmt: skip


def dense_nats(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return -logits.double().log_softmax(-1).gather(-1, target[..., None])[..., 0]


@pytest.mark.parametrize("text", POLICIES)
def test_causal_nats_under_a_policy_are_those_of_a_dense_network(text: str) -> None:
    model, policy = golden.model("llama"), ss.parse_policy(text)
    nats = likelihood.causal(model, IDS, GIVEN, policy, [0, 1])
    dense = Dense(model, policy, GIVEN, torch.ones_like(IDS, dtype=torch.bool))
    parts = []
    for column in range(GIVEN, IDS.shape[1]):
        fed = IDS[:, :column] if column == GIVEN else IDS[:, column - 1 : column]
        parts.append(dense_nats(dense.forward(fed, None).logits[:, -1], IDS[:, column]))
    torch.testing.assert_close(nats.values, torch.stack(parts, 1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("text", POLICIES)
@pytest.mark.parametrize("family", ["llada", "dream", "mmada"])
def test_masked_nats_under_a_policy_are_those_of_a_dense_network(family: str, text: str) -> None:
    """A policy that looks at the step before sees the same masked text first, with nothing hidden."""
    model, policy = golden.model(family), ss.parse_policy(text)
    where = torch.zeros_like(IDS, dtype=torch.bool)
    where[0, [2, 5, 9]] = where[1, [1, 10]] = True
    nats = likelihood.masked(model, IDS, where, 1, policy, [0, 1])
    dense = Dense(model, policy, 1, torch.ones_like(IDS, dtype=torch.bool))
    x = torch.where(where, model.ids.mask, IDS)
    waits = policy is not None and any(rule.waits for rule in policy.parts())
    logits = [dense.forward(x, None).logits for _ in range(2 if waits else 1)][-1]
    row, column = where.nonzero(as_tuple=True)
    wanted = dense_nats(logits[row, column - int(family == "dream")], IDS[where])
    torch.testing.assert_close(nats.values, wanted, atol=1e-4, rtol=0)
    assert nats.forwards == (2 if waits else 1)


@pytest.mark.parametrize("steps", [6, 4, 1])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_denoised_nats_are_those_of_a_dense_network_in_the_models_own_order(family: str, steps: int) -> None:
    model, policy = golden.model(family), ss.parse_policy("top:1")
    nats = likelihood.denoised(model, IDS[:1], GIVEN, steps, policy, [0])
    dense = Dense(model, policy, GIVEN, torch.ones_like(IDS[:1], dtype=torch.bool))
    left, ids, wanted = list(range(GIVEN, IDS.shape[1])), IDS[0], {}
    counts = [len(left) // steps + (step < len(left) % steps) for step in range(steps)]
    for count in counts:
        x = ids.clone()
        x[left] = model.ids.mask
        spread = dense.forward(x[None], None).logits[0].log_softmax(-1)
        at = {column: spread[column - int(family == "dream")] for column in left}

        def sure(column: int, at: dict[int, torch.Tensor] = at) -> float:
            one = at[column]
            return float((one.exp() * one).sum() if family == "dream" else one.max())

        for column in sorted(left, key=sure, reverse=True)[:count]:
            wanted[column] = -float(at[column][ids[column]])
            left.remove(column)
    found = nats.values[0].tolist()
    assert found == pytest.approx([wanted[column] for column in sorted(wanted)], abs=1e-4)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        # Every family under one of the policies in `make test`, under both in `make soak`.
        pytest.param(family, text, marks=pytest.mark.soak if (number + turn) % 2 else pytest.mark.slow)
        for number, family in enumerate(("llada", "dream", "mmada"))
        for turn, text in enumerate(("none", "top:1"))
    ],
)
def test_the_bound_is_the_mean_over_all_masks(family: str, text: str) -> None:
    """Every set of masked tokens of a short text: the mean over their number of the mean over sets is the bound."""
    model, policy = golden.model(family), ss.parse_policy(text)
    ids, length = IDS[:1, :5], 4
    by_number = []
    for number in range(1, length + 1):
        sets = list(combinations(range(1, 5), number))
        where = torch.zeros(len(sets), 5, dtype=torch.bool)
        for place, columns in enumerate(sets):
            where[place, list(columns)] = True
        nats = likelihood.masked(model, ids.expand(len(sets), -1), where, 1, policy, range(len(sets)))
        by_number.append(float(nats.values.mean()))
    expected = sum(by_number) / length
    # With as many copies as numbers of masks each number comes once, so that only the choice of tokens is left to chance.
    texts = [(asked(str(n)), IDS[0, :5].tolist()) for n in range(300)]
    values = [read.more["nll"] for read in read_texts(model, texts, MaskedReading(masks=length), policy)]
    error = torch.tensor(values).std() / 300**0.5
    assert abs(sum(values) / 300 - expected) < 4 * error
    assert error < 0.1


def test_masks_are_common_nested_and_spread() -> None:
    half, tenth = (likelihood.text_masks("a", 40, 6, share) for share in (0.5, 0.1))
    assert half.sum(1).tolist() == [20] * 6
    assert tenth.sum(1).tolist() == [4] * 6
    assert not (tenth & ~half).any(), "the tokens of a smaller share are among those of a larger one"
    assert not torch.equal(half, likelihood.text_masks("b", 40, 6, 0.5))
    numbers = sorted(likelihood.text_masks("a", 40, 40, None).sum(1).tolist())
    assert numbers == list(range(1, 41)), "every number of masked tokens once"
    few = sorted(likelihood.text_masks("a", 40, 4, None).sum(1).tolist())
    assert all(10 * place < number <= 10 * place + 11 for place, number in enumerate(few))
    assert likelihood.text_masks("a", 3, 2, 0.01).sum(1).tolist() == [1, 1]


def asked(name: str, seed: int = 0) -> Item:
    return Item(0, Document(name, "", ""), seed)


def test_every_seed_of_a_control_is_read_by_itself() -> None:
    model, reading, policy = golden.model("llama"), CausalReading(length=12, scored=8), ss.parse_policy("random(top:1)")
    texts = [(asked("a", seed), list(range(3, 15))) for seed in (0, 1)]
    first, second = read_texts(model, texts, reading, policy)
    for together, text in zip((first, second), texts, strict=True):
        (alone,) = read_texts(model, [text], reading, policy)
        assert together.more["nats"] == pytest.approx(alone.more["nats"], abs=1e-4)
    assert first.more["nats"] != pytest.approx(second.more["nats"], abs=1e-2)


def test_batches_do_not_matter() -> None:
    model = golden.model("dream")
    texts = [(asked(str(n)), [(7 * n + 3 * i) % 90 for i in range(9 + n % 2)]) for n in range(6)]
    policy = ss.parse_policy("random(top:1)")
    for reading in (MaskedReading(masks=3), MaskedReading(share=0.5, masks=2), DenoisingReading(scored=4)):
        for one, many in zip(*(read_texts(model, texts, reading, policy, rows) for rows in (1, 64)), strict=True):
            assert one.key == many.key
            assert one.more["nll"] == pytest.approx(many.more["nll"], abs=1e-4)
            assert one.more["columns"] == many.more["columns"]
            shares = (
                {"hidden": each.hidden} | {name: each.more[name] for name in Masked if name in each.more}
                for each in (one, many)
            )
            assert next(shares) == pytest.approx(next(shares), abs=1e-4)


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mine") / "passages.txt"
    questions = [document.question for document in registry.get("word_problems").documents(30)]
    texts = [" ".join(questions[first::5]) for first in range(5)]
    path.write_text("\n\f\n".join(texts), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("source", ["organism/causal", "organism/scratch", "organism/adapted"])
def test_evaluate_measures_a_text_of_ones_own(source: str, passages: Path, tmp_path: Path) -> None:
    model = ss.load(source, device="cpu")
    # Less of each text than by default, and fewer masked copies.
    causal = model.family == "causal"
    reading = CausalReading(length=64, scored=32) if causal else MaskedReading(masks=4, length=64)
    plain = ss.evaluate(model, "text", reading, data=passages, out=tmp_path / "none")
    masked = ss.evaluate(model, "text", reading, policy="top:1", data=passages)
    assert (plain.n, plain.measure) == (5, "nll")
    assert plain.interval.low < plain.nll < plain.interval.high
    assert plain.nll == pytest.approx(sum(plain.scores().values()) / 5)
    assert masked.nll != plain.nll
    assert masked.mean("hidden_share") > 0
    record = plain.records[0]
    if causal:  # masked copies of a text count alike, whatever their number of masks
        assert record.nll == pytest.approx(sum(record.nats) / len(record.nats), abs=1e-5)
    assert "nats per token" in repr(plain)
    with pytest.raises(InputError, match=r"no right answers.*use \.nll"):
        _ = plain.accuracy
    again = ss.evaluate(model, "text", reading, data=passages, out=tmp_path / "none")
    assert again.records == plain.records
    assert list(plain.table()["nll"]) == [one.nll for one in plain.records]
    with pytest.raises(InputError, match=r"use \.accuracy"):
        _ = ss.evaluate(model, "blimp", limit=1).nll


def test_what_is_read_of_a_text(passages: Path) -> None:
    model = ss.load("organism/causal", device="cpu")
    document = registry.get("text", "causal", passages).documents(1)[0]
    ids = text_ids(model, document.question)
    assert ids[0] == start_token(model) == model.ids.bos
    (short,) = read_texts(model, [(asked("a"), ids[:20])], CausalReading(length=256, scored=128), None)
    assert (short.more["prompt_tokens"], short.more["columns"]) == (20, [*range(1, 20)]), "a short text is read whole"
    (cut,) = read_texts(model, [(asked("a"), ids)], CausalReading(length=16, scored=4), None)
    assert (cut.more["prompt_tokens"], cut.more["columns"]) == (16, [12, 13, 14, 15])
    spread = model.logits(torch.tensor([ids[:15]]))[0].double().log_softmax(-1)
    wanted = [-float(spread[at - 1, ids[at]]) for at in range(12, 16)]
    assert cut.more["nats"] == pytest.approx(wanted, abs=1e-4)


def test_a_policy_begins_when_its_control_has_keys_to_choose_from() -> None:
    """A text behind its start token alone: the first tokens are read with nothing hidden, by the policy and its control."""
    model = golden.model("llama")
    plain, *masked = (
        likelihood.causal(model, IDS, 1, ss.parse_policy(text), [0, 1]).values
        for text in ("none", "top:2", "random(top:2)", "random(top:2),match=mass")
    )
    for values in masked:
        torch.testing.assert_close(values[:, :4], plain[:, :4], atol=1e-5, rtol=0)
        assert ((values[:, 4:] - plain[:, 4:]).abs() > 1e-4).any(1).all()


def test_files_of_ones_own(tmp_path: Path) -> None:
    def read(name: str, content: str | bytes) -> list[Any]:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(registry.get("text", "causal", path).documents())

    lines = '{"text": "One.", "id": "a"}\n\n{"text": "Two."}\n'
    assert [one.question for one in read("a.jsonl", lines)] == ["One.", "Two."]
    assert read("a.jsonl.gz", gzip.compress(lines.encode()))[0].id == "a"
    assert [one.question for one in read("b.txt", "One\nline.\n\nTwo.\n")] == ["One\nline.", "Two."]
    for content, message in {
        '{"text": 3}': "line 1: expected a field text",
        '{"words": "x"}': "line 1: expected a field text",
        " \n": "is empty",
        b"\xff\xfe": "not UTF-8",
        '{"text": "x", "id": 1}\n{"text": "y", "id": 1}': "the id '1' is there twice",
    }.items():
        with pytest.raises(InputError, match=message):
            read("bad", content)
    with pytest.raises(InputError, match="no file at"):
        registry.get("text", "causal", tmp_path / "missing")
    with pytest.raises(InputError, match="one scheme, 'plain'"):
        registry.get("text:other", "causal")


def test_readings_are_checked() -> None:
    for reading in (CausalReading(64, 8), MaskedReading(share=0.5, masks=2), DenoisingReading(scored=8, steps=4)):
        assert decoding_from_json(reading.to_json()) == reading
        assert not reading.draws
    for wrong, message in {
        lambda: MaskedReading(share=0.0): "share should lie above 0",
        lambda: MaskedReading(masks=0): "masks should be a whole number",
        lambda: CausalReading(length=8, scored=8): "at least one token must stand before",
        lambda: DenoisingReading(scored=8, steps=9): "only 8 tokens are scored",
    }.items():
        with pytest.raises(InputError, match=message):
            wrong()
    causal, scratch = (ss.load(f"organism/{name}", device="cpu") for name in ("causal", "scratch"))
    with pytest.raises(InputError, match=r"MaskedReading is not for causal models.*use CausalReading"):
        ss.evaluate(causal, "text", MaskedReading(), limit=1)
    with pytest.raises(InputError, match="measured by a reading"):
        ss.evaluate(scratch, "text", ss.LladaDecoding(), limit=1)
    with pytest.raises(InputError, match="reads a text and generates none"):
        ss.generate(scratch, "Hello", MaskedReading())
    with pytest.raises(InputError, match="no token behind its start"):
        read_texts(causal, [(asked("a"), [1])], CausalReading(), None)


def test_the_passages_that_ship() -> None:
    passages = shipped()
    assert len(passages) >= 150
    assert len({passage.id for passage in passages}) == len(passages)
    assert all(1000 < len(passage.question) < 2600 for passage in passages)
    assert len({passage.extra["source"] for passage in passages}) >= 4


@pytest.fixture(scope="module")
def smollm2(pytestconfig: pytest.Config) -> Any:
    return ss.load(fetched_smollm2(pytestconfig), device="cpu")


@pytest.mark.slow
def test_smollm2_gives_what_transformers_gives(smollm2: Any) -> None:
    from transformers import AutoModelForCausalLM

    official = AutoModelForCausalLM.from_pretrained(
        smollm2.checkpoint.folder, attn_implementation="eager", dtype=torch.float32
    )
    task = registry.get("text", "causal")
    found = ss.evaluate(smollm2, "text", CausalReading(length=96, scored=48), limit=2)
    for record, document in zip(found.records, task.documents(2), strict=True):
        ids = torch.tensor([text_ids(smollm2, document.question)[:96]])
        with torch.no_grad():
            spread = official(ids).logits[0].double().log_softmax(-1)
        wanted = [-float(spread[at - 1, ids[0, at]]) for at in range(48, 96)]
        assert list(record.nats) == pytest.approx(wanted, abs=1e-4)
        assert record.nll == pytest.approx(sum(wanted) / 48, abs=1e-4)
    assert json.loads(json.dumps(found.settings))["task"]["measure"] == "nll"


def test_smollm2_starts_where_its_documents_started(smollm2: Any) -> None:
    """Its bos opens a turn of a chat; documents of its pretraining stood behind <|endoftext|>."""
    assert smollm2.tokenizer.bos_token == "<|im_start|>"
    assert start_token(smollm2) == smollm2.tokenizer.get_vocab()["<|endoftext|>"] == 0
