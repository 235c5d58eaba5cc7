"""Checks, files and registries at the bottom of the package."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Literal

import pytest

from sinkscope.base import checks, registry
from sinkscope.base.errors import InputError
from sinkscope.base.files import write_atomically
from sinkscope.base.registry import Registry


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: checks.whole("k", 1.0, 0), "k should be a whole number of at least 0, got 1.0"),
        (lambda: checks.whole("k", True, 0), "got True"),
        (lambda: checks.finite("x", float("nan")), "x should be a finite number"),
        (lambda: checks.finite("x", 10**400), "more than 300 digits"),
        (lambda: checks.at_least("t", float("inf"), 0), "t should be a number of at least 0"),
        (lambda: checks.share("p", 0), "p should lie above 0"),
        (lambda: checks.one_of("rule", "sun", ("sum", "mean")), "did you mean sum"),
        (lambda: checks.indices("layers", [1, -1]), "got -1"),
        (lambda: checks.indices("layers", []), "list of indices"),
    ],
)
def test_bad_values_are_named(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]


@dataclass(frozen=True)
class Declared:
    """One field of each kind that can be checked by its declaration."""

    word: Literal["sum", "mean"] = "sum"
    other: Literal["near"] | None = None
    rows: tuple[int, ...] | None = None
    sure: bool | None = None


def test_fields_are_checked_as_they_are_declared() -> None:
    indices = Declared(rows=[3, 1, 3])  # type: ignore[arg-type]
    checks.declared(indices)
    assert indices == Declared(rows=(1, 3))
    wrong = [Declared(word=None), Declared(other="mean"), Declared(rows=(-1,)), Declared(sure=1)]  # type: ignore[arg-type]
    for thing, name in zip(wrong, ("word", "other", "rows", "sure"), strict=True):
        with pytest.raises(InputError, match=f"^capture {name} "):
            checks.declared(thing, "capture ")


def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".out.json.7.part").symlink_to(victim)
    write_atomically(tmp_path / "out.json", "{}")
    assert victim.read_text() == "mine"
    assert (tmp_path / "out.json").read_text() == "{}"


class Word(str):
    """Something with a name, for registries."""

    __slots__ = ()


def words() -> Registry[Word]:
    def check(thing: object) -> str:
        if not isinstance(thing, Word):
            raise InputError(f"{thing!r} is no word")
        return str(thing)

    return Registry("word", "sinkscope.words", check)


def test_registries_know_their_own_and_the_entry_points_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("b", "tests.base.test_checks:STRANGER", "sinkscope.words")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "sinkscope.words" else [])
    known = words()
    mine = known.add(Word("mine"))
    assert known["mine"] is mine
    assert known["stranger"] is STRANGER
    assert sorted(known) == ["mine", "stranger"]
    with pytest.raises(InputError, match="did you mean stranger"):
        known.find("strangr")
    with pytest.raises(InputError, match="already a word called 'mine'"):
        known.add(Word("mine"))
    with pytest.raises(InputError, match="no word"):
        known.add(3)  # type: ignore[arg-type]


def test_the_order_of_a_registry_is_that_of_the_files() -> None:
    """The first decoding of a family is its default, whichever file was imported first."""
    code = (
        "import sinkscope as ss; ss.MmadaImageDecoding; from sinkscope.models import sdar\n"
        "from sinkscope.decoding import DECODINGS; from sinkscope.models.family import FAMILIES; print(*DECODINGS, *FAMILIES)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    decodings = (
        "greedy sampling diffusion_gemma dream fast_dllm_v2 llada mmada llada2 mdlm bd3lm mmada_image nemotron nemotron_causal "
        "open_dcoder given given-blocks"
    )
    families = (
        "a2d causal diffusion_gemma dream fast_dllm_v2 llada llada2 llada_moe masked mmada nemotron nemotron_causal open_dcoder "
        "rnd1 sdar"
    )
    assert run.stdout.strip() == f"{decodings} causal-reading masked-reading denoising-reading rnd1 sdar {families}"


def test_an_entry_point_that_breaks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("b", "tests.base.test_checks:MISSING", "sinkscope.words")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    with pytest.raises(InputError, match=r"'b' of tests\.base\.test_checks:MISSING cannot be loaded"):
        words().find("b")


STRANGER = Word("stranger")
