"""The tutorials run from top to bottom, each in a kernel and a folder of its own, and print what they are about.

What is stored in a notebook is what a reader of the site sees; the tests run the code again and look at the new output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from sinkscope.models.fetched import find_fetched

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"


def numbers(text: str, line: str) -> list[float]:
    """The numbers of the first line of a notebook's output that begins with a word and goes on with a number."""
    found = re.search(rf"^\W*{re.escape(line)}\s+(-?\d.*)$", text, re.MULTILINE)
    assert found, f"no line {line!r} in:\n{text}"
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?![\w.])", found[1])]


def your_models_sinks(text: str) -> None:
    assert "True" in text  # the self-check
    assert "#### 47" in text
    assert "head-steps have a sink" in text


def a_policy_of_your_own(text: str) -> None:
    assert "rank:2@layer | rank:2@layer,effect=silence | random(rank:2)" in text
    assert "no policy: 47" in text
    assert re.search(r"rank:0\s+\d+\s+False", text)
    assert re.search(r"rank:16\s+47\s+True", text)
    assert numbers(text, "none")[0] == 1.0 > numbers(text, "rank:0")[0]


def a_task_of_your_own(text: str) -> None:
    plain, masked, control = (numbers(text, policy)[0] for policy in ("none", "top:1", "random(top:1)"))
    assert plain >= 0.75 > masked
    assert control > masked
    assert "#### 22" in text
    assert "('stock', 'stock/1', 'plain')" in text


def causal_against_diffusion(text: str) -> None:
    causal, diffusion = numbers(text, "on the first 4 positions")[:2]
    assert causal > 2 * diffusion  # the first-token sink of the causal organism, on English
    assert numbers(text, "organism/causal")[0] > 6.5
    if find_fetched("smollm2") is None:
        assert "left out, SmolLM2" in text
        assert "no model here reads English well enough" in text
    else:
        cost = numbers(text, "smollm2: hiding each head's strongest key costs")[0]
        assert cost > 0.5 > numbers(text, "a random key")[0]


def from_a_trace_to_a_figure(text: str) -> None:
    assert "#### 8" in text
    assert re.search(r"┆ count\s+┆ received ┆ most frequent", text)  # polars' own table
    assert text.count("image/png") == 2


def reproduce_the_paper(text: str) -> None:
    hours = re.search(r"^all +(\d+) +\d+ +\d+ ", text, re.MULTILINE)
    assert hours
    assert 100 < int(hours[1]) < 400  # of an H200
    assert numbers(text, "collapse")[1] == 64
    assert numbers(text, "gsm8k     Dream-7B")[-4:] == [0.82, 0.79, 0.78, 0.75]
    assert numbers(text, "none")[0] == 1.0 > numbers(text, "top:1")[0]


def what_a_sink_holds(text: str) -> None:
    assert [line.split("####")[1].strip() for line in text.splitlines() if "####" in line] == [
        "48",
        "35",
        "47",
        "5",
    ]
    for row in ("0  value         mean", "1  value      nothing", "2    key     ordinary"):
        at_sinks, at_random = numbers(text, row)[:2]
        assert at_sinks > 0.5 > at_random
    assert "Estimate(value=" in text


def with_other_tools(text: str) -> None:
    assert "nnsight reads what the hook saw: True" in text
    assert "and the same logits: True" in text
    assert numbers(text, "6'")[0] > 0.1 > numbers(text, "sells'")[0]
    difference = re.search(r"8 patterns, .* largest difference ([\d.e+-]+)", text)
    assert difference
    assert float(difference[1]) < 1e-5
    assert "every row sums to 1: True" in text
    assert "'attention': (8, 8, 55, 55)" in text
    assert "{'none': 1.0, 'top:1': 0.25}" in text


CHECKS: dict[str, Callable[[str], None]] = {
    check.__name__.replace("_", "-"): check
    for check in (
        your_models_sinks, a_policy_of_your_own, a_task_of_your_own, causal_against_diffusion, from_a_trace_to_a_figure,
        reproduce_the_paper, what_a_sink_holds, with_other_tools,
    )
}  # fmt: skip


def printed(notebook: Any) -> str:
    """What the code cells show: texts, and the kinds of pictures."""
    parts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            parts += [
                output.get("text", ""),
                data.get("text/plain", ""),
                "image/png" if "image/png" in data else "",
            ]
    return "\n".join(filter(None, parts))


def test_every_tutorial_has_a_check() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(CHECKS)


def halved(source: str) -> str:
    """The code with half as many documents in every evaluation of four or more."""
    return re.sub(r"\blimit=([4-9])\b", lambda found: f"limit={int(found[1]) // 2}", source)


@pytest.mark.parametrize(
    "size", [pytest.param("half", marks=pytest.mark.slow), pytest.param("whole", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("name", CHECKS)
def test_a_tutorial_runs_and_shows_what_it_says(
    name: str, size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With half of the documents, and in the soak with all of them; what it prints holds with either."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "200")
    source = str(FOLDER.parents[1] / "src")
    monkeypatch.setenv("PYTHONPATH", source + os.pathsep + os.environ.get("PYTHONPATH", ""))
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells if size == "half" else ():
        cell.source = halved(cell.source)
    client = nbclient.NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    CHECKS[name](printed(notebook))


@pytest.mark.parametrize("name", CHECKS)
def test_the_stored_output_is_of_the_whole_tutorial(name: str) -> None:
    """What the site shows passes the same checks, and is of a machine on which nothing was left out."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    text = printed(notebook)
    assert "left out" not in text
    assert "not installed" not in text
    if name != "causal-against-diffusion":
        CHECKS[name](text)


def test_smollm2_was_there_for_its_part_of_the_tutorial() -> None:
    if find_fetched("smollm2") is None:
        pytest.skip(
            "SmolLM2 is not here (sinkscope fetch smollm2): its part of causal-against-diffusion is left out"
        )
