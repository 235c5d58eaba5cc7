"""Every figure is drawn from its table, saves as SVG, PDF, CSV and caption, and its numbers are those of the analysis."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.report import pages
from tests.sinks import synthetic

from sinkscope.base.errors import InputError
from sinkscope.report.figures import FIGURES, MAPS, TOGETHER, make, save_all
from sinkscope.report.figures.look import RAMP, received_norm
from sinkscope.sinks import filtered_share, layer_head_map, moves, paths, step_position_map


@pytest.fixture(scope="module")
def maps():
    """A small trace with whole maps; the sink moves with the block, and jumps back at the end."""
    return synthetic.trace(
        synthetic.moving_right(), lengths=(9,), answer=16, block=4, layers=2, heads=2, maps=True, seed=4
    )


@pytest.fixture(scope="module")
def saved(maps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return folder, save_all({"planted": maps}, folder)


@pytest.mark.slow
def test_every_figure_of_the_paper_is_made(saved):
    folder, made = saved
    assert made.left_out == {}
    assert set(made.files) == set(FIGURES)
    assert {int(name.split("_")[1]) for name in FIGURES if name.startswith("figure")} == {1, *range(3, 11)}
    for name in FIGURES:
        for ending in ("svg", "pdf", "csv", "txt"):
            assert (folder / f"{name}.{ending}").stat().st_size > 100, (name, ending)


@pytest.mark.slow
def test_fonts_are_embedded(saved):
    folder, _ = saved
    for name in FIGURES:
        pdf = (folder / f"{name}.pdf").read_bytes()
        assert b"/FontFile2" in pdf, "TrueType, embedded"
        assert b"/Subtype /Type3" not in pdf
        svg = ET.parse(folder / f"{name}.svg").getroot()
        assert not list(svg.iter("{http://www.w3.org/2000/svg}text")), "letters are outlines"


@pytest.mark.slow
def test_captions_say_what_is_seen_how_and_what_not(saved):
    folder, _ = saved
    for name in FIGURES:
        words = (folder / f"{name}.txt").read_text(encoding="utf-8")
        seen, rest = words.split(" Computed: ")
        computed, missing = rest.split(" Not shown: ")
        assert min(len(seen), len(computed), len(missing)) > 40, name


def test_the_data_behind_are_those_of_the_analysis(maps):
    heat = make("figure_1", {"planted": maps}).table
    wanted = step_position_map(maps).values[0]
    assert np.allclose(heat.pivot_table(index="step", columns="position", values="received").values, wanted)
    grid = make("figure_5", maps).table.pivot_table(index="layer", columns="head", values="main_sink")
    assert np.allclose(grid.values, layer_head_map(maps).values[0])
    share = make("figure_10", maps).table
    assert np.allclose(share["share"], filtered_share(maps).values[0])
    line = make("figure_7", maps).table
    assert np.array_equal(
        line["position"], paths(maps)["position"].isel(sample=0).sel(layer=line["layer"][0], head=line["head"][0])
    )
    counts = make("figure_3", maps).table
    assert counts["count"].sum() == maps["received"].notnull().sum()


def test_figure_4_shows_a_real_move_as_it_is_in_the_trace(maps):
    table = make("figure_4", maps).table
    first, second = (part for _, part in table.groupby("step"))
    layer, head = int(first["layer"].iloc[0]), int(first["head"].iloc[0])
    step = int(first["step"].iloc[0])
    assert int(second["step"].iloc[0]) == step + 1
    found = moves(maps)
    row = found[(found["layer"] == layer) & (found["head"] == head) & (found["step"] == step)].iloc[0]
    assert int(first["mark"].iloc[0]) == row["from_position"]
    assert int(second["mark"].iloc[0]) == row["to_position"]
    wanted = maps["attention"].isel(sample=0, step=step, layer=layer, head=head).values
    assert np.allclose(first.pivot_table(index="query", columns="key", values="attention").values, wanted)


def test_figure_6_finds_planted_split_sinks():
    data = synthetic.trace("none", lengths=(8,), answer=12, layers=2, heads=2, maps=True, seed=5)
    attention = data["attention"].values.copy()
    masked = data["masked"].values[0]
    position, region = data["position"].values[0], data["region"].values[0]
    for t in range(len(masked)):
        rows = np.where(masked[t])[0], np.where(~masked[t] & (region == "answer"))[0]
        for queries, place in zip(rows, (2, 5), strict=True):
            attention[0, t, 1, 0, queries] = 0.2 / len(position)
            attention[0, t, 1, 0, queries, int(np.flatnonzero(position == place)[0])] = 0.8
    data["attention"] = (data["attention"].dims, attention)
    drawing = make("figure_6", data)
    panel = drawing.table[drawing.table["panel"].str.startswith("(a)")]
    assert (int(panel["layer"].iloc[0]), int(panel["head"].iloc[0])) == (1, 0)
    assert set(panel["mark"]) == {2, 5}
    assert "still masked have their sink at position 2" in drawing.caption


@pytest.mark.parametrize("name", MAPS)
def test_figures_of_whole_maps_say_what_they_need(name):
    with pytest.raises(InputError, match="level maps"):
        make(name, pages.diffusion())


@pytest.mark.slow
def test_several_traces_share_figures_and_get_their_own(tmp_path: Path):
    traces = {"org/a": pages.diffusion(), "causal": pages.causal()}
    made = save_all(traces, tmp_path, only=["figure_1", "figure_3", "figure_5", "figure_9"])
    assert set(made.files) == {"figure_1", "figure_3", "figure_5", "figure_9"}
    assert (tmp_path / "figure_3_org-a.svg").exists()
    assert (tmp_path / "figure_3_causal.svg").exists()
    table = pd.read_csv(tmp_path / "figure_1.csv")
    assert set(table["trace"]) == set(traces)
    assert {"figure_1", "figure_9"} < set(TOGETHER)
    assert set(pd.read_csv(tmp_path / "figure_5.csv")["trace"]) == set(traces)


@pytest.mark.slow
def test_the_same_data_give_the_same_file(maps, tmp_path):
    for folder in ("a", "b"):
        make("figure_10", maps).save(tmp_path / folder)
    for ending in ("svg", "pdf", "csv", "txt"):
        assert (tmp_path / "a" / f"figure_10.{ending}").read_bytes() == (
            tmp_path / "b" / f"figure_10.{ending}"
        ).read_bytes()


def test_a_figure_that_there_is_not_is_named(maps, tmp_path):
    with pytest.raises(InputError, match="did you mean"):
        make("figure_11", maps)
    assert save_all({}, tmp_path, only=["figure_1"]).left_out == {"figure_1": "it needs a trace"}


def test_colours_are_those_of_the_viewer_and_can_be_inverted():
    from importlib.resources import files

    script = (files("sinkscope.report") / "viewer" / "colour.js").read_text(encoding="utf-8")
    assert tuple(re.findall(r'"(#[0-9a-f]{6})"', re.search(r"light: \[(.*?)\]", script)[1])) == RAMP
    norm = received_norm(40.0)
    values = np.array([0.0, 0.5, 1.0, 2.0, 8.0, 40.0])
    assert np.allclose(norm.inverse(norm(values)), values)
    assert norm(1.0) == pytest.approx(float(re.search(r"PALE = ([0-9.]+)", script)[1]))
