"""The sweep of half an hour and its study: what they must have, and that no run has read the text that is read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from sinkscope.organisms.corpus import MOST_DOCUMENTS
from sinkscope.organisms.documents import HELD_OUT_PROSE, prose
from sinkscope.organisms.emergence import EACH
from sinkscope.organisms.recipe import LENGTH
from sinkscope.organisms.sweep import read_sweep
from sinkscope.organisms.vocabulary import shipped
from sinkscope.study import spec

LAB = Path(__file__).parents[2] / "lab"


def test_the_sweep_has_four_sizes_and_changes_with_three_seeds_each_at_equal_tokens() -> None:
    runs = read_sweep(LAB / "sweeps" / "half-hour.toml").runs
    assert len({run.settings.tokens for run in runs}) == 1
    kinds = Counter((run.recipe, run.settings.size.width, str(run.settings.variant)) for run in runs)
    assert set(kinds.values()) == {3}
    for objective in ("causal", "scratch"):
        plain = {width for recipe, width, variant in kinds if recipe == objective and variant == "plain"}
        changed = {variant for recipe, _, variant in kinds if recipe == objective and variant != "plain"}
        assert (len(plain), len(changed)) == (4, 4)


def test_the_text_that_is_read_is_held_out_and_as_long_as_a_document() -> None:
    study = spec.read(LAB / "studies" / "ladder-half-hour.toml")
    (block,) = (block for block in study.evaluate if block.task == "text")
    assert study.data["text"] == "lab/studies/held-out-prose.jsonl"
    rows = [json.loads(line) for line in (LAB / "studies" / "held-out-prose.jsonl").read_text().splitlines()]
    numbers = [int(row["id"].removeprefix("prose-")) for row in rows]
    assert len(set(numbers)) == len(rows) == block.samples
    assert min(numbers) >= EACH, "the probe of emergence.json has the first ones"
    assert MOST_DOCUMENTS < HELD_OUT_PROSE
    assert [row["text"] for row in rows] == [prose(HELD_OUT_PROSE + number) for number in numbers]
    assert min(map(len, shipped("llada").encode([row["text"] for row in rows]))) >= LENGTH - 1
