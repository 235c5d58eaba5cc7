"""`sinkscope trace`: generate, or read a text, with attention recorded, and say what was seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import sinkscope as ss
from sinkscope.base.errors import InputError
from sinkscope.cli import options
from sinkscope.cli.inputs import decoding_of, given_prompts, numbers
from sinkscope.cli.options import SOURCE_HELP, argument, option, refuse, switch
from sinkscope.cli.output import Watch, say, show_result, working

ORGANISM_LENGTH = 64
"""Tokens of an answer that the organisms were trained on; behind it they write nothing."""
_SOURCE = f"{SOURCE_HELP}; or, with --maps-at, a trace that gets more"
_PROMPTS = "a file with a prompt per line, or JSON lines with prompt, text or messages; may be repeated"
_TEXT = "a text file that is read and not gone on with: one forward; may be repeated"
_CACHE = "block diffusion: keep finished blocks in a KV cache; default: as the official loop does"
_REPLACE = "replace what is at --out: a trace, once the new one is whole, or an unfinished recording"
_RECORDED = "What is recorded"


def trace(
    context: typer.Context,
    source: Annotated[str, argument("MODEL", _SOURCE)],
    out: Annotated[Path | None, option("FILE", "where the trace goes; ends in .zarr.zip")] = None,
    prompt: Annotated[list[str] | None, option("TEXT", "a user turn; may be repeated")] = None,
    prompts: Annotated[list[Path] | None, option("FILE", _PROMPTS)] = None,
    prompt_ids: Annotated[Path | None, option("FILE", "token ids, one prompt per line, or JSON")] = None,
    text: Annotated[list[Path] | None, option("FILE", _TEXT)] = None,
    raw: Annotated[bool, switch("--raw", "prompts as they are, without the chat template")] = False,
    decoding: options.DecodingText = None,
    length: options.Length = None,
    steps: options.Steps = None,
    policy: options.Policy = None,
    extra: options.Extra = None,
    seed: Annotated[int | None, option("N", "random seed; several prompts get seed, seed + 1, …")] = None,
    level: Annotated[str, option("NAME", "heads, layers or maps", panel=_RECORDED)] = "heads",
    by_query: Annotated[bool, switch("--by-query", "by kind of querying token", _RECORDED)] = False,
    anatomy: Annotated[bool, switch("--anatomy", "norms of keys and values, activations", _RECORDED)] = False,
    every: Annotated[int, option("N", "record every n-th step", panel=_RECORDED)] = 1,
    maps_at: Annotated[str, option("STEP,…", "add whole maps of these steps", panel=_RECORDED)] = "",
    live: Annotated[bool, switch("--live", "open the viewer and follow the generation")] = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    family: options.Family = None,
    mask_token_id: options.MaskId = None,
    cache: Annotated[bool | None, switch("--cache/--no-cache", _CACHE)] = None,
    overwrite: Annotated[bool, switch("--overwrite", _REPLACE)] = False,
    json: options.Json = False,
) -> None:
    """Generate with attention recorded, or read a text; the trace goes to a file, what was seen is printed."""
    from sinkscope.decoding.reading import given_text
    from sinkscope.models.load import is_organism
    from sinkscope.models.prompts import decode, encode
    from sinkscope.trace.storage import partial_path

    map_steps = sorted({step for (step,) in numbers(maps_at, "--maps-at", "numbers of steps, such as 12,13")})
    if source.endswith((".zarr.zip", ".partial")):
        refuse(
            context, "is not for a trace that is there: it gets maps, by --maps-at",
            but=("source", "maps_at", "device", "dtype", "revision", "json"),
        )  # fmt: skip
        add_maps(Path(source), map_steps, (device, dtype, revision), json)
        return
    if out is None:
        raise InputError("--out is missing: where the trace goes, such as --out run.zarr.zip")
    capture = ss.Capture(cast(Any, level), by_query, anatomy, every=every)  # it says what a wrong level is
    rule, extras = None if policy is None else ss.parse_policy(policy), options.extras_of(extra)
    check_out(out, overwrite)
    texts = given_prompts(prompt, prompts, prompt_ids, text)
    with working(f"loading {source}"):
        model = ss.load(source, device, dtype, revision, family=family, mask_token_id=mask_token_id)
    if text:
        if decoding or length is not None or steps is not None:
            raise InputError("--text is read in one forward; leave out --decoding, --length and --steps")
        loop = given_text(model)
    else:
        brief = {"length": ORGANISM_LENGTH} if is_organism(model.source) else {}
        loop = decoding_of(model, decoding, length, steps, brief)
    if map_steps and map_steps[-1] >= loop.max_steps:
        raise InputError(f"--maps-at {map_steps[-1]}: {loop} has the steps 0 to {loop.max_steps - 1}")
    batch = encode(model, texts, raw=raw or bool(text))
    rows, columns = batch.ids.shape
    seeds: Any = seed if rows == 1 else [(seed or 0) + row for row in range(rows)]
    if not json:
        words = "".join(f", {name} {extra}" for name, extra in extras.items())
        say(repr(model), f"decoding {loop}, policy {rule or 'none'}{words}, seed {seeds}")
    try:
        with following(out) if live else nullcontext(), Watch("trace") as watch:

            def tell(done: int, expected: int, state: Any) -> None:
                """The first answer as it stands, where somebody watches."""
                answer = decode(model, state[0].cpu(), columns)[-48:] if watch.console.is_terminal else ""
                watch.tell(done, expected, f"step {done} of {expected} {answer}".rstrip())

            run = ss.generate(
                model, batch.ids, loop, policy=rule, capture=capture, seed=seeds, attention_mask=batch.real, out=out,
                progress=tell, cache=cache, overwrite=overwrite, **extras,
            )  # fmt: skip
    except BaseException:
        if partial_path(out).exists():
            here = f"`sinkscope show {partial_path(out)}` reads what was recorded so far"
            say(f"stopped; {here}; the same command with --overwrite records anew", stderr=True)
        raise
    if map_steps:
        replace_with_maps(model, out, map_steps)
    report(run, seeds, out, json)


def add_maps(path: Path, steps: list[int], load_options: tuple[str, str, str | None], json: bool = False) -> None:
    """Add the whole attention maps of some steps to a finished trace; its model computes them again."""
    if not steps:
        raise InputError(f"{path} is a trace: say of which steps its maps are wanted, such as --maps-at 12,13")
    if path.is_dir():
        raise InputError(f"{path} is a recording that was not finished; maps are added to finished traces")
    replace_with_maps(load_model_of(ss.Trace.open(path), *load_options), path, steps)
    size = path.stat().st_size
    lines = [
        f"{path} has the maps of step {', '.join(map(str, steps))} ({size / 1e6:.1f} MB)",
        f"next: sinkscope show {path} --view page.html, and select a token",
    ]
    show_result(json, {"trace": path, "maps_at": steps, "bytes": size}, lines)


def load_model_of(trace: ss.Trace, device: str, dtype: str, revision: str | None) -> ss.Model:
    """The model that a trace was recorded with, in its dtype and revision unless others are given."""
    about = trace.attributes
    recorded = str(about.get("dtype") or "auto") if dtype == "auto" else dtype
    with working(f"loading {about.get('model')}"):
        return ss.load(str(about.get("model")), device, recorded, revision or about.get("revision") or None)


def replace_with_maps(model: ss.Model, path: Path, steps: list[int]) -> None:
    """Put a trace with maps in the place of the one without, at once."""
    from sinkscope.generation.maps import with_maps
    from sinkscope.trace.storage import SUFFIX

    beside = path.with_name(f".{path.name}.maps{SUFFIX}")
    try:
        with_maps(model, ss.Trace.open(path), steps).save(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


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
    from sinkscope.base.files import check_writable
    from sinkscope.trace.storage import SUFFIX, check_free

    if not out.name.endswith(SUFFIX):
        better = out.with_name((out.name.removesuffix(".zip").removesuffix(".zarr") or "trace") + SUFFIX)
        raise InputError(f"--out is the name of a trace and ends in {SUFFIX}, got {out}; try {better}")
    if replaced := check_free(out, overwrite):
        say(f"--overwrite: {replaced}; it is replaced, from the first step on", stderr=True)
    check_writable(out.parent)


def report(run: ss.Run, seeds: Any, out: Path, json: bool) -> None:
    """Print the answers, what they say of the sinks, and where to look next."""
    from sinkscope.base.masked import MASK
    from sinkscope.sinks import moves
    from sinkscope.verdicts.diagnosis import statistics_of

    trace: Any = run.trace  # it was recorded
    statistics, most, ties, forwards = statistics_of(trace), strongest(trace), int(run.ties.sum()), max(run.forwards)
    # Rows in which the policy never acted have no share.
    acted = {name: float(share.nanmean()) for name in MASK if (share := getattr(run, name)) is not None}
    data = {
        "trace": out, "model": trace.attributes.get("model"), "decoding": run.decoding.as_dict(),
        "policy": str(run.policy or "none"), "seed": seeds, "answers": run.texts, "steps": len(run),
        "forward_passes": forwards, "ties": ties, "strongest": most, "moves": len(moves(trace)),
        "summary": ss.summary(statistics), **{str(name): acted.get(name) for name in MASK},
    }  # fmt: skip
    for extra in run.extras.values():
        data |= extra.facts()
    answers = enumerate(run.texts) if run.decoding.generates else ()
    did = ", ".join(f"{name.heading} {share:.1%}" for name, share in acted.items())
    positions = "; ".join(f"position {key['position']} {key['token']!r} ({key['words']})" for key in most)
    lines = [
        *(f"answer {row}: {text.strip()[:400] or '(empty)'}" for row, text in answers),
        f"steps: {len(run)}, forward passes: {forwards}, {ties} ties (tokens written while another was as confident)",
        *([f"policy {run.policy}: {did}"] if did else []),
        *(f"{name} {extra}" for name, extra in run.extras.items()),
        ss.diagnose(statistics),
        f"most attention, as a mean over all steps, layers and heads: {positions or 'unknown, the text is too short'}",
        f"trace: {out} ({out.stat().st_size / 1e6:.1f} MB)",
        f"next: sinkscope show {out}",
    ]
    show_result(json, data, lines)


def strongest(trace: ss.Trace, count: int = 3) -> list[dict[str, Any]]:
    """The positions of the first sample that received the most attention, as a mean over steps, layers and heads.

    `received`: uniform attention = 1, or percent of a distant query's attention in a causal model; `words`: with its unit.
    """
    from sinkscope.sinks import step_position_map
    from sinkscope.sinks.judging import PERCENT

    data = trace.dataset.isel(sample=0)
    shown = step_position_map(trace.dataset.isel(sample=[0]))[0]
    unit = "% of a distant query's attention" if shown.attrs["units"] == PERCENT else "× uniform"
    mean = dict(enumerate(shown.mean("step").values.tolist()))
    seen = [key for key, received in mean.items() if received == received]  # NaN: never seen
    keys = []
    for key in sorted(seen, key=mean.__getitem__, reverse=True)[:count]:
        ids, position = data["tokens"].isel(key=key).values, int(data["position"].isel(key=key))
        token = trace.token_text(int(ids[ids >= 0][-1])) if (ids >= 0).any() else "?"
        words = f"{mean[key]:.1f}{unit}"
        keys.append({"position": position, "token": token, "received": mean[key], "words": words})
    return keys
