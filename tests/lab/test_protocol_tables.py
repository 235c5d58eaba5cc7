"""Tables of the protocol study: what a policy costs over passages and seeds, and a causal model less its twin."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
from lab.protocol_tables import BEGIN, END, Setting, setting_of

from lab import protocol_tables

MODELS = """
name = "tiny"
models = [
  { source = "a", name = "continued-0", group = "continued, all weights" },
  { source = "b", name = "continued-1", group = "continued, all weights" },
  { source = "c", name = "twin-0", group = "twin, all weights", twin = "continued-0" },
  { source = "d", name = "twin-1", group = "twin, all weights", twin = "continued-1" },
]
[[evaluate]]
task = "text"
"""


def read(
    folder: Path, model: str, reading: str, policy: str | None, nats: dict[str, dict[int, float]]
) -> None:
    """One cell's records."""
    cell = folder / "cells" / f"{model}-{reading}-{policy}".replace("/", "-")
    shard = cell / "shards" / "0-1"
    shard.mkdir(parents=True)
    (cell / "cell.json").write_text(json.dumps({"task": "text", "decoding_name": reading}))
    family = "causal" if "continued" in model else "dream"
    (shard / "settings.json").write_text(
        json.dumps({"model": {"source": model, "family": family}, "policy": policy})
    )
    lines = [
        json.dumps({
            "document": passage, "hidden": None if policy is None else 0.25,
            "more": {"columns": list(each), "nats": list(each.values()), "sinks_hit": None if policy is None else 0.5},
        })
        for passage, each in nats.items()
    ]  # fmt: skip
    (shard / "generations.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("policy", "causal", "expected"),
    [
        ("first:1", True, Setting("first token", "", "all", "hide", "")),
        ("first:1,prefill=no", True, Setting("first token", "", "after", "hide", "")),
        ("top:1", True, Setting("strongest key", "newest", "after", "hide", "")),
        ("top:1", False, Setting("strongest key", "", "all", "hide", "")),
        (
            "random(top:1,epsilon=3,queries=scored,prefill=yes,by=distant),match=mass",
            True,
            Setting("strongest sink", "distant", "scored", "hide", "mass"),
        ),
        (
            "top:1,epsilon=3,among=others,effect=silence,queries=scored",
            False,
            Setting("strongest key, where no sink", "", "scored", "silence", ""),
        ),
    ],
)
def test_a_policy_says_its_key_and_protocol(policy: str, causal: bool, expected: Setting) -> None:
    assert setting_of(policy, causal) == expected


def test_costs_and_contrasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (0, 1):
        # Column 5 is scored by the causal model alone, and no part of the contrast.
        read(tmp_path, f"continued-{seed}", "reading", None, {"p": {5: 1.0, 6: 1.0}, "q": {5: 1.0, 6: 1.0}})
        masked = {"p": {5: 9.0, 6: 2.0 + seed}, "q": {5: 9.0, 6: 4.0 + seed}}
        read(tmp_path, f"continued-{seed}", "reading", "first:1,prefill=yes", masked)
        read(tmp_path, f"twin-{seed}", "order", None, {"p": {6: 2.0}, "q": {6: 2.0}})
        read(tmp_path, f"twin-{seed}", "order", "first:1", {"p": {6: 2.5}, "q": {6: 2.5}})
    (tmp_path / "study.toml").write_text(MODELS)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    words = ["tables", str(tmp_path), "--study", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [*words, "--docs", str(page), "--picture", str(tmp_path / "p.png")])
    protocol_tables.main()
    costs = pd.read_csv(tmp_path / "out" / "costs.csv").set_index("model")
    assert costs.loc["continued-0", "lost"] == 5.0  # (8 + 1) / 2 and (8 + 3) / 2
    assert costs.loc["twin-1", ["lost", "hidden_share", "sinks_hit"]].tolist() == [0.5, 0.25, 0.5]
    contrasts = pd.read_csv(tmp_path / "out" / "contrasts.csv").set_index("pair")
    assert contrasts.loc["continued-0 − twin-0", ["causal", "twin", "contrast"]].tolist() == [2.0, 0.5, 1.5]
    seeds = pd.read_csv(tmp_path / "out" / "contrasts-seeds.csv")
    assert seeds["contrast"].tolist() == [2.0]
    assert seeds["models"].tolist() == [2]
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| nats")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| **hidden from all queries**: first token |" in text
    assert (tmp_path / "p.png").stat().st_size > 10_000
