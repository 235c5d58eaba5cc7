"""`sinkscope trace`: generate with attention recorded, and say what was found."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from sinkscope.decoding import Decoding, GreedyDecoding, SamplingDecoding, default_decoding
from sinkscope.errors import InputError
from sinkscope.generation.generate import generate
from sinkscope.generation.run import Run
from sinkscope.models.load import load
from sinkscope.models.model import Model
from sinkscope.models.prompts import decode, encode
from sinkscope.policies import parse_policy
from sinkscope.trace.capture import Capture
from sinkscope.trace.storage import SUFFIX, partial_path


@dataclasses.dataclass(frozen=True)
class Request:
    """What the command line asked for; `options` are decoding options by name, None where not given."""

    source: str
    prompts: tuple[str, ...]
    prompt_file: Path | None
    prompt_ids: Path | None
    out: Path
    options: dict[str, Any]
    policy: str | None
    seed: int | None
    capture: Capture
    device: str
    dtype: str
    revision: str | None


def trace(request: Request) -> None:
    """Runs the request; a broken recording is left where `Trace.open` finds it."""
    policy = None if request.policy is None else parse_policy(request.policy)
    check_out(request.out)
    given = read_prompts(request)
    console = Console(soft_wrap=True)
    with Console(stderr=True).status(f"loading {request.source}"):
        model = load(request.source, request.device, request.dtype, request.revision)
    decoding = make_decoding(model, request.options)
    batch = encode(model, given)
    mask = None if batch.real is None else batch.real
    seed: Any = (
        request.seed if len(batch.ids) == 1 else [(request.seed or 0) + row for row in range(len(batch.ids))]
    )
    console.print(Text(f"{model!r}"))
    console.print(Text(f"decoding {decoding.to_json()}, policy {policy or 'none'}, seed {seed}"))
    try:
        run = _with_progress(model, batch.ids, mask, decoding, policy, request, seed)
    except BaseException:
        _say_what_is_left(request.out)
        raise
    report(console, model, run, request.out)


def check_out(out: Path) -> None:
    """All that can be wrong with --out is said before a model is loaded."""
    if not out.name.endswith(SUFFIX):
        name = out.name.removesuffix(".zip").removesuffix(".zarr") or "trace"
        raise InputError(
            f"--out is the name of a trace and ends in {SUFFIX}, got {out}; try {out.with_name(name + SUFFIX)}"
        )
    if out.exists():
        raise InputError(f"{out} exists already; give another --out, or move it away")
    if partial_path(out).exists():
        raise InputError(
            f"{partial_path(out)} holds an earlier recording that was not finished: open it with sinkscope.Trace.open, then "
            "move it away, or give another --out"
        )


def read_prompts(request: Request) -> Any:
    """Texts, or token ids [B, P], from whichever of the three ways was used."""
    ways = [bool(request.prompts), request.prompt_file is not None, request.prompt_ids is not None]
    if sum(ways) != 1:
        raise InputError(
            "give the prompt in exactly one way: --prompt TEXT, --prompt-file FILE or --prompt-ids FILE"
        )
    if request.prompts:
        return list(request.prompts)
    path = request.prompt_file or request.prompt_ids
    try:
        text = Path(str(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as text ({type(error).__name__}); check the path") from error
    if request.prompt_file is not None:
        return [text.rstrip("\n")]
    return parse_ids(text, str(path))


def parse_ids(text: str, path: str) -> torch.Tensor:
    """Token ids: numbers separated by white space or commas, a row per line, or JSON (a list, or a list of lists)."""
    try:
        if text.lstrip().startswith("["):
            rows = json.loads(text)
            rows = rows if rows and isinstance(rows[0], list) else [rows]
        else:
            rows = [
                [int(word) for word in line.replace(",", " ").split()]
                for line in text.splitlines()
                if line.strip()
            ]
        if not rows or not all(rows) or not all(type(one) is int for row in rows for one in row):
            raise ValueError
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} should hold token ids, such as 12 7 430, or [[12, 7, 430]]") from error
    if len({len(row) for row in rows}) > 1:
        raise InputError(
            f"{path} holds rows of different lengths; give rows of one length, or one file per prompt"
        )
    return torch.tensor(rows)


def make_decoding(model: Model, options: dict[str, Any]) -> Decoding:
    """The family's decoding with the options that were given; an option that it does not have is explained."""
    given = {name: value for name, value in options.items() if value is not None}
    kind: type[Decoding] = type(default_decoding(model.family))
    if model.family == "causal" and given.get("temperature") == 0:
        del given["temperature"]  # the most likely token: greedy
    elif model.family == "causal" and ("temperature" in given or "top_p" in given):
        kind = SamplingDecoding
    known = {field.name for field in dataclasses.fields(kind)}
    wrong = sorted(set(given) - known)
    if wrong:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in wrong)
        own = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(known))
        raise InputError(
            f"{flags} is not an option of a {model.family} model, which {model.source} is; it has {own}"
        )
    if issubclass(kind, GreedyDecoding) and given.get("eos") == "none":
        given["eos"] = None
    elif isinstance(given.get("eos"), str) and given["eos"] != "model":
        given["eos"] = _ends(given["eos"])
    return kind(**given)


def _ends(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise InputError(f"--eos should be model, none, or token ids such as 2,13, got {text!r}") from error


def _with_progress(
    model: Model, ids: Any, mask: Any, decoding: Decoding, policy: Any, request: Request, seed: Any
) -> Run:
    """Generates under a live bar: step, tokens decided, the text as it stands."""
    bar = Progress(
        TextColumn("step"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[decided]} decided"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    prompt = ids.shape[1]
    with bar:
        task = bar.add_task("trace", total=None, decided=0, text="")

        def show(done: int, expected: int, state: torch.Tensor) -> None:
            answer = state[0, prompt:]
            written = int(((answer != model.ids.mask) & (answer >= 0)).sum())
            text = decode(model, state[0], prompt).replace("\n", " ")[-48:] if bar.console.is_terminal else ""
            bar.update(task, completed=done, total=expected, decided=written, text=text)

        return generate(model, ids, decoding, policy, request.capture, seed, mask, request.out, progress=show)


def _say_what_is_left(out: Path) -> None:
    folder = partial_path(out)
    if folder.exists():
        print(
            f'stopped; what was recorded so far opens with sinkscope.Trace.open("{folder}")', file=sys.stderr
        )


def report(console: Console, model: Model, run: Run, out: Path) -> None:
    """The closing summary: the answer, the strongest sinks, whether they moved, and where to look next."""
    from sinkscope.sinks import moves, summary

    trace = run.trace
    if trace is None:
        raise RuntimeError("a traced run has a trace")
    for row, text in enumerate(run.texts):
        console.print(Text(f"answer {row}: {text.strip()[:400] or '(empty)'}"))
    table = summary(trace)
    values = {(row["section"], row["measure"]): row["value"] for row in table.to_dict("records")}

    def known(section: str, measure: str) -> str:
        value = values.get((section, measure))
        return "unknown" if value is None or value != value else f"{value:.3g}"

    ties = int(run.ties.sum())
    console.print(
        f"steps: {run.steps}, forward passes: {max(run.forwards)}, selections decided by ties: {ties}"
    )
    console.print(
        f"sinks (ε = 3): {known('where', 'sinks per head')} per head and step; heads without one: "
        f"{known('where', 'heads without')}; attention they absorb: {known('strength', 'absorbed')}"
    )
    console.print(Text("strongest: " + "; ".join(strongest(trace))))
    kinds = ", ".join(
        f"{row['measure']} {row['value']:.0%}"
        for row in table.to_dict("records")
        if row["section"] == "dynamics"
        and row["unit"] == "share of head-steps with a sink"
        and row["value"] > 0
    )
    console.print(
        f"the strongest sink of a head moved {len(moves(trace))} times; by kind of head: {kinds or 'no sinks'}"
    )
    if run.hidden_share is not None and run.sinks_hit is not None:
        console.print(
            f"policy {run.policy}: took {float(run.hidden_share.nanmean()):.1%} of the attention and hit "
            f"{float(run.sinks_hit.nanmean()):.1%} of each step's own sinks"
        )
    console.print(Text(f"trace: {out} ({out.stat().st_size / 1e6:.1f} MB)"))
    console.print(Text(f"next: sinkscope summary {out}"))


def strongest(trace: Any, many: int = 3) -> list[str]:
    """The positions that received the most attention, mean over steps, layers and heads of the first sample."""
    import numpy as np

    dataset = trace.dataset
    received = dataset["received_all" if "received_all" in dataset else "received"].isel(sample=0)
    if not bool(received.notnull().any()):  # a causal run so short that no key was seen by 16 queries
        received = dataset["received"].isel(sample=0)
    other = [dim for dim in received.dims if dim != "key"]
    mean = np.nan_to_num(received.mean(other, skipna=True).values)
    found = []
    for key in np.argsort(-mean, kind="stable")[:many]:
        tokens = dataset["tokens"].isel(sample=0, key=int(key)).values
        token = trace.token_text(int(tokens[tokens >= 0][-1])) if (tokens >= 0).any() else "?"
        found.append(
            f"position {int(dataset['position'].isel(sample=0, key=int(key)))} {token!r} ({mean[key]:.1f}× uniform)"
        )
    return found
