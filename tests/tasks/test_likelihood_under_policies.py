"""Readings under policies against an eager implementation: which key, for which queries, from which moment, hidden or silenced.

The eager model is plain torch over a checkpoint's weights: one forward over the whole text, masks as −inf on rows and columns of
the scores, or values left out. What a scored rule does to a causal model is written down from its definition: the set for a token
comes from the attention, over all keys, of the tokens before it, and those before it were read under their own sets.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.helpers.naive_sinks import distant_mean, reading_margins
from tests.policies.dense import Network
from torch import Tensor

import sinkscope as ss
from sinkscope.tasks.likelihood import causal, masked

GIVEN, LENGTH = 9, 16
CLOSE = {"abs": 1e-4}


@cache
def network(family: str) -> Network:
    """The weights of a checkpoint, in double precision."""
    return Network(golden.model(family) if "/" not in family else ss.load(family))


def text(seed: int = 0, length: int = LENGTH) -> list[int]:
    """Ordinary tokens."""
    return torch.randint(3, 400, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def eager(
    net: Network, ids: list[int], taken: np.ndarray, effect: str, causal: bool = True
) -> tuple[Tensor, np.ndarray]:
    """Logits [n, V] and the attention over all keys [layer, head, n, n]; taken: bool, like that attention."""
    n, weights = len(ids), net.weights
    seen = torch.ones(n, n, dtype=torch.bool).tril() if causal else torch.ones(n, n, dtype=torch.bool)
    positions = torch.arange(n)[None]
    x, raw = weights["model.embed_tokens.weight"][torch.tensor([ids])], []
    for layer in range(net.layers):
        name = f"model.layers.{layer}"
        h = net.norm(x, f"{name}.input_layernorm")
        q, k, v = (net.split(net.linear(h, f"{name}.self_attn.{one}_proj")) for one in "qkv")
        q, k = net.rotate(q, positions)[0], net.rotate(k, positions)[0].repeat_interleave(net.groups, 0)
        v = v[0].repeat_interleave(net.groups, 0)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))
        plain = scores.softmax(-1)
        raw.append(plain.numpy())
        gone = torch.from_numpy(taken[layer])
        left = (seen & ~gone).any(-1, keepdim=True)  # a query that would lose every key keeps them all
        gone = gone & left
        hidden = (scores + torch.where(gone, float("-inf"), 0.0)).softmax(-1)
        acted = hidden if effect == "hide" else plain * ~gone
        out = (acted @ v).transpose(0, 1).flatten(1)[None]
        x = x + net.linear(out, f"{name}.self_attn.o_proj")
        h = net.norm(x, f"{name}.post_attention_layernorm")
        gate, up = net.linear(h, f"{name}.mlp.gate_proj"), net.linear(h, f"{name}.mlp.up_proj")
        x = x + net.linear(torch.nn.functional.silu(gate) * up, f"{name}.mlp.down_proj")
    return net.linear(net.norm(x, "model.norm"), "lm_head")[0], np.stack(raw)


def nothing(net: Network, n: int) -> np.ndarray:
    """No key is taken from anyone."""
    return np.zeros((net.layers, net.heads, n, n), dtype=bool)


def nats(logits: Tensor, ids: list[int], given: int) -> list[float]:
    """−log p of each token behind the given ones."""
    spread = logits.log_softmax(-1)
    return [-float(spread[i - 1, ids[i]]) for i in range(given, len(ids))]


# ---- causal models -------------------------------------------------------------------------------


def first_key(net: Network, ids: list[int], given: int, queries: str, prefill: str, effect: str) -> list[float]:
    """Under first:1. The queries that predict scored tokens begin with the last given one, which is part of the prefill."""
    taken = nothing(net, len(ids))
    for i in range(len(ids)):
        asked = queries == "all" or i >= given - 1
        taken[:, :, i, 0] = asked and (prefill == "yes" or i >= given)
    return nats(eager(net, ids, taken, effect)[0], ids, given)


def score(raw: np.ndarray, by: str, j: int) -> float:
    """Of key j, from one head's rows so far [n, n]."""
    behind = range(j, len(raw))
    return {
        "newest": raw[-1, j],
        "sum": sum(raw[i, j] for i in behind),
        "received": sum(raw[i, j] for i in behind) / sum(1 / (i + 1) for i in behind),
        "distant": distant_mean(raw, j),
    }[by]


def strongest_key(
    net: Network, ids: list[int], given: int, by: str, queries: str, prefill: str, effect: str
) -> list[float]:
    """Under top:1: token by token; with prefill the given ones are read once before, for their scores."""
    taken = nothing(net, len(ids))

    def choose(rows: np.ndarray, newest: int) -> list[tuple[int, int, int]]:
        """(layer, head, key) from the rows so far [layer, head, n, n], never the newest key."""
        found = []
        for layer, head in np.ndindex(*rows.shape[:2]):
            keys = [j for j in range(min(newest, rows.shape[-1])) if not np.isnan(score(rows[layer, head], by, j))]
            if keys:
                found.append((layer, head, max(keys, key=lambda j: score(rows[layer, head], by, j))))
        return found

    if prefill == "yes":
        _, rows = eager(net, ids[:given], nothing(net, given), effect)
        for layer, head, key in choose(rows, given - 1):
            taken[layer, head, (given - 1 if queries == "scored" else 0) : given, key] = True
    for newest in range(given, len(ids)):
        _, rows = eager(net, ids[:newest], taken[:, :, :newest, :newest], effect)
        for layer, head, key in choose(rows, newest):
            taken[layer, head, newest, key] = True
    return nats(eager(net, ids, taken, effect)[0], ids, given)


def read(family: str, policy: str, texts: list[list[int]], given: int = GIVEN) -> Any:
    """By the package, all texts together."""
    model = golden.model(family) if "/" not in family else ss.load(family)
    return causal(model, torch.tensor(texts), given, ss.parse_policy(policy), list(range(len(texts))))


MOMENTS = [(prefill, queries) for prefill in ("yes", "no") for queries in ("all", "scored")]


@pytest.mark.parametrize("effect", ["hide", "silence"])
@pytest.mark.parametrize("family", ["llama", pytest.param("organism/causal", marks=pytest.mark.slow)])
def test_the_first_key_from_the_prefill_on_or_after_it_for_all_or_for_scored_queries(family: str, effect: str) -> None:
    texts = [[token % 90 for token in text(seed)] for seed in (1, 2)]
    found = []
    for prefill, queries in MOMENTS:
        values = read(family, f"first:1,prefill={prefill},queries={queries},effect={effect}", texts).values
        for row, ids in enumerate(texts):
            expected = first_key(network(family), ids, GIVEN, queries, prefill, effect)
            assert values[row].tolist() == pytest.approx(expected, **CLOSE), (prefill, queries)
        found.append(float(values.mean()))
    # Once the context is read, each query that follows is a scored one.
    assert found[2] == pytest.approx(found[3], abs=1e-6)
    assert len({round(one, 3) for one in found}) == 3, "the moment and the queries should matter"


def test_the_newest_query_of_a_reading_is_that_of_every_step() -> None:
    texts = [text(1), text(2)]
    for effect in ("hide", "silence"):
        newest, scored = (
            read("llama", f"first:1,queries={queries},effect={effect}", texts).values
            for queries in ("newest", "scored")
        )
        assert torch.equal(newest, scored)


@pytest.mark.slow
@pytest.mark.parametrize("effect", ["hide", "silence"])
@pytest.mark.parametrize("by", ["newest", "received", "sum", "distant"])
def test_the_strongest_key_by_every_score(by: str, effect: str) -> None:
    texts = [text(3), text(4)]
    for prefill, queries in MOMENTS:
        policy = f"top:1,by={by},prefill={prefill},queries={queries},effect={effect}"
        values = read("llama", policy, texts).values
        for row, ids in enumerate(texts):
            expected = strongest_key(network("llama"), ids, GIVEN, by, queries, prefill, effect)
            assert values[row].tolist() == pytest.approx(expected, **CLOSE), policy


def test_the_defaults_are_those_of_the_paper() -> None:
    """Scored rules look at the newest row and leave the prefill alone, fixed ones act from the first token on all queries."""
    texts = [text(5)]
    for short, long in (
        ("top:1", "top:1,by=newest,prefill=no,queries=all"),
        ("first:1", "first:1,prefill=yes,queries=all"),
    ):
        assert torch.equal(read("llama", short, texts).values, read("llama", long, texts).values), short
    expected = strongest_key(network("llama"), texts[0], GIVEN, "newest", "all", "no", "hide")
    assert read("llama", "top:1", texts).values[0].tolist() == pytest.approx(expected, **CLOSE)


def test_a_context_of_one_token() -> None:
    """Its scores are no choice: there is only the newest key. The rule begins once there are two."""
    ids = text(6, 8)
    for prefill in ("yes", "no"):
        values = read("llama", f"top:1,by=received,prefill={prefill}", [ids], given=1).values[0].tolist()
        plain = nats(eager(network("llama"), ids, nothing(network("llama"), 8), "hide")[0], ids, 1)
        later = strongest_key(network("llama"), ids, 2, "received", "all", prefill, "hide")
        assert values == pytest.approx([plain[0], *later], **CLOSE)


def test_a_first_reading_is_counted() -> None:
    texts = [text(7)]
    steps = LENGTH - GIVEN
    assert read("llama", "top:1", texts).forwards == steps
    assert read("llama", "top:1,prefill=yes", texts).forwards == steps + 1
    model, ids = golden.model("llama"), torch.tensor(texts)
    decoding = ss.GreedyDecoding(length=4, eos=None)
    assert ss.generate(model, ids, decoding, policy="top:1").forwards == [4]
    assert ss.generate(model, ids, decoding, policy="top:1,prefill=yes").forwards == [5]


# ---- diffusion models ----------------------------------------------------------------------------


def acting(family: str, x: list[int], queries: str, mask: int) -> list[int]:
    """The queries that a rule names; Dream reads the prediction of a position one before it."""
    hidden = [i for i, token in enumerate(x) if token == mask]
    rows = {
        "all": range(len(x)),
        "masked": hidden,
        "decided": [i for i in range(len(x)) if i not in hidden],
        "scored": [i - 1 for i in hidden] if family == "dream" else hidden,
    }
    return list(rows[queries])


@pytest.mark.parametrize("family", ["llada", "dream", "mmada"])
@pytest.mark.parametrize("queries", ["all", "scored", "masked", "decided"])
def test_masked_tokens_under_the_first_and_the_strongest_key(family: str, queries: str) -> None:
    net, model = network(family), golden.model(family)
    texts = [text(8), text(9)]
    where = torch.zeros(2, LENGTH, dtype=torch.bool)
    where[0, [10, 11, 14]] = True
    where[1, [9, 12, 15]] = True
    for effect in ("hide", "silence"):
        for name in ("first:1", "top:1"):
            policy = ss.parse_policy(f"{name},queries={queries},effect={effect}")
            found = masked(model, torch.tensor(texts), where, GIVEN, policy, [0, 1])
            expected = []
            for row, ids in enumerate(texts):
                x = [model.ids.mask if hide else token for token, hide in zip(ids, where[row], strict=True)]
                taken = nothing(net, LENGTH)
                rows = acting(family, x, queries, model.ids.mask)
                if name == "first:1":
                    taken[:, :, rows, 0] = True
                else:  # from a first reading in which nothing is masked
                    _, raw = eager(net, x, taken, effect, causal=False)
                    for layer, head in np.ndindex(*raw.shape[:2]):
                        taken[layer, head, rows, raw[layer, head].sum(0).argmax()] = True
                spread = eager(net, x, taken, effect, causal=False)[0].log_softmax(-1)
                shift = family == "dream"
                expected += [-float(spread[i - shift, ids[i]]) for i in where[row].nonzero()[:, 0].tolist()]
            assert found.values.tolist() == pytest.approx(expected, **CLOSE), str(policy)


# ---- block models --------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "block"), [("sdar", 4), ("fast_dllm_v2", 32)])
def test_sinks_of_a_text_that_is_read_in_blocks(family: str, block: int) -> None:
    """A key is judged by the queries that see it: those of its own block and of all behind it."""
    model, ids = golden.model(family), torch.tensor([text(seed, 48) for seed in range(6)]) % 200
    where = torch.zeros(6, 48, dtype=torch.bool)
    where[:, 30::4] = True
    x = torch.where(where, model.ids.mask, ids)

    def hit(margins: list[dict[int, float]], taken: list[int]) -> float:
        """Of all sinks of all heads, the share that is taken."""
        sinks = [j for one in margins for j, margin in one.items() if margin > 3]
        return sum(j in taken for j in sinks) / len(sinks) if sinks else np.nan

    taken = [0, 14, 23]
    # Silencing leaves attention as it is, so the maps under it are those by which sinks are told.
    fixed = ss.MaskKeys(dict.fromkeys(range(model.shape.layers), taken), effect="silence")
    found = masked(model, ids, where, 20, fixed, range(6))
    maps = model.attention(x, policy=fixed, block=block).numpy()
    for row in range(6):
        margins = [reading_margins(head, block) for layer in maps for head in layer[row]]
        assert float(found.account["sinks_hit"][row]) == pytest.approx(hit(margins, taken), abs=1e-6, nan_ok=True)
    assert bool(found.account["sinks_hit"].isfinite().any()) == (family == "fast_dllm_v2"), "the other has no sink"
    # What a threshold takes in the second reading are the sinks of the first; in layer 0 both are the same.
    above = masked(model, ids, where, 20, ss.parse_policy("above:-1,layers=0,effect=silence"), range(6))
    plain = model.attention(x, block=block).double().numpy()[0]  # [row, head, query, key]
    for row in range(6):
        margins = [reading_margins(head, block) for head in plain[row]]
        found_there = [[j for j, margin in one.items() if margin > -1] for one in margins]
        lost = np.mean([head[:, keys].sum(-1).mean() for head, keys in zip(plain[row], found_there, strict=True)])
        expected = lost / model.shape.layers if any(found_there) else np.nan
        assert float(above.account["hidden_share"][row]) == pytest.approx(expected, abs=1e-4, nan_ok=True)
    assert bool(above.account["hidden_share"].isfinite().any())
