"""A kind of extra from outside: its name is an argument, a setting, a column, a key of study files; nothing else knows it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd
import pytest
from tests.study import small

import sinkscope as ss
from sinkscope.base.extras import EXTRAS, Extra, Kind
from sinkscope.models.load import load
from sinkscope.study import cells, facts, spec
from sinkscope.study.names import name_of


class Recorded(TypedDict, total=False):
    tally: str
    counted: int


@dataclass(frozen=True)
class Counted:
    text: str
    counts: list[int]
    exact = True

    def facts(self) -> dict[str, Any]:
        return {"tally": self.text, "counted": sum(self.counts)}

    def row(self, row: int) -> dict[str, Any]:
        return {"tally": self.text, "counted": self.counts[row]}

    def __str__(self) -> str:
        return f"{self.text}, {sum(self.counts)} forwards"


@dataclass
class Counting:
    """Counts the forwards of each group, times a number."""

    times: int
    groups: list[tuple[list[int], int]] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)

    def apart(self, decoding: ss.Decoding) -> bool:
        return False

    def wrap(self, engine: Any, row_keys: list[int]) -> None:
        run, group = engine.run, len(self.groups)
        self.groups.append((row_keys, group))

        def counted(request: Any) -> Any:
            self.counts[group] = self.counts.get(group, 0) + self.times
            return run(request)

        engine.run = counted

    def outcome(self, by_row: Callable[..., Any], steps: int) -> Counted:
        return Counted(f"times:{self.times}", [self.counts[group] for rows, group in self.groups for _ in rows])


@dataclass(frozen=True)
class Times(Extra):
    times: int

    def identity(self) -> str:
        return f"times:{self.times}"

    __str__ = identity

    def check(self, decoding: Any, model: Any = None, policy: Any = None, capture: Any = None) -> None:
        if decoding.causal:
            raise ss.InputError(f"tally {self} is for diffusion models")

    def begin(self) -> Counting:
        return Counting(self.times)


class Tally(Kind):
    name = "tally"
    recorded = Recorded

    def read(self, given: Any) -> Extra | None:
        return given if isinstance(given, Times) else None if given == "none" else Times(int(given.partition(":")[2]))

    def add(self, thing: type) -> bool:
        return False

    def summed(self, text: str, rows: Any) -> Counted:
        return Counted(text, [row["counted"] for row in rows])


@pytest.fixture(autouse=True)
def tally() -> Iterator[None]:
    len(EXTRAS)  # ours are loaded first, as before those of entry points
    EXTRAS.add(Tally())
    yield
    del EXTRAS._things["tally"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    blocks = [
        "[decodings.short]",
        "llada = { length = 8, steps = 4, block = 4 }",
        "[[evaluate]]",
        'task = "word_problems"',
    ]
    blocks += ['decodings = ["short"]', "samples = 2", 'tally = ["none", "times:3"]', 'reuse = ["none", "prefix:2"]']
    return small.write_blocks(tmp_path_factory.mktemp("tally"), ("llada",), "\n".join(blocks))


def test_in_a_generation_and_an_evaluation(study: Path) -> None:
    model = load(study.parent / "llada", "cpu")
    run = ss.generate(model, "Say a.", tally="times:2", length=8, steps=4, block=4)
    assert run.extras["tally"].facts() == {"tally": "times:2", "counted": 8}
    graded = ss.evaluate(model, "word_problems", small.SHORT, limit=2, tally="times:2", reuse="prefix:2")
    assert graded.settings["tally"] == "times:2"
    assert set(graded.extras) == {"reuse", "tally"}
    assert list(graded.table()["counted"]) == [8, 8]
    assert name_of(graded.settings) == "reuse prefix:2 · tally times:2"
    assert "tally      times:2, 16 forwards" in repr(graded)


def test_in_a_study(study: Path, tmp_path: Path) -> None:
    planned = spec.read(study)
    assert spec.from_data(tomllib.loads(spec.to_toml(planned))) == planned
    known = {one.name: facts.facts_of(one, "cpu") for one in planned.models}
    outlined = cells.identify(cells.outline(planned, known))
    assert [{name: str(extra) for name, extra in cell.experiment.extras.items()} for cell in outlined] == [
        {}, {"tally": "times:3"}, {"reuse": "prefix:2"}, {"reuse": "prefix:2", "tally": "times:3"},
    ]  # fmt: skip
    assert len({cell.id for cell in outlined}) == 4
    # Workers are processes of their own, which do not know it: here without.
    from sinkscope.study.store import Store
    from sinkscope.study.tables import build
    from sinkscope.study.worker import Shard, run_shard

    for cell in outlined:
        run_shard(tmp_path, Shard(cell, 0, 2, (0, 1)), load(planned.models[0].source, "cpu", "float32"), 1)
    frames = build(Store(tmp_path), outlined)
    assert list(frames["tally_records"]["counted"]) == [12] * 4
    assert set(frames["results"]["cell"]) == {outlined[0].id}
    assert pd.isna(frames["tally_records"]["reuse"]).sum() == 2


def test_what_does_not_suit_is_refused(study: Path) -> None:
    with pytest.raises(ss.InputError, match="for diffusion models"):
        ss.generate("organism/causal", "Say a.", tally="times:2")
    with pytest.raises(ss.InputError, match="kind of extra"):
        spec.from_data(
            {**spec.read_data(study), "evaluate": [{"task": "word_problems", "extras": {"tall": ["times:1"]}}]}
        )
    with pytest.raises(ss.InputError, match="should be a Kind"):
        EXTRAS.add(object())  # type: ignore[arg-type]
