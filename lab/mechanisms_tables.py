"""`python -m lab.mechanisms_tables FOLDER`: mechanisms/results.csv, from the folder of a finished `sinkscope study mechanisms`.

Accuracies by decoding, policy and window; what the strongest keys cost, and how that differs between orders and block lengths
(differences of differences, paired by document: seeds and draws are averaged for each document first); replays, pairs of traces
and sinks. Holm's correction is over all tests of the table.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sinkscope.errors import plainly
from sinkscope.statistics import (
    compare,
    difference,
    holm,
    kept_share,
    mean_difference,
    mean_interval,
    wilson,
)

OUT = Path(__file__).parent / "mechanisms" / "results.csv"
BLOCKS = {"block1": 1, "block8": 8, "block32": 32, "full": 64}
LONGER = [block for block, length in BLOCKS.items() if length > 1]
MODELS, ORDERS = ("scratch", "multimodal"), ("confidence", "random")
WINDOWS = ("", "window:32", "window:32,first=4", "window:192,future=0")
BESIDE = {"none": "none", "random(top:1)": "control"}
APART = "confidence - random"
REPLAYED = ("kl", "confidence_change", "flipped", "changed")
PAIRED = (
    "attention to old sinks", "attention to new sinks", "attention to prompt", "attention to masked", "attention to decided",
    "same input", "confidence change", "confidence change of dependent less other tokens",
    "delay of dependent less other tokens", "dependence and delay",
)  # fmt: skip
COUNTED = ("heads without", "sinks per head", "strongest sink moves")

Scores = NDArray[np.float64]


class Table:
    """The rows, as they are found in a study's folder."""

    def __init__(self, study: Path) -> None:
        self.study = study
        self.rows: list[dict[str, Any]] = []
        columns = ["model", "decoding_name", "policy", "document", "seed", "passed"]
        self.records = pd.read_parquet(study / "tables" / "records.parquet", columns=columns)
        self.records["policy"] = self.records["policy"].str.replace(r",seed=\d", "", regex=True)
        by = ["model", "decoding_name", "policy", "document"]
        self.scores = self.records.groupby(by)["passed"].agg(["mean", "size"])

    def cell(self, model: str, block: str, order: str, policy: str, window: str = "") -> tuple[Scores, int]:
        """The share of right answers to each document [200], and of how many runs each is the mean."""
        name = f"{window} & {policy}" if window and policy != "none" else window or policy
        part = self.scores.xs((f"organism/{model}", f"{block}-{order}", name)).sort_index()
        return part["mean"].to_numpy(dtype=np.float64), int(part["size"].iloc[0])

    def damage(self, model: str, block: str, order: str, than: str) -> Scores:
        """`top:1` less another policy, for each document."""
        return self.cell(model, block, order, "top:1")[0] - self.cell(model, block, order, than)[0]

    def add(self, at: tuple[Any, ...], n: int, value: Any, p: float = np.nan, draws: Any = "") -> None:
        """A row: `at` is question, model, block, order, window and what; `value` a number with its bounds."""
        names = ("question", "model", "block", "order", "window", "what")
        middle, low, high = value
        self.rows.append(
            {
                **dict(zip(names, at, strict=True)),
                "n": n,
                "draws": draws,
                "value": middle,
                "low": low,
                "high": high,
                "p": p,
            }
        )

    def test(self, at: tuple[Any, ...], first: Scores, second: Scores, *, shares: bool = True) -> None:
        """A row with a paired test."""
        found = compare(first, second, shares=shares)
        self.add(at, found.n, (found.difference, *found.interval), found.p)


def accuracies(table: Table) -> None:
    """Each cell, what its window costs, and what `top:1` costs in it."""
    for model, (block, length), order, window in product(MODELS, BLOCKS.items(), ORDERS, WINDOWS):
        place = (model, length, order, window)
        cells = {
            policy: table.cell(model, block, order, policy, window) for policy in ("none", "top:1", *BESIDE)
        }
        for policy, (each, draws) in cells.items():
            shown = (each.mean(), *wilson(each.sum(), len(each)))
            table.add(("accuracy", *place, BESIDE.get(policy, policy)), len(each), shown, draws=draws)
        if (length, order) == (1, "random"):
            continue  # the same runs again
        if window:
            table.test(
                ("window", *place, "window - none"),
                cells["none"][0],
                table.cell(model, block, order, "none")[0],
            )
        for than, word in BESIDE.items():
            table.test(("damage", *place, f"top:1 - {word}"), cells["top:1"][0], cells[than][0])


def differences(table: Table) -> None:
    """What `top:1` costs in one order less in the other, and in one block length less in the longest."""
    for model, (block, length), (than, word) in product(MODELS, BLOCKS.items(), BESIDE.items()):
        what = f"top:1 - {word}"
        if length > 1:
            orders = (table.damage(model, block, order, than) for order in ORDERS)
            table.test(("order", model, length, APART, "", what), *orders, shares=False)
        for order in ORDERS:
            if length < BLOCKS["full"]:
                both = (table.damage(model, one, order, than) for one in (block, "full"))
                table.test(("blocks", model, f"{length} - 64", order, "", what), *both, shares=False)
    for model in MODELS:
        for block in LONGER:
            both = (table.cell(model, block, order, "none")[0] for order in ORDERS)
            table.test(("order", model, BLOCKS[block], APART, "", "none"), *both)
        place = ("order", model, "8, 32, 64", APART, "")
        for policy in ("none", "top:1"):
            means = (
                np.mean([table.cell(model, block, order, policy)[0] for block in LONGER], 0)
                for order in ORDERS
            )
            table.test((*place, policy), *means)
        for than, word in BESIDE.items():
            means = (
                np.mean([table.damage(model, block, order, than) for block in LONGER], 0) for order in ORDERS
            )
            table.test((*place, f"top:1 - {word}"), *means, shares=False)


def shares_and_seeds(table: Table) -> None:
    """The share of the accuracy that `top:1` leaves, and the order's effect seed by seed; no tests."""
    for model, (block, length) in product(MODELS, BLOCKS.items()):
        kept = {
            order: kept_share(
                table.cell(model, block, order, "none")[0], table.cell(model, block, order, "top:1")[0]
            )
            for order in ORDERS
        }
        for order in ORDERS:
            table.add(("kept", model, length, order, "", "top:1 / none"), 200, kept[order])
        if length > 1:
            table.add(
                ("kept", model, length, APART, "", "top:1 / none"),
                200,
                difference(*(kept[order] for order in ORDERS)),
            )
    by = ["model", "decoding_name", "policy", "seed", "document"]
    seeds = table.records.groupby(by)["passed"].mean()
    for model, block, seed in product(MODELS, LONGER, range(3)):
        top, control = (
            seeds.loc[(f"organism/{model}", f"{block}-random", policy, seed)].sort_index().to_numpy()
            for policy in ("top:1", "random(top:1)")
        )
        found = compare(
            table.damage(model, block, "confidence", "random(top:1)"), top - control, shares=False
        )
        place = ("seed", model, BLOCKS[block], f"{APART} {seed}", "", "top:1 - control")
        table.add(place, 200, (found.difference, *found.interval))


def _said(policy: str) -> str:
    return "control" if "random" in policy else policy


def replays(table: Table) -> None:
    """Single steps under a policy on the path of the unmasked run: one value for each document."""
    found: dict[tuple[str, ...], Scores] = {}
    for row in pd.read_parquet(table.study / "tables" / "replay.parquet").itertuples():
        files = sorted(table.study.glob(f"cells/{row.cell}/shards/*/generations.jsonl"))
        lines = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
        lines.sort(key=lambda line: line["index"])
        model, (block, order) = str(row.model).removeprefix("organism/"), str(row.decoding_name).split("-")
        policy = str(row.policy)
        window = "" if "top" in policy else policy
        for name in REPLAYED:
            if name == "changed" and (order == "random" or block == "block1"):
                continue  # which position is most confident does not matter there
            values = np.array([line["more"][name] for line in lines], dtype=np.float64)
            found[model, block, order, policy, name] = values
            what = f"{name}: {_said(policy) if not window else 'window'}"
            table.add(
                ("replay", model, BLOCKS[block], order, window, what), len(values), mean_interval(values)
            )
    for model, block, name in product(MODELS, ("block32", "full"), REPLAYED[:3]):
        both = (found[model, block, order, "top:1", name] for order in ORDERS)
        table.add(
            ("replay", model, BLOCKS[block], APART, "", f"{name}: top:1"), len(lines), mean_difference(*both)
        )


def traces(table: Table) -> None:
    """Pairs of traces, and how many sinks there are under each policy."""
    pairs = pd.read_parquet(table.study / "tables" / "pairs.parquet")
    by = ["model", "decoding_name", "policy", "measure"]
    for (model, decoding, policy, measure), part in pairs[pairs["measure"].isin(PAIRED)].groupby(
        by, sort=False
    ):
        values = part["value"].dropna().to_numpy()
        place = (str(model).removeprefix("organism/"), BLOCKS[str(decoding).split("-")[0]], "confidence", "")
        table.add(("pairs", *place, f"{measure}: {_said(str(policy))}"), len(values), mean_interval(values))
    sinks = pd.read_parquet(table.study / "tables" / "sinks.parquet")
    for row in sinks[sinks["measure"].isin(COUNTED)].to_dict("records"):
        place = (
            str(row["model"]).removeprefix("organism/"),
            BLOCKS[row["decoding_name"].split("-")[0]],
            "confidence",
            "",
        )
        what = f"{row['measure']}: {_said(row['policy'])}"
        table.add(("sinks", *place, what), 8, (row["value"], row["low"], row["high"]))


def results(study: Path) -> pd.DataFrame:
    """The whole table."""
    table = Table(study)
    for part in (accuracies, differences, shares_and_seeds, replays, traces):
        part(table)
    found = pd.DataFrame(table.rows)
    found["p_holm"] = holm(found["p"].to_numpy())
    return found


if __name__ == "__main__":
    with plainly():
        results(Path(sys.argv[1])).to_csv(OUT, index=False, float_format="%.6g")
        print(OUT)
