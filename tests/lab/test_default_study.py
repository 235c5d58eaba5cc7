"""The default study's numbers in README and in the table of verdicts are those that were kept, and every change has a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.report.studies import make

from lab import default_study
from sinkscope.report.study.claims import CLAIMS, judge
from sinkscope.report.study.evidence import collect
from sinkscope.report.study.rules import CONTRADICTED, OPEN, SUPPORTED
from sinkscope.report.study.source import read
from sinkscope.statistics import minimal_detectable_effect

README = Path(__file__).resolve().parents[2] / "README.md"
COLUMNS = (
    ("none", "none"), ("top:1", "top-1"), ("top:5", "top-5"), ("top:10", "top-10"), ("top:1@model", "top-1, same key"),
    ("top:1,effect=silence", "top-1 silenced"),
)  # fmt: skip
"""The policy of each column of README's table, and how its title begins."""


def newest() -> dict:
    return default_study.load()["runs"][-1]


def shown(text: str) -> dict[str, dict[str, tuple[str, str]]]:
    """README's table: model → policy → (accuracy, that of the control or "")."""
    lines = text[text.index("| model | none |") :].splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("|"))
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[:end])
    for title, (_, beginning) in zip(head[1:], COLUMNS, strict=True):
        assert title.startswith(beginning)
    found = {}
    for model, *cells in rows:
        numbers = [re.fullmatch(r"([\d.]+)(?: \(([\d.]+)\))?", cell) for cell in cells]
        assert None not in numbers, cells
        told = [(number[1], number[2] or "") for number in numbers if number is not None]
        found[re.findall(r"`(.+?)`", model)[0]] = dict(
            zip((policy for policy, _ in COLUMNS), told, strict=True)
        )
    return found


def kept(model: str, policy: str) -> tuple[str, str]:
    """As README writes it: the accuracy, and that of the count-matched control where it was run."""
    accuracies = newest()["accuracies"]["word_problems"][model]
    control = accuracies.get(f"random({policy})")
    return f"{accuracies[policy]:.2f}", "" if control is None else f"{control:.2f}"


def test_every_number_of_readmes_table_is_that_of_the_study():
    text = README.read_text(encoding="utf-8")
    found = shown(text)
    assert set(found) == set(newest()["accuracies"]["word_problems"])
    for model, numbers in found.items():
        for policy, told in numbers.items():
            assert told == kept(model, policy), (model, policy)
    documents = newest()["documents"]
    assert f"accuracy on {documents} documents" in " ".join(text.split())
    seen = [minimal_detectable_effect(documents, accuracy) for accuracy in (0.95, 0.5)]
    assert f"about {seen[0]:.2f} near an accuracy of 0.95, about {seen[1]:.2f} near 0.5" in " ".join(
        text.split()
    )


def test_a_wrong_number_in_readme_is_seen():
    text = README.read_text(encoding="utf-8").replace("| 0.06 (0.94) |", "| 0.06 (0.75) |")
    assert "| 0.06 (0.75) |" in text
    assert shown(text)["organism/scratch"]["top:1"] != kept("organism/scratch", "top:1")


def test_the_table_is_what_is_kept_and_every_change_has_a_reason():
    found = default_study.load()
    assert default_study.TABLE.read_text(encoding="utf-8") == default_study.table(found)
    changed = {(row, run) for row, run, _, _ in default_study.changes(found)}
    assert len(changed) > 20
    assert changed == set(default_study.reasons(found))
    unused = [
        one
        for one in found["reasons"]
        if not any(
            run == one["run"]
            and all(
                one.get(key, part) == part for key, part in zip(("claim", "model", "about"), row, strict=True)
            )
            for row, run in changed
        )
    ]
    assert unused == []


def test_the_newest_run_judges_every_claim_and_decides_most():
    verdicts = newest()["verdicts"]
    assert {one["claim"] for one in verdicts} == {claim.name for claim in CLAIMS}
    assert sum(one["status"] in (SUPPORTED, CONTRADICTED) for one in verdicts) >= 45
    # Whatever was decided shows an interval: nothing is decided by a point estimate.
    for one in verdicts:
        assert one["status"] == OPEN or re.search(r"\([−+]?[\d.]+ to [−+]?[\d.]+\)", one["evidence"]), one


def test_it_is_written_as_it_is_read(tmp_path, monkeypatch):
    found = default_study.load()
    found["reasons"].append({"run": "two", "claim": "a {brace", "why": "two\nlines }"})
    monkeypatch.setattr(default_study, "PATH", tmp_path / "kept.json")
    default_study.save(found)
    assert default_study.load() == found


def test_a_run_of_the_same_name_is_renewed():
    runs = {"runs": [{"name": "a", "about": "old"}, {"name": "b"}], "reasons": []}
    again = default_study.added(runs, {"name": "a", "about": "new"})
    assert again["runs"] == [{"name": "b"}, {"name": "a", "about": "new"}]


def test_runs_share_rows_and_a_change_without_a_reason_is_told():
    def run(name: str, about: str, status: str) -> dict:
        one = {
            "claim": "rival",
            "model": "m",
            "about": about,
            "status": status,
            "evidence": "a | b",
            "rests": "2 prompts",
        }
        return {"name": name, "about": "", "verdicts": [one]}

    found = {"runs": [run("one", "–", OPEN), run("two", "task", SUPPORTED)], "reasons": []}
    assert list(default_study.rows(found)) == [("rival", "m", "task")]
    assert list(default_study.changes(found)) == [(("rival", "m", "task"), "two", OPEN, SUPPORTED)]
    assert default_study.reasons(found) == {}
    found["reasons"] = [{"run": "two", "claim": "rival", "why": "more of it"}]
    assert default_study.reasons(found) == {(("rival", "m", "task"), "two"): "more of it"}
    line = default_study.table(found).splitlines()[-1]
    assert line.endswith("| a \\| b (2 prompts) | a \\| b (2 prompts) | two: more of it |")


@pytest.mark.slow
def test_a_finished_study_becomes_a_run(tmp_path, monkeypatch):
    make(tmp_path / "study")
    monkeypatch.setattr(default_study, "PATH", tmp_path / "kept.json")
    monkeypatch.setattr(default_study, "TABLE", tmp_path / "table.md")
    default_study.PATH.write_text('{"runs": [], "reasons": []}', encoding="utf-8")
    default_study.main([str(tmp_path / "study"), "--name", "small", "--about", "Synthetic."])
    [run] = default_study.load()["runs"]
    source = read(tmp_path / "study")
    told = [one for by_model in judge(collect(source)).values() for ones in by_model.values() for one in ones]
    assert [(one["status"], one["evidence"]) for one in run["verdicts"]] == [one[:2] for one in told]
    results = source.frames["results"]
    assert sum(len(found) for by_model in run["accuracies"].values() for found in by_model.values()) == len(
        results
    )
    first = results.iloc[0]
    assert run["accuracies"][first["task"]][first["model"]][first["policy"]] == first["accuracy"]
    assert "- **small**: Synthetic." in default_study.TABLE.read_text(encoding="utf-8")
