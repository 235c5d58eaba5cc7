"""`make study` and `make test` on a machine without bubblewrap, Chromium, root and shared data.

The set-up itself fetches packages and is tried by hand (CONTRIBUTING has when); here is everything after and before it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import bare_machine

ROOT = Path(__file__).resolve().parents[2]
STUDY = """
name = "bare"
models = ["organism/causal"]
[[evaluate]]
task = "word_problems"
samples = 2
policies = ["none", "top:1"]
[[evaluate]]
task = "small_code"
samples = 2
policies = ["none"]
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Runs a command on the bare machine."""
    variables = bare_machine.environment(tmp_path_factory.mktemp("bare"))

    def run(*words: object, folder: Path = ROOT, timeout: float = 280) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*bare_machine.ordinary_user(), *map(str, words)],
            cwd=folder, env=variables, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    return run


def test_the_machine_is_bare(bare) -> None:  # type: ignore[no-untyped-def]
    code = "import os, shutil; print(os.geteuid(), *map(shutil.which, ['bwrap', 'chromium', 'sh']))"
    words = bare(sys.executable, "-c", code).stdout.split()
    assert words[1:3] == ["None", "None"]
    assert words[3].endswith("/sh")
    assert words[0] != "0" or not bare_machine.ordinary_user()


@pytest.mark.parametrize(
    ("purpose", "names"),
    [("study", ["bubblewrap"]), ("test", ["bubblewrap", "Chromium", "tokenizers", "SINKSCOPE_SHARED"])],
)
def test_one_line_says_what_is_missing_what_that_leaves_out_and_how_to_get_it(
    purpose: str, names: list[str], bare
) -> None:  # type: ignore[no-untyped-def]
    code = f"import sys; sys.path.insert(0, '.ci'); import set_up; print(set_up.missing('{purpose}'))"
    line = bare(sys.executable, "-c", code).stdout
    assert line.count("\n") == 1
    assert line.startswith("missing on this machine: ")
    for name in names:
        assert name in line
    assert line.count("apt install") == (1 if purpose == "study" else 2)
    things = [name for name in names if name != "SINKSCOPE_SHARED"]
    assert len(re.findall(r"left out|skipped", line)) >= len(things)


@pytest.mark.parametrize("old", ["(3, 9, 2)", "(3, 10, 4)"])
def test_an_old_python_is_told_at_once(old: str) -> None:
    code = (
        f"import sys; sys.path.insert(0, '.ci'); import set_up\nsys.version_info = {old}; print(set_up.main('study'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2"
    assert "needs Python 3.11 or newer" in done.stderr


@pytest.mark.slow
def test_a_study_on_a_bare_machine(bare, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "bare.toml").write_text(STUDY)
    study = ("-m", "sinkscope", "study", "bare.toml", "--out", "out", "--workers", "1")
    done = bare(sys.executable, *study, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out" / "report.html").is_file()
    said = done.stdout + done.stderr
    # Programs are confined by another rung of the sandbox, or kept ungraded with the reason and the remedy.
    assert "landlock" in said.lower() or "bubblewrap" in said
    assert "Traceback" not in said
