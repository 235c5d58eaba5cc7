"""Tables and picture of the study `protocol` on English, from the records of finished studies.

    python -m lab.protocol_tables study-protocol-english --docs docs/english.md --picture docs/images/protocol.png

Writes lab/english/protocol: costs.csv (each model, reading and policy: nats per token lost, with the interval over passages),
seeds.csv (the same over the models of a group, with the interval over seeds), contrasts.csv (a causal model less its twin under
the same protocol, on the same tokens of the same passages). With --docs the table of the page is made anew between its two marks.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lab.screenshots import few_colours
from sinkscope.policies import MaskFirst, MaskTop, parse_policy
from sinkscope.policies.policy import Rule
from sinkscope.report.figures import look
from sinkscope.statistics import Estimate, bounded, mean_difference, mean_interval
from sinkscope.study import spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STUDY = Path(__file__).parent / "studies" / "protocol-english.toml"
OUT = Path(__file__).parent / "english" / "protocol"
MEASURES = ("hidden_share", "sinks_hit", "strongest_hit", "sink_removed")
"""What a policy did, as records have it."""
BEGIN, END = "<!-- lab/protocol_tables.py makes this table -->", "<!-- end of the table -->"

FIRST, SINK, KEY, OTHER = "first token", "strongest sink", "strongest key", "strongest key, where no sink"
KEYS = {FIRST: "", SINK: "distant", KEY: "received", OTHER: "received"}
"""Which key → by which score it is the strongest in causal models, in the rows that are compared with the twin."""
VARIANTS = (
    (SINK, "received", "strongest by all queries, relative to uniform, where a sink"),
    (KEY, "newest", "strongest by the newest query"),
    (KEY, "sum", "strongest by the plain sum"),
)
"""Other scores of a causal model, and words for them."""
PROTOCOLS = {
    "all": "hidden from all queries",
    "scored": "only from queries that predict a scored token",
    "after": "only after the context was read",
}
"""Name in the tables → words."""


# ---- what was read ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A policy by what distinguishes it.

    Attributes:
        key: which key it masks. by: by which score it is the strongest; "" where there is but one.
        protocol: a name of PROTOCOLS. control: "", or how a random control is matched.
    """

    key: str
    by: str
    protocol: str
    effect: str
    control: str

    def columns(self) -> dict[str, str]:
        """As columns of a table."""
        return {
            "key": self.key,
            "by": self.by,
            "protocol": self.protocol,
            "effect": self.effect,
            "control": self.control,
        }


def setting_of(policy: str, causal: bool) -> Setting:
    """The setting that a policy's text stands for.

    >>> setting_of("random(first:1,prefill=no),match=mass", causal=True)
    Setting(key='first token', by='', protocol='after', effect='hide', control='mass')
    """
    parsed = parse_policy(policy)
    assert parsed is not None
    control = "" if parsed.control is None else parsed.control.match
    (rule,) = (parsed if parsed.control is None else parsed.control.like).parts()
    protocol = "scored" if rule.queries == "scored" else "all"
    prefill = rule.prefill if rule.prefill is not None else not rule.scored
    protocol = "after" if causal and not prefill else protocol
    by = "" if not rule.scored else getattr(rule, "by", None) or ("newest" if causal else "")
    return Setting(_key(rule), by, protocol, rule.effect, control)


def _key(rule: Rule) -> str:
    if isinstance(rule, MaskFirst):
        return FIRST
    if not isinstance(rule, MaskTop):
        raise SystemExit(f"{rule} is no policy of the study")
    return KEY if rule.epsilon is None else SINK if rule.among != "others" else OTHER


@dataclass
class Read:
    """All passages that one model read in one way under one policy.

    Attributes:
        nats: passage → column of a token → −log p. did: measure → a value for each passage where the policy acted.
    """

    model: str
    causal: bool
    reading: str
    policy: str
    nats: dict[str, dict[int, float]] = field(default_factory=dict)
    did: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @cached_property
    def setting(self) -> Setting:
        """What its policy stands for."""
        return setting_of(self.policy, self.causal)

    def lost(self, none: Read, tokens: Mapping[str, set[int]] | None = None) -> pd.Series[float]:
        """Passage → nats per token more than without a policy, of all scored tokens or of these."""
        losses = {}
        for passage, nats in self.nats.items():
            columns = set(nats) if tokens is None else set(nats) & tokens.get(passage, set())
            if columns:
                losses[passage] = float(np.mean([nats[c] - none.nats[passage][c] for c in sorted(columns)]))
        return pd.Series(losses, dtype=float)

    def measures(self) -> dict[str, float]:
        """Means over the passages."""
        return {name: float(np.mean(self.did[name])) for name in MEASURES if self.did.get(name)}


def records(folders: Sequence[Path]) -> Iterator[Read]:
    """What the studies in these folders read, a cell each."""
    for file in sorted(path for folder in folders for path in folder.glob("**/cells/*/cell.json")):
        cell, read = json.loads(file.read_text(encoding="utf-8")), None
        if cell["task"] != "text":
            continue
        for shard in sorted(file.parent.glob("shards/*/generations.jsonl")):
            settings = json.loads((shard.parent / "settings.json").read_text(encoding="utf-8"))
            if read is None:
                model, policy = settings["model"], settings["policy"] or "none"
                read = Read(model["source"], model["family"] == "causal", cell["decoding_name"], policy)
            for line in shard.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                more = row["more"]
                read.nats[row["document"]] = dict(zip(more["columns"], more["nats"], strict=True))
                for name in MEASURES:
                    value = row["hidden"] if name == "hidden_share" else more.get(name)
                    if value is not None:
                        read.did[name].append(value)
        if read is not None and read.nats:
            yield read


@dataclass(frozen=True)
class Results:
    """All that was read, and what the study says of its models."""

    reads: tuple[Read, ...]
    models: Mapping[str, spec.StudyModel]

    @cached_property
    def none(self) -> dict[tuple[str, str], Read]:
        """(model, reading) → without a policy."""
        return {(read.model, read.reading): read for read in self.reads if read.policy == "none"}

    @cached_property
    def masked(self) -> list[Read]:
        """Under a policy, in the order of the models; without those of a model that was not read without one."""
        order = list(self.models)
        reads = [
            read for read in self.reads if read.policy != "none" and (read.model, read.reading) in self.none
        ]
        return sorted(reads, key=lambda read: order.index(read.model))

    def group(self, model: str) -> str:
        """Models of the same training; a model without others is its own."""
        return self.models[model].group or model


# ---- tables ----------------------------------------------------------------------------------------


def costs(results: Results) -> pd.DataFrame:
    """A row for each model, reading and policy."""
    rows = []
    for read in results.masked:
        none = results.none[read.model, read.reading]
        lost = read.lost(none)
        found = mean_difference(lost, np.zeros(len(lost)))
        base = float(np.mean([np.mean(list(none.nats[passage].values())) for passage in lost.index]))
        rows.append({
            "model": read.model, "group": results.group(read.model), "reading": read.reading, **read.setting.columns(),
            "policy": read.policy, "passages": len(lost), "none": base, **bounded("lost", *found), **read.measures(),
        })  # fmt: skip
    return pd.DataFrame(rows)


SAME = ["reading", "key", "by", "protocol", "effect", "control"]
"""Columns that rows of replicates share."""


def over_seeds(table: pd.DataFrame, by: str, value: str) -> pd.DataFrame:
    """Means over the rows of a group, with the interval over its models; one model has none."""
    rows = []
    for keys, part in table.groupby([by, *SAME], sort=False):
        found = mean_interval(part[value]) if len(part) > 1 else Estimate(part[value].iloc[0], np.nan, np.nan)
        means = {name: part[name].mean() for name in (*MEASURES, "causal", "twin") if name in part}
        rows.append(
            dict(zip((by, *SAME), keys, strict=True)) | {"models": len(part)} | bounded(value, *found) | means
        )
    return pd.DataFrame(rows)


def contrasts(results: Results) -> pd.DataFrame:
    """What a causal model loses less what its twin does, under the same protocol and on the tokens that both were scored on."""
    causal = {(read.model, read.setting): read for read in results.masked if read.causal}
    rows = []
    for read in results.masked:
        twin, setting = results.models[read.model].twin, read.setting
        # A twin's score is its attention from all queries relative to uniform, which is the sum.
        for by in ("", "received", "sum", "newest", "distant"):
            other = causal.get(
                (twin, Setting(setting.key, by, setting.protocol, setting.effect, setting.control))
            )
            if read.causal or other is None:
                continue
            tokens = {passage: set(nats) for passage, nats in read.nats.items()}
            losses = pd.DataFrame({
                "causal": other.lost(results.none[twin, other.reading], tokens),
                "twin": read.lost(
                    results.none[read.model, read.reading], {passage: set(nats) for passage, nats in other.nats.items()}
                ),
            }).dropna()  # fmt: skip
            found = mean_difference(losses["causal"], losses["twin"])
            rows.append({
                "pair": f"{twin} − {read.model}", "group": f"{results.group(twin)} − {results.group(read.model)}",
                "reading": read.reading, **setting.columns(), "by": by, "passages": len(losses),
                "causal": losses["causal"].mean(), "twin": losses["twin"].mean(), **bounded("contrast", *found),
            })  # fmt: skip
    return pd.DataFrame(rows)


# ---- the page --------------------------------------------------------------------------------------

COLUMNS = (
    ("SmolLM2", "smollm2", "reading"),
    ("continued", "continued, all weights", "reading"),
    ("twin, own order", "twin, all weights", "order"),
    ("twin, half masked", "twin, all weights", "half"),
)
"""Heading, group and reading of each column."""


def rows_of() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Protocol, words and setting of each row of the page's table."""
    for protocol in PROTOCOLS:
        hidden = {"control": "", "effect": "hide"}
        for key, by in KEYS.items():
            yield protocol, key, {"key": key, "by": by, **hidden}
        for key, by, words in VARIANTS:
            yield protocol, words, {"key": key, "by": by, **hidden}
        for match, words in (
            ("count", "a random key"),
            ("mass", "random keys with as much attention, as near as it gets"),
        ):
            yield protocol, words, {"key": KEY, "by": KEYS[KEY], "control": match, "effect": "hide"}
        for key in (FIRST, SINK, KEY):
            silenced = {"key": key, "by": KEYS[key], "control": "", "effect": "silence"}
            yield protocol, f"{key}, silenced", silenced


def _chosen(table: pd.DataFrame, wanted: Mapping[str, str]) -> pd.DataFrame:
    """The rows of a setting; twins have one score, and stand in the rows of a causal model's main ones."""
    for name in ("key", "control", "effect"):
        table = table[table[name] == wanted[name]]
    main = KEYS[wanted["key"]] == wanted["by"]
    return table[(table["by"] == wanted["by"]) | ((table["by"] == "") & main)]


def markdown(seeds: pd.DataFrame, single: pd.DataFrame, contrast: pd.DataFrame) -> list[str]:
    """The page's table. Intervals are over seeds, of SmolLM2 over passages."""
    pair = f"{COLUMNS[1][1]} − {COLUMNS[2][1]}"
    sources = [
        (single if group == "smollm2" else seeds, group, reading, "lost") for _, group, reading in COLUMNS
    ]
    sources += [(contrast, pair, reading, "contrast") for _, _, reading in COLUMNS[2:]]
    heads = [name for name, _, _ in COLUMNS] + [f"continued − {name}" for name, _, _ in COLUMNS[2:]]
    lines = [
        f"| nats per token lost; attention removed | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for protocol, words, wanted in rows_of():
        cells = []
        for table, group, reading, value in sources:
            mine = table[(table["group"] == group) & (table["reading"] == reading)]
            found = _chosen(mine[mine["protocol"] == protocol], wanted)
            cells.append(_cell(found, value) if len(found) else "")
        if any(cells):
            title = f"**{PROTOCOLS[protocol]}**: {words}" if words == FIRST else words
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def _cell(found: pd.DataFrame, name: str) -> str:
    row = found.iloc[0]
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    text = _signed(row[name]) + ("" if np.isnan(low) else f" [{_plain(low)}, {_plain(high)}]")
    share = row.get("hidden_share", np.nan)
    return text if np.isnan(share) else f"{text}; {share:.0%}".replace("%", " %")


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _plain(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def put_between(page: Path, lines: Sequence[str]) -> None:
    """Replaces what stands between the marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"{page} has no line {BEGIN} with {END} behind it")
    text = "\n".join([before + BEGIN, *lines, END])
    page.write_text(text + after, encoding="utf-8")


# ---- the picture -----------------------------------------------------------------------------------

CAUSAL, TWIN, HALF, NOTE = "#0072B2", "#D55E00", "#009E73", "#666666"
SERIES = (
    ("continued, all weights", "reading", "SmolLM2 continued", CAUSAL, 0.2),
    ("twin, all weights", "order", "its diffusion twin, own order", TWIN, 0.0),
    ("twin, all weights", "half", "twin, half of the text masked", HALF, -0.2),
)
"""Group, reading, words, colour, and place beside the row's line."""


def draw(seeds: pd.DataFrame) -> Figure:
    """A panel for each protocol, a row for each key; lines are intervals over seeds."""
    shown = [(key, "") for key in KEYS] + [(KEY, "mass")]
    with look.style():
        figure, axes = look.sheet(1, len(PROTOCOLS), look.PAGE, 2.9, sharex=True)
        for place, (axis, protocol) in enumerate(zip(axes.flat, PROTOCOLS, strict=True)):
            axis.axvline(0, color="#999999", linewidth=0.5)
            for group, reading, words, colour, shift in SERIES:
                mine = seeds[(seeds["group"] == group) & (seeds["reading"] == reading)]
                mine = mine[mine["protocol"] == protocol]
                for row, (key, control) in enumerate(shown):
                    wanted = {"key": key, "control": control, "effect": "hide", "by": KEYS[key]}
                    found = _chosen(mine, wanted)
                    if len(found):
                        one, y = found.iloc[0], len(shown) - row + shift
                        axis.plot([one["lost_low"], one["lost_high"]], [y, y], color=colour, linewidth=1.2)
                        label = words if row == 0 else None
                        axis.plot([one["lost"]], [y], "o", color=colour, markersize=4, label=label)
            axis.set_title("\n".join(wrap(PROTOCOLS[protocol], 26)), pad=6)
            axis.set(xlabel="nats per token lost", ylim=(0.4, len(shown) + 0.6))
            names = [
                "random keys with as much\nattention, as near as it gets" if control else key
                for key, control in shown
            ]
            axis.set_yticks(range(len(shown), 0, -1), names if place == 0 else [""] * len(shown))
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(SERIES), frameon=False)
    return figure


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="+", type=Path, help="folders of the study, or of its parts")
    parser.add_argument(
        "--study", type=Path, default=STUDY, help="the file that names models, groups and twins"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--docs", type=Path, help="the page whose table is made anew")
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    models = {model.name: model for model in spec.read(given.study).models}
    results = Results(tuple(records(given.studies)), models)
    single, contrast = costs(results), contrasts(results)
    seeds, contrast_seeds = over_seeds(single, "group", "lost"), over_seeds(contrast, "group", "contrast")
    given.out.mkdir(parents=True, exist_ok=True)
    tables: dict[str, Any] = {
        "costs": single,
        "seeds": seeds,
        "contrasts": contrast,
        "contrasts-seeds": contrast_seeds,
    }
    for name, table in tables.items():
        table.to_csv(given.out / f"{name}.csv", index=False, float_format="%.5g")
        print(f"{name}: {len(table)} rows")
    lines = markdown(seeds, single, contrast_seeds)
    print(*lines, sep="\n")
    if given.docs is not None:
        put_between(given.docs, lines)
    if given.picture is not None:
        draw(seeds).savefig(given.picture, dpi=200)
        few_colours(given.picture)


if __name__ == "__main__":
    main()
