"""What a notebook shows for our results: a picture or a table, never a raw dataclass, and nothing of a token is markup."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.report import pages

import sinkscope as ss
from sinkscope.report.figures import make
from sinkscope.trace.trace import Trace

PICTURE = re.compile(r'<img alt="[^"]+" src="data:image/png;base64,[A-Za-z0-9+/=]{2000,}"')


@pytest.fixture(scope="module")
def run():
    ids = torch.tensor([[5, 9, 2, 30, 41, 7]])
    return ss.generate(
        golden.model("llada"), ids, ss.LladaDecoding(8, 4, 4), policy=ss.MaskTop(1), capture=ss.Capture(), seed=0,
    )  # fmt: skip


def test_a_trace_is_facts_and_a_picture_with_axes():
    page = Trace(dataset=pages.hostile())._repr_html_()
    assert PICTURE.search(page)
    assert "sinkscope trace" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_run_is_its_answers_and_its_trace(run):
    page = run._repr_html_()
    assert "answer 0" in page
    assert "attention removed" in page
    assert PICTURE.search(page)
    assert repr(run).startswith("<sinkscope run: 1 × 14 tokens, 4 steps, policy top:1, traced>")


def test_a_summary_printed_shows_its_values(run):
    table = ss.summary(run.trace)
    text = str(table)
    assert "..." not in text
    shown = table["section"].isin(("where", "strength")).sum()
    assert len(text.splitlines()) == shown + 2
    assert text.endswith(f"\n{len(table) - shown} more rows: .to_string()")
    value = table.loc[table["measure"] == "sinks per head", "value"].iloc[0]
    assert f"{value:.3g}" in text
    assert isinstance(table[table["section"] == "where"], type(table))
    assert "<table" in table._repr_html_()


def test_a_diagnosis_and_a_check_are_tables(run):
    page = ss.diagnose(run.trace)._repr_html_()
    assert "drains or hubs" in page
    assert page.count("<tr>") >= 6
    check = golden.model("llada").check()
    assert "self-check of" in check._repr_html_()
    assert str(check).count("\n") == len(check.findings)


def test_a_figure_is_a_picture_with_its_caption():
    figure = make("figure_10", pages.diffusion())
    assert PICTURE.search(figure._repr_html_())
    assert "Not shown: " in figure._repr_html_()
    assert repr(figure) == f"<figure_10: {figure.title}; table of {len(figure.table)} rows>"


@pytest.mark.slow
def test_an_exported_notebook_keeps_a_picture_of_the_widget():
    widget = Trace(dataset=pages.diffusion()).to_widget(other=Trace(dataset=pages.causal()))
    bundle = widget._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "application/vnd.jupyter.widget-view+json" in data
    assert len(PICTURE.findall(data["text/html"])) == 2


def test_infinite_scores_are_explained(tmp_path):
    data = pages.diffusion()
    values = data["received"].values.copy()
    values[0, 3, 1, 2, 20] = np.inf
    with pytest.raises(ss.InputError, match="infinite scores in 'received'"):
        Trace(dataset=data.assign(received=(data["received"].dims, values))).to_html(tmp_path / "t.html")
