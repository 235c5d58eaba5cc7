"""The tutorials run from top to bottom, each in a folder of its own, and print what they are about.

`make test` runs them one after the other in a kernel that forgets all names in between and keeps what was imported, `make soak`
each in a kernel of its own.

What is stored in a notebook is what a reader of the site sees; the tests run the code again and look at the new output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from jupyter_client.manager import KernelManager, start_new_kernel

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
    assert "heads and steps have a sink" in text


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
    if "left out, SmolLM2" in text:
        assert "no model here reads English well enough" in text
    else:
        cost = numbers(text, "smollm2: hiding each head's strongest key costs")[0]
        assert cost > 0.5 > numbers(text, "a random key")[0]


def from_a_trace_to_a_figure(text: str) -> None:
    assert "#### 8" in text
    assert re.search(r"┆ count\s+┆ received ┆ most frequent", text)  # polars' own table
    assert text.count("image/png") == 2


def reproduce_the_paper(text: str) -> None:
    assert re.search(r"^all +674 +924,626 +257,781,504 ", text, re.MULTILINE)
    assert numbers(text, "gsm8k     Dream-7B")[-4:] == [0.82, 0.79, 0.78, 0.75]
    assert numbers(text, "none")[0] == 1.0 > numbers(text, "top:1")[0]


def what_a_sink_holds(text: str) -> None:
    assert [line.split("####")[1].strip() for line in text.splitlines() if "####" in line] == ["48", "35", "47", "5"]
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
            parts += [output.get("text", ""), data.get("text/plain", ""), "image/png" if "image/png" in data else ""]
    return "\n".join(filter(None, parts))


def test_every_tutorial_has_a_check() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(CHECKS)


def shortened(source: str) -> str:
    """The code with two documents in every evaluation, and with 16 steps in every answer of 64 tokens."""
    source = re.sub(r"\blimit=[3-9]\b", "limit=2", source)
    source = re.sub(r"\blength=64, (?:steps=32, )?block", "length=64, steps=16, block", source)
    # What is said here in full is the task's own decoding, but for the steps.
    few = "ss.LladaDecoding(length=64, steps=16, block=32)"
    return re.sub(r'(\bevaluate\(model, "word_problems"), policy=', rf"\1, {few}, policy=", source)


@contextmanager
def running_kernel(**more: str) -> Iterator[KernelManager]:
    """A kernel that finds this checkout; more: variables of its environment."""
    source = str(FOLDER.parents[1] / "src")
    path = source + os.pathsep + os.environ.get("PYTHONPATH", "")
    manager, client = start_new_kernel(
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": path, **more}
    )
    client.stop_channels()
    try:
        yield manager
    finally:
        manager.shutdown_kernel(now=True)


def execute(kernel: KernelManager, source: Path, folder: Path, change: Callable[[str], str]) -> Any:
    """The notebook after a run in an empty folder, by a kernel that knows no names."""
    notebook = nbformat.read(source, as_version=4)
    for cell in notebook.cells:
        cell.source = change(cell.source)
    begin = f"%reset -f\nimport os\nos.chdir({str(folder)!r})\ndel os"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(begin))
    nbclient.NotebookClient(notebook, km=kernel, timeout=280).execute()
    return notebook


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelManager]:
    """One for all tutorials: most of the time of a new one goes into imports. It knows no fetched model, as most machines."""
    with running_kernel(SINKSCOPE_CACHE=str(tmp_path_factory.mktemp("cache"))) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_a_tutorial_runs_and_shows_what_it_says(name: str, kernel: KernelManager, tmp_path: Path) -> None:
    """With two documents in every evaluation and few steps, and in the soak as it is; what it prints holds with either."""
    CHECKS[name](printed(execute(kernel, FOLDER / f"{name}.ipynb", tmp_path, shortened)))


@pytest.mark.soak
@pytest.mark.parametrize("name", CHECKS)
def test_a_whole_tutorial_in_a_kernel_of_its_own(name: str, tmp_path: Path) -> None:
    with running_kernel() as fresh:
        text = printed(execute(fresh, FOLDER / f"{name}.ipynb", tmp_path, str))
    CHECKS[name](text)
    assert "left out, SmolLM2" not in text or find_fetched() is None


@pytest.mark.parametrize("name", CHECKS)
def test_the_stored_output_is_of_the_whole_tutorial(name: str) -> None:
    """What the site shows passes the same checks, and is of a machine on which nothing was left out."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    text = printed(notebook)
    assert "left out" not in text
    assert "not installed" not in text
    if name != "causal-against-diffusion":
        CHECKS[name](text)
