"""The built wheel: what is in it, what it asks for, and that it works in a fresh environment outside the checkout."""

from __future__ import annotations

import ast
import email
import email.message
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FROM_THE_INDEX = "SINKSCOPE_FRESH_INSTALL"
"""Where this variable is set, the wheel's dependencies come from the package index (minutes, 1.7 GB); .ci/run does so."""

OPTIONAL = {
    "anywidget", "datasets", "lm_eval", "ray", "submitit", "triton", "peft", "IPython", "tqdm", "traitlets", "tomli",
}  # fmt: skip
"""Imported where somebody asks for them: extras, or what a notebook brings along."""

STUDY = """
name = "small"
models = ["organism/causal"]
[[evaluate]]
task = "word_problems"
samples = 2
policies = ["none", "top:1"]
[[trace]]
name = "generations"
task = "word_problems"
samples = 1
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once, with the backend of this environment."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    return path


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.mark.slow
def test_what_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"sinkscope"}, "nothing beside the package"
    assert not [name for name in names if name.endswith(".pth") or "/tests/" in name or "__pycache__" in name]
    for needed in ("sinkscope/py.typed", "sinkscope/study/builtin/organisms.toml"):
        assert needed in names
    assert not [name for name in names if name.startswith("sinkscope/organisms/") and name.endswith(".py")]
    assert not [name for name in names if "sinkscope_train" in name or "trainer" in name], (
        "training is a wheel of its own"
    )
    for organism in ("causal", "scratch", "adapted", "multimodal"):
        assert any(f"/{organism}/model.safetensors" in name for name in names)
    assert wheel.stat().st_size < 100e6, "the package index takes no larger file unasked"


@pytest.mark.slow
def test_the_page_of_the_package_index_has_no_broken_link_or_picture(wheel: Path) -> None:
    text = metadata(wheel).get_payload()
    assert isinstance(text, str)
    assert "attention sinks" in text
    targets = re.findall(r"\]\(([^)\s]+)\)|<img[^>]*src=\"([^\"]+)\"", text)
    assert targets
    assert not [link for pair in targets for link in pair if link and not link.startswith(("https://", "#"))]


@pytest.mark.slow
def test_metadata(wheel: Path) -> None:
    known = metadata(wheel)
    assert known["Version"] == "0.1.0"
    assert known["Requires-Python"] == ">=3.11"
    assert any(url.startswith("Paper, https://arxiv.org/") for url in known.get_all("Project-URL", []))


def declared(wheel: Path) -> set[str]:
    """Names of the distributions that the wheel asks for without an extra."""
    needs = [need for need in metadata(wheel).get_all("Requires-Dist", []) if "extra ==" not in need]
    return {_plain(re.split(r"[ <>=!~;\[(]", need, maxsplit=1)[0]) for need in needs}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.slow
def test_every_import_is_declared(wheel: Path) -> None:
    known, providers = declared(wheel), packages_distributions()
    missing = set()
    for path in (ROOT / "src").rglob("*.py"):
        for name in _imports(path):
            if name in sys.stdlib_module_names or name == "sinkscope" or name in OPTIONAL:
                continue
            if not {_plain(provider) for provider in providers.get(name, [name])} & known:
                missing.add(f"{name} ({path.relative_to(ROOT)})")
    assert not missing


def _imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@cache
def fresh(wheel: Path, folder: Path) -> Path:
    """The Python of a fresh environment with the wheel; its dependencies are those of this environment, or installed too."""
    venv.create(folder / "fresh", with_pip=True)
    python = folder / "fresh" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    if os.environ.get(FROM_THE_INDEX):
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        torch = re.search(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), re.M)
        assert torch is not None
        subprocess.run([*install, *constraints, f"{torch[0]}+cpu"], check=False, timeout=900)
        done = subprocess.run(
            [*install, *constraints, str(wheel)], capture_output=True, text=True, check=False, timeout=900
        )
        if done.returncode and "No matching distribution" not in done.stderr and "Connection" in done.stderr:
            pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
    else:
        subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True, timeout=240)
        (site,) = (folder / "fresh").glob("lib/python*/site-packages")
        (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


@pytest.mark.soak  # make wheel, which CI calls, runs it
@pytest.mark.timeout(2400)
def test_the_wheel_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    python = fresh(wheel, tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SINKSCOPE"))}
    variables |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def sinkscope(*words: str) -> str:
        command = [str(python.with_name("sinkscope")), *words]
        done = subprocess.run(
            command, cwd=work, env=variables, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    where = subprocess.run(
        [str(python), "-c", "import sinkscope; print(sinkscope.__file__)"],
        cwd=work, env=variables, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert where.startswith(str(tmp_path)), "the wheel's own files, and not the checkout's"
    assert "trace" in sinkscope("--help")
    assert "organism/scratch" in sinkscope("models", "organism/scratch")
    prompt = "Jack has 6 bags with 6 seeds each. How many seeds does he have?"
    sinkscope(
        "trace", "organism/scratch", "--prompt", prompt, "--decoding", "length=16,block=16", "--out", "t.zarr.zip",
    )  # fmt: skip
    assert "sinks per head" in sinkscope("show", "t.zarr.zip")
    sinkscope("show", "t.zarr.zip", "--view", "t.html")
    assert (work / "t.html").stat().st_size > 10_000
    (work / "small.toml").write_text(STUDY)
    sinkscope("study", "small.toml", "--out", "study")
    assert (work / "study" / "report.html").is_file()
