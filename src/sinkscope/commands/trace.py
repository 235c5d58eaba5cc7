"""`sinkscope trace`: generate with attention recorded, and say what was found."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import TextColumn

from sinkscope.commands.output import bar, numbers, say, show_json, working
from sinkscope.decoding import Decoding, decoding_from_options, default_decoding, option_names
from sinkscope.errors import InputError
from sinkscope.generation.generate import generate
from sinkscope.generation.maps import with_maps
from sinkscope.generation.run import ACCOUNT, Run
from sinkscope.models.load import load
from sinkscope.models.model import Model
from sinkscope.models.prompts import decode, encode
from sinkscope.organisms.recipe import ANSWER
from sinkscope.policies import parse_policy
from sinkscope.reuse import as_reuse
from sinkscope.text import visible
from sinkscope.trace.capture import Capture
from sinkscope.trace.storage import SUFFIX, check_free, partial_path
from sinkscope.trace.trace import Trace


class Strongest(NamedTuple):
    """A position with much attention: `received` is its mean over steps, layers and heads; uniform attention = 1, or percent of a
    distant query's attention in a causal model."""

    position: int
    token: str
    received: float


def trace(
    source: str,
    out: Path | None,
    prompt: list[str] | None,
    prompt_file: Path | None,
    prompt_ids: Path | None,
    policy: str | None,
    reuse: str | None,
    seed: int | None,
    level: Any,
    by_query: bool,
    anatomy: bool,
    every: int,
    maps_at: str,
    live: bool,
    device: str,
    dtype: str,
    revision: str | None,
    family: str | None,
    mask_token_id: int | None,
    cache: bool | None,
    overwrite: bool,
    json: bool,
    decoding: dict[str, Any],
) -> None:
    """Record one generation of each prompt in `out` and print what was found; of a trace, add the maps of some steps."""
    if source.endswith((".zarr.zip", ".partial")):
        add_maps(Path(source), maps_at, (device, dtype, revision), json)
        return
    if out is None:
        raise InputError("--out is missing: where the trace goes, such as --out run.zarr.zip")
    capture = Capture(level, by_query, anatomy, every=every)
    rule = None if policy is None else parse_policy(policy)
    approximate = as_reuse(reuse)
    steps = parse_steps(maps_at)
    check_out(out, overwrite)
    given = read_prompts(prompt or [], prompt_file, prompt_ids)
    with working(f"loading {source}"):
        model = load(source, device, dtype, revision, family=family, mask_token_id=mask_token_id)
    if str(model.source).startswith("organism/"):  # behind the length they were trained on they write nothing
        decoding = {"length": ANSWER, **decoding}
    loop = make_decoding(model, decoding)
    batch = encode(model, given)
    rows = len(batch.ids)
    seeds: Any = seed if rows == 1 else [(seed or 0) + row for row in range(rows)]
    if not json:
        words = "" if approximate is None else f", reuse {approximate}"
        say(repr(model), f"decoding {loop.to_json()}, policy {rule or 'none'}{words}, seed {seeds}")
    try:
        with following(out) if live else nullcontext(), progress(model, batch.ids.shape[1]) as show:
            run = generate(
                model, batch.ids, loop, rule, capture, seeds, batch.real, out, progress=show, cache=cache,
                reuse=approximate, overwrite=overwrite,
            )  # fmt: skip
    except BaseException:
        if partial_path(out).exists():
            say(
                f"stopped; `sinkscope summary {partial_path(out)}` reads what was recorded so far; the same command with "
                "--overwrite records anew",
                stderr=True,
            )
        raise
    if steps:
        replace_with_maps(model, out, steps)
    report(run, seeds, out, json)


def add_maps(path: Path, maps_at: str, load_options: tuple[str, str, str | None], json: bool = False) -> None:
    """Add the whole attention maps of some steps to a finished trace; its model computes them again."""
    steps = parse_steps(maps_at)
    if not steps:
        raise InputError(
            f"{path} is a trace: say of which steps its maps are wanted, such as --maps-at 12,13"
        )
    if path.is_dir():
        raise InputError(f"{path} is a recording that was not finished; maps are added to finished traces")
    replace_with_maps(load_model_of(Trace.open(path), *load_options), path, steps)
    if json:
        show_json({"trace": path, "maps_at": steps, "bytes": path.stat().st_size})
        return
    say(f"{path} has the maps of step {', '.join(map(str, steps))} ({path.stat().st_size / 1e6:.1f} MB)")
    say(f"next: sinkscope view {path}, and select a token")


def load_model_of(trace: Trace, device: str, dtype: str, revision: str | None) -> Model:
    """The model that a trace was recorded with, in its dtype and revision unless others are given."""
    about = trace.attributes
    recorded = str(about.get("dtype") or "auto") if dtype == "auto" else dtype
    with working(f"loading {about.get('model')}"):
        return load(str(about.get("model")), device, recorded, revision or about.get("revision") or None)


def replace_with_maps(model: Model, path: Path, steps: list[int]) -> None:
    """Put a trace with maps in the place of the one without, at once."""
    larger = with_maps(model, Trace.open(path), steps)
    beside = path.with_name(f".{path.name}.maps{SUFFIX}")
    try:
        larger.save(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def parse_steps(text: str) -> list[int]:
    """`12,13` → [12, 13]."""
    return sorted(set(numbers(text, "--maps-at", "numbers of steps, such as 12,13")))


@contextmanager
def following(out: Path) -> Iterator[None]:
    """Serves the viewer of a recording on this machine while it is made, and opens it."""
    import webbrowser

    from sinkscope.report.live import LiveViewer

    with LiveViewer(out) as live:
        say(f"live: {live.address} (this machine only)", stderr=True)
        webbrowser.open(live.address)
        yield


def check_out(out: Path, overwrite: bool = False) -> None:
    """Refuse, before a model is loaded, an `out` that cannot become a trace."""
    if not out.name.endswith(SUFFIX):
        name = out.name.removesuffix(".zip").removesuffix(".zarr") or "trace"
        raise InputError(
            f"--out is the name of a trace and ends in {SUFFIX}, got {out}; try {out.with_name(name + SUFFIX)}"
        )
    if replaced := check_free(out, overwrite):
        say(f"--overwrite: {replaced}; it is replaced, from the first step on", stderr=True)


def read_prompts(texts: list[str], file: Path | None, ids: Path | None) -> list[str] | torch.Tensor:
    """Texts, or token ids [B, P]; exactly one of the three ways is used."""
    if sum((bool(texts), file is not None, ids is not None)) != 1:
        raise InputError(
            "give the prompt in exactly one way: --prompt TEXT, --prompt-file FILE or --prompt-ids FILE"
        )
    if texts:
        return texts
    path = file or ids
    try:
        text = Path(str(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as text ({type(error).__name__}); check the path") from error
    return [text.rstrip("\n")] if file is not None else parse_ids(text, str(path))


def parse_ids(text: str, path: str) -> torch.Tensor:
    """Token ids from text: numbers separated by white space or commas, a row per line, or JSON (a list, or lists)."""
    try:
        if text.lstrip().startswith("["):
            rows = jsonlib.loads(text)
            rows = rows if rows and isinstance(rows[0], list) else [rows]
        else:
            lines = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
            rows = [[int(word) for word in line] for line in lines]
        if not rows or not all(rows) or not all(type(number) is int for row in rows for number in row):
            raise ValueError
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path} should hold token ids, such as 12 7 430, or [[12, 7, 430]]") from error
    if len({len(row) for row in rows}) > 1:
        raise InputError(
            f"{path} holds rows of different lengths; give rows of one length, or one file per prompt"
        )
    return torch.tensor(rows)


def make_decoding(model: Model, options: dict[str, Any]) -> Decoding:
    """The family's decoding with the options that were given; an option that it does not have is explained."""
    given = dict(options)
    plain = {field.name for field in dataclasses.fields(default_decoding(model.family))}
    if given.get("temperature") == 0 and "temperature" not in plain:
        del given["temperature"]  # the most likely token, as the default takes it
    known = option_names(model.family)
    wrong = sorted(set(given) - known)
    if wrong:
        flags, own = (
            ", ".join(f"--{name.replace('_', '-')}" for name in names) for names in (wrong, sorted(known))
        )
        raise InputError(
            f"{flags} is not an option of a {model.family} model, which {model.source} is; it has {own}"
        )
    for name in ("eos", "stop"):
        if isinstance(given.get(name), str) and given[name] != "model":
            given[name] = None if given[name] == "none" else _ends(name, given[name])
    if isinstance(given.get("stop"), tuple) and len(given["stop"]) == 1:
        given["stop"] = given["stop"][0]
    return decoding_from_options(model.family, given)


def _ends(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise InputError(
            f"--{name} should be model, none, or token ids such as 2,13, got {text!r}"
        ) from error


@contextmanager
def progress(model: Model, prompt: int) -> Iterator[Callable[[int, int, torch.Tensor], None]]:
    """A live bar on stderr: steps, tokens decided, the first answer as it stands."""
    decided = [TextColumn("{task.fields[decided]} decided")]
    shown = bar("step", decided, [TextColumn("{task.fields[text]}", markup=False)])
    task = shown.add_task("trace", total=None, decided=0, text="")

    def show(done: int, expected: int, state: torch.Tensor) -> None:
        row = state[0].cpu()
        answer = row[prompt:]
        written = int(((answer != model.ids.mask) & (answer >= 0)).sum())
        text = decode(model, row, prompt).replace("\n", " ")[-48:] if shown.console.is_terminal else ""
        shown.update(task, completed=done, total=expected, decided=written, text=visible(text))

    with shown:
        yield show


def report(run: Run, seeds: Any, out: Path, json: bool) -> None:
    """Print the answers, where the sinks are, whether they moved, and where to look next."""
    from sinkscope.sinks import moves, summary
    from sinkscope.sinks.judging import PERCENT

    if run.trace is None:
        raise RuntimeError("a traced run has a trace")
    table, moved, most = summary(run.trace), len(moves(run.trace)), strongest(run.trace)
    shares = {name: getattr(run, name) for name in ACCOUNT}
    acted = {name: None if share is None else float(share.nanmean()) for name, share in shares.items()}
    if json:
        show_json(
            {
                "trace": out, "model": run.trace.attributes.get("model"), "decoding": run.decoding.as_dict(),
                "policy": "none" if run.policy is None else str(run.policy), "seed": seeds, "answers": run.texts,
                "steps": run.steps, "forward_passes": max(run.forwards), "ties": int(run.ties.sum()),
                "strongest": [key._asdict() for key in most], "moves": moved, **acted,
                "summary": table,
                **({} if run.reuse is None else {"reuse": str(run.reuse), "work_saved": run.work and run.work.saved}),
            }
        )  # fmt: skip
        return
    rows = table.to_dict("records")
    values = {(row["section"], row["measure"]): row["value"] for row in rows}

    def known(section: str, measure: str) -> str:
        value = values.get((section, measure))
        return "unknown" if value is None or value != value else f"{value:.3g}"

    kinds = ", ".join(
        f"{row['measure']} {row['value']:.0%}"
        for row in rows
        if row["section"] == "dynamics"
        and row["unit"] == "share of head-steps with a sink"
        and row["value"] > 0
    )
    share = "% of a distant query's attention" if table.attrs["unit"] == PERCENT else "× uniform"
    positions = "; ".join(
        f"position {key.position} {key.token!r} ({key.received:.1f}{share})" for key in most
    )
    unknown = values.get(("data", "unknown keys"))
    say(
        *(f"answer {row}: {text.strip()[:400] or '(empty)'}" for row, text in enumerate(run.texts)),
        f"steps: {run.steps}, forward passes: {max(run.forwards)}, selections decided by ties: {int(run.ties.sum())}",
        f"sinks (ε = 3): {known('where', 'sinks per head')} per head and step; heads without one: "
        f"{known('where', 'heads without')}; attention they absorb: {known('strength', 'absorbed')}"
        + ("" if unknown is None else f"; too recent to be judged: {unknown:.0%} of the tokens"),
        f"most attention, as a mean over all steps, layers and heads: {positions or 'unknown, the text is too short'}",
        f"the strongest sink of a head moved {moved} times; by kind of head: {kinds or 'none was found'}",
    )
    if run.hidden_share is not None:
        did = ", ".join(f"{ACCOUNT[name]} {share:.1%}" for name, share in acted.items() if share is not None)
        say(f"policy {run.policy}: {did}")
    if run.work is not None:
        say(f"reuse {run.reuse}: approximate steps; {run.work.saved:.1%} of the multiply-adds saved")
    say(f"trace: {out} ({out.stat().st_size / 1e6:.1f} MB)", f"next: sinkscope summary {out}")


def strongest(trace: Trace, count: int = 3) -> list[Strongest]:
    """The positions of the first sample that received the most attention."""
    import numpy as np

    from sinkscope.sinks import step_position_map

    dataset = trace.dataset.isel(sample=0)
    maps = step_position_map(trace.dataset.isel(sample=[0])).values[0]
    seen = np.isfinite(maps).sum(axis=0)
    mean = np.nansum(maps, axis=0) / np.maximum(1, seen)
    keys = []
    for key in np.argsort(-mean, kind="stable")[: min(count, int((seen > 0).sum()))]:
        ids = dataset["tokens"].isel(key=int(key)).values
        token = trace.token_text(int(ids[ids >= 0][-1])) if (ids >= 0).any() else "?"
        keys.append(Strongest(int(dataset["position"].isel(key=int(key))), token, float(mean[key])))
    return keys
