"""report.html: plain, complete, one file, no network, and nothing in it but escaped text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from sinkscope.study.shipped import Shipped
from sinkscope.study.spec import Study

if TYPE_CHECKING:
    import pandas as pd

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { padding: .2rem .6rem; text-align: left; border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
td.number { text-align: right; white-space: nowrap; }
figure { margin: 1rem 0; } figcaption, .note { opacity: .8; } pre { overflow-x: auto; }
@media print { table { display: table; font-size: 10px; } }
"""

SHOWN = (
    ("policy", "policy"), ("n", "n"), ("accuracy", "accuracy"), ("interval", "Wilson 95 %"), ("difference", "− none"),
    ("difference_interval", "paired 95 %"), ("difference_p_holm", "p (Holm)"), ("control_accuracy", "control"),
    ("over_control", "− control"), ("over_interval", "paired 95 %"), ("hidden_share", "attention hidden"),
    ("control_hidden_share", "by the control"), ("sinks_hit", "sinks hit"), ("key_share", "keys"),
)  # fmt: skip

LIMITS = (
    "Losing accuracy when keys are hidden does not show that a sink matters, unless the control with as many other keys keeps "
    "its accuracy. Hiding a key removes its information and spreads its attention over the others; silencing it only removes "
    "its information. The control here takes as many keys, not as much attention, unless its name says match=mass."
)


def report(
    study: Study,
    tables: Mapping[str, pd.DataFrame],
    notes: Sequence[str],
    shipped: Sequence[Shipped],
    manifest: Mapping[str, Any],
    figures: Sequence[tuple[str, str]] = (),
) -> str:
    """The page. `figures`: path from the page, caption."""
    parts = [f"<h1>sinkscope study: {escape(study.name)}</h1>", f"<p>{escape(study.about)}</p>"]
    parts += _diagnosis(tables)
    parts += _results(tables, notes)
    parts += _shipped(shipped)
    if "sinks" in tables:
        parts += [
            "<h2>Sinks in the traces</h2>",
            *_by_model(tables["sinks"], ("section", "measure", "value", "low", "high", "unit", "note")),
        ]
    if "depth" in tables:
        numbers = [name for name in tables["depth"].columns if name not in _settings(tables["depth"])]
        parts += ["<h2>By layer</h2>", *_by_model(tables["depth"], tuple(map(str, numbers)))]
    for name, title in (
        ("replay", "Replay: single steps with and without a policy"),
        ("pairs", "Traces with and without a policy"),
    ):
        if name in tables:
            parts += [f"<h2>{title}</h2>", html_table(tables[name])]
    if figures:
        parts.append("<h2>Figures</h2>")
        parts += [_figure(path, text) for path, text in figures]
    parts += _provenance(study, manifest)
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>sinkscope: {escape(study.name)}</title>"
    head += "<meta name=viewport content='width=device-width'>"
    allowed = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' file: data:"
    head += f'<meta http-equiv=Content-Security-Policy content="{allowed}">'
    return f"{head}<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"


def _figure(path: str, text: str) -> str:
    where, words = escape(path, quote=True), escape(text, quote=True)
    return f'<figure><img src="{where}" alt="{words}"><figcaption>{words}</figcaption></figure>'


def _settings(frame: pd.DataFrame) -> set[str]:
    return {
        "traces", "samples", "model", "family", "dtype", "weights", "task", "task_version", "scheme", "decoding_name",
        "decoding", "policy", "seeds", "cell",
    } & set(map(str, frame.columns))  # fmt: skip


def _diagnosis(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    if "diagnosis" not in tables:
        return []
    parts = ["<h2>Diagnosis</h2>"]
    for model, own in tables["diagnosis"].groupby("model", sort=False):
        said = "; ".join(f"{row['question']}: {row['verdict']}" for row in own.to_dict("records"))
        parts.append(f"<h3>{escape(str(model))}</h3><p>{escape(said)}</p>")
        parts.append(html_table(own[["question", "verdict", "evidence", "thresholds"]]))
    return parts


def _results(tables: Mapping[str, pd.DataFrame], notes: Sequence[str]) -> list[str]:
    if "results" not in tables:
        return []
    parts = ["<h2>Accuracy under policies</h2>", f"<p class=note>{escape(LIMITS)}</p>"]
    for key, own in tables["results"].groupby(["task", "model", "decoding_name"], sort=False):
        task, model, name = key
        parts.append(f"<h3>{escape(f'{model} · {task} · {name}')}</h3>")
        parts.append(f"<p class=note>{escape(setting(own.iloc[0].to_dict()))}</p>")
        rows = [[shown(row, column) for column, _ in SHOWN] for row in own.to_dict("records")]
        parts.append(_table([title for _, title in SHOWN], rows))
    parts.append("<ul class=note>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>")
    return parts


def setting(row: Mapping[Any, Any]) -> str:
    """The settings of a row in a line."""
    return (
        f"{row['family']}, {row['dtype']}, weights {str(row['weights'])[:12]}; {row['task_version']}, scheme {row['scheme']}; "
        f"{row['decoding']}; seeds {row['seeds']}; smallest detectable difference {_number(row.get('detectable'))}"
    )


def shown(row: Mapping[Any, Any], column: str) -> str:
    """One number of the result table as text."""
    pairs = {
        "interval": ("low", "high", ""), "difference_interval": ("difference_low", "difference_high", "+"),
        "over_interval": ("over_control_low", "over_control_high", "+"),
    }  # fmt: skip
    if column in pairs:
        low, high, sign = pairs[column]
        if _missing(row.get(low)):
            return ""
        return f"{row[low]:{sign}.2f} to {row[high]:{sign}.2f}"
    value = row.get(column)
    if _missing(value):
        return ""
    if column in ("difference", "over_control"):
        return f"{value:+.3f}"
    if column in ("hidden_share", "control_hidden_share", "sinks_hit", "key_share"):
        return f"{value:.1%}"
    if column == "control_accuracy":
        return f"{value:.3f} ({int(row['control_draws'])}×)"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _shipped(shipped: Sequence[Shipped]) -> list[str]:
    parts = ["<h2>Shipped full-size results</h2>"]
    if not shipped:
        return [*parts, "<p>No full-size results ship with these models.</p>"]
    parts.append("<p class=note>These were not computed here: they came with the package.</p>")
    columns = (
        "model", "task", "policy", "n", "draws", "accuracy", "low", "high", "difference", "difference_low", "difference_high",
        "effect_count", "effect_count_low", "effect_count_high", "hidden_share", "sinks_hit", "decoding",
    )  # fmt: skip
    for one in shipped:
        kept = [name for name in columns if any(not _missing(row.get(name)) for row in one.rows)]
        rows = [[_cell(row.get(name)) for name in kept] for row in one.rows]
        parts.append(f"<h3>{escape(one.rows[0]['model'] if one.rows else '')}: {escape(one.label)}</h3>")
        parts.append(_table(kept, rows))
    return parts


def _by_model(frame: pd.DataFrame, columns: tuple[str, ...]) -> list[str]:
    parts = []
    for key, own in frame.groupby(["model", "traces", "decoding_name", "policy"], sort=False):
        title = " · ".join(map(str, key if isinstance(key, tuple) else (key,)))
        many = f"{own['samples'].iloc[0]} traces"
        parts.append(
            f"<details><summary>{escape(title)} ({many})</summary>{html_table(own[list(columns)])}</details>"
        )
    return parts


def _provenance(study: Study, manifest: Mapping[str, Any]) -> list[str]:
    import json

    from sinkscope.study.spec import to_toml

    return [
        "<h2>Settings and provenance</h2>",
        "<p>Data: <a href=tables/results.csv>tables/results.csv</a> and the other files in <code>tables/</code>.</p>",
        f"<details><summary>study.toml</summary><pre>{escape(to_toml(study))}</pre></details>",
        f"<details open><summary>manifest.json</summary><pre>{escape(json.dumps(manifest, indent=1))}</pre></details>",
    ]


def html_table(frame: pd.DataFrame) -> str:
    """Any table, escaped."""
    rows = [[_cell(value) for value in row] for row in frame.itertuples(index=False, name=None)]
    return _table([str(name) for name in frame.columns], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th scope=col>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(_td(value) for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _td(text: str) -> str:
    number = text[:1] in "+-−0123456789" and text[:1] != "" and len(text) < 24
    return f"<td class=number>{escape(text)}</td>" if number else f"<td>{escape(text)}</td>"


def _cell(value: Any) -> str:
    if _missing(value):
        return ""
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: Any) -> str:
    return "" if _missing(value) else f"{float(value):.4g}"


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
