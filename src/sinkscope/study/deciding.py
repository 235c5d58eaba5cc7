"""Which claims a study can decide, before it runs: its cells with planted results, judged by the rules themselves.

Of scores eight outcomes are planted, each as clear as the documents allow: masks hit as many sinks, and mass-matched controls
remove as much attention, as was measured in models of the kind. Of traces everything that a rule asks for is planted, on either
side of its limit. What the rules leave open under all of them, no such result can decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import pandas as pd

from sinkscope.base.masked import MASK, Masked
from sinkscope.policies import parse_policy
from sinkscope.sinks.compare import BEYOND, LESS
from sinkscope.statistics import Estimate
from sinkscope.study.cells import Cell
from sinkscope.study.measured import POLICY, Studied, collect
from sinkscope.study.names import SINK, control, pooled, role
from sinkscope.study.spec import CAUSAL
from sinkscope.tasks.reading import ReadTask
from sinkscope.tasks.registry import base_and_scheme
from sinkscope.verdicts import Measure, Status, Verdict
from sinkscope.verdicts.measures import Kind, Measures
from sinkscope.verdicts.questions import CLAIMS, Claim
from sinkscope.verdicts.verdict import point

CONDITION = (
    "planned with what masks hit, and controls removed, in our models: a loss counts only where the strongest sinks were "
    "masked, and for most claims only where a control of equal attention removes at least .9 of what the mask does (in the "
    "shipped models it removed .9 to 1.9 of it, in SmolLM2 and its diffusion twins .2 to .6)"
)


class Taken(NamedTuple):
    """What a mask did: shares of the sinks, of the heads' strongest ones, and of the attention of sinks; and the attention that
    its mass-matched control removed, as a share of its own."""

    hits: float
    strongest: float
    sinks_removed: float
    reached: float


MEASURED: dict[tuple[bool, bool], dict[str, Taken]] = {
    (True, True): {
        "top:1": Taken(0.29, 0.36, 0.51, 1.9), "top:10": Taken(0.9, 0.9, 0.9, 0.85), SINK: Taken(0.70, 0.95, 0.83, 0.907),
    },
    (True, False): {
        "top:1": Taken(0.48, 0.93, 0.55, 1.16), "top:10": Taken(0.97, 0.99, 0.97, 1.09), SINK: Taken(0.48, 0.91, 0.55, 1.2),
    },
    (False, True): {"top:1": Taken(0.48, 0.78, 0.81, 0.52), SINK: Taken(0.59, 0.99, 0.87, 0.21)},
    (False, False): {"top:1": Taken(0.35, 0.96, 0.82, 0.64), SINK: Taken(0.35, 0.96, 0.82, 0.64)},
}  # fmt: skip
"""(a shipped model, a causal one) → policy or role → what it did: word problems in the four shipped models (2026-11-19), texts in
SmolLM2 and its diffusion twins (lab/english/protocol). Others are planned as `top:1`, more keys as `top:10`."""
MOST = 100
"""Documents beyond these decide nothing that these do not."""
FAR = 10.0
"""Where measures of traces are planted: beyond every limit."""

Lost = Callable[[Cell], float]
"""The share of a cell's answers that is lost."""
Can = dict[str, dict[str, set[Status]]]
"""Part of the study → claim → what may become of it."""


def deciding(cells: Sequence[Cell]) -> list[str]:
    """Which claims on the paper each part can decide; a part is a task, or a set of traces, with all its sections."""
    can: Can = defaultdict(lambda: defaultdict(set))
    for part, name, status in (*_graded(cells), *_traced(cells)):
        can[part][name].add(status)
    parts = dict.fromkeys(map(part_of, cells))
    lines = [f"{part}: {_said(can[part])}" for part in parts]
    asked = {claim.name for claim in CLAIMS if claim.kind == Kind.ACCURACIES}
    return [*lines, CONDITION] if any(asked & set(claims) for claims in can.values()) else lines


def part_of(cell: Cell) -> str:
    """The part of the study that a cell belongs to: "[[evaluate]] gsm8k"."""
    kind = "trace" if cell.kind == "maps" else cell.kind
    return f"[[{kind}]] {cell.group or _task(cell)}"


def _said(claims: Mapping[str, set[Status]]) -> str:
    words = {"can support or contradict": 2, "only support": Status.SUPPORTED, "only contradict": Status.CONTRADICTED}
    order = [claim.name for claim in CLAIMS if claim.name in claims]
    groups = {
        said: [name for name in order if (len(claims[name]) == which or claims[name] == {which})]
        for said, which in words.items()
    }
    return "; ".join(f"{said} {', '.join(names)}" for said, names in groups.items() if names) or "no claim"


def _task(cell: Cell) -> str:
    return base_and_scheme(cell.task)[0]


def _abouts(cell: Cell) -> tuple[str, str]:
    """What measures of its task are about, where it has one decoding or several."""
    return _task(cell), f"{_task(cell)}, {cell.decoding_name}"


# ---- answers and texts ---------------------------------------------------------------------------


def _graded(cells: Sequence[Cell]) -> Iterator[tuple[str, str, Status]]:
    """(part, claim, status) under the planted outcomes."""
    graded = [cell for cell in cells if cell.kind == "evaluate" and cell.exact]
    models = {cell.model.name: Studied(cell.experiment.model.family, cell.model.twin) for cell in graded}

    def masks(cell: Cell) -> float:
        policy = cell.experiment.policy
        return float(policy is not None and policy.control is None and getattr(policy, "among", "") != "others")

    def of(*families: str) -> Lost:
        return lambda cell: masks(cell) * (cell.experiment.model.family in families)

    diffusion = {studied.family for studied in models.values()} - {CAUSAL}
    outcomes: list[Lost] = [
        lambda cell: 0.0, masks, lambda cell: 0.5 * (cell.policy != "none"),
        lambda cell: masks(cell) * (getattr(cell.experiment.policy, "k", 0) == 10), of(CAUSAL), of(*diffusion),
        of("mmada"), of(*diffusion - {"mmada"}),
    ]  # fmt: skip
    for lost in outcomes:
        for measures in collect(_frames(graded, lost), models):
            part = next(part_of(cell) for cell in graded if measures.about in _abouts(cell))
            for claim in CLAIMS:
                if claim.kind == Kind.ACCURACIES and claim.concerns(measures.family) and claim.takes(measures):
                    verdict = claim.verdict(measures)
                    if verdict.decided:
                        yield part, claim.name, verdict.status


def _frames(cells: Iterable[Cell], lost: Lost) -> dict[str, pd.DataFrame]:
    """The tables that cells leave, one draw of each control: what is not lost is right."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        text = isinstance(cell.experiment.task, ReadTask)
        about = {"model": cell.model.name, "task": _task(cell), "decoding_name": cell.decoding_name}
        about["policy"] = pooled(cell.policy)
        done = about | _done(cell)
        if done in rows["likelihood" if text else "results"]:
            continue
        rows["likelihood" if text else "results"].append(done)
        share = lost(cell)
        for at, i in enumerate(cell.documents[:MOST]):
            gone = int((at + 1) * share) > int(at * share)
            score = {"nll": 3.0 + 3.0 * gone + 1e-3 * (i % 3)} if text else {"passed": not gone}
            rows["passages" if text else "records"].append(about | {"document": str(i)} | score)
    return {name: pd.DataFrame(each) for name, each in rows.items()}


def _done(cell: Cell) -> dict[Masked, float]:
    """What the cell's mask hits and removes, by the columns of results."""
    kind, causal = control(cell.policy), cell.experiment.model.family == CAUSAL
    policy = kind.like if kind else cell.policy
    known = MEASURED[cell.model.source.startswith("organism/"), causal]
    many = "top:10" if getattr(parse_policy(policy), "k", 1) > 1 else "top:1"
    mask = known.get(role(policy, causal), known.get(many, known["top:1"]))
    removed = {None: 1.0, "mass": mask.reached, "count": 0.1}[kind and kind.match]
    return dict(zip(MASK, (removed, mask.hits, mask.strongest, mask.sinks_removed), strict=True))


# ---- traces --------------------------------------------------------------------------------------

Side = Callable[[str], int]
"""Where a measure is planted, by its model and name: +1 far above every limit, −1 far below."""


class Traced(NamedTuple):
    """What the cells of one model, decoding and set of traces record."""

    model: str
    family: str
    group: str
    task: str
    decoding: str


@dataclass(frozen=True)
class Planted(dict[str, Estimate]):
    """The estimates of a model: everything but what is missing, where `side` says. interval: one document has none."""

    model: str
    side: Side
    missing: Container[str]
    interval: bool

    def get(self, name: str, default: Any = None) -> Any:
        if name in self.missing:
            return default
        value = FAR * self.side(f"{self.model}: {name}")
        return Estimate(value, value - 1, value + 1) if self.interval else point(value)


def _traced(cells: Sequence[Cell]) -> Iterator[tuple[str, str, Status]]:
    """(part, claim, status) with what each rule asks for on either side of its limit."""
    sets: dict[Traced, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.kind == "trace" and cell.exact:
            family = cell.experiment.model.family
            sets[Traced(cell.model.name, family, cell.group, _task(cell), cell.decoding_name)].append(cell)
    for traced, own in sets.items():
        plain = next((cell for cell in own if cell.policy == "none"), None)
        if plain is None:
            continue
        policies = {cell.policy for cell in own}
        kinds = (Kind.TRACES, Kind.PAIRS) if POLICY in policies else (Kind.TRACES,)
        beside = [traced, *(other for other in sets if other.model != traced.model and other[2:] == traced[2:])]
        for claim in CLAIMS:
            if claim.kind in kinds and claim.concerns(traced.family):
                planted = partial(_planted, claim, beside, _missing(plain, policies), len(plain.documents))
                for verdict in every_way(planted):
                    if verdict.decided:
                        yield part_of(plain), claim.name, verdict.status


def _planted(claim: Claim, beside: Sequence[Traced], missing: set[str], n: int, side: Side) -> Verdict:
    """The verdict on a claim about the first of these models."""
    first, *others = (
        Measures(one.model, one.family, claim.kind, prompts=n, estimates=Planted(one.model, side, missing, n > 1))
        for one in beside
    )
    return claim.verdict(replace(first, others=tuple(others)))


def every_way(ask: Callable[[Side], Verdict]) -> Iterator[Verdict]:
    """What a rule says under every choice of sides of what it asks for.

    At first all are high; then each that was asked for is low in turn, with what is asked for then high again, and so on.
    """
    todo: list[tuple[int, ...]] = [()]
    while todo:
        first = todo.pop()
        sides: dict[str, int] = defaultdict(partial(next, chain(first, repeat(1))))
        yield ask(sides.__getitem__)
        chosen = tuple(sides.values())
        todo += [(*chosen[:at], -1) for at in range(len(first), len(chosen))]


def _missing(cell: Cell, policies: Iterable[str]) -> set[str]:
    """Measures that the recordings of a cell do not give, by their names."""
    decoding, capture = cell.experiment.decoding, cell.capture
    blocks = decoding.new_tokens // int(getattr(decoding, "block", 0) or decoding.new_tokens)
    missing = set() if blocks > 1 else {Measure.BLOCK_P.named()}
    if not getattr(capture, "by_query", False):
        missing |= {Measure.SPLIT_BEYOND.named()}
    if getattr(capture, "level", "") != "maps":
        missing |= {Measure.CONFIDENCE_OF.named(LESS), Measure.DELAY_OF.named(LESS)}
    # One control has one damage, and cannot lie on both sides of the policy's.
    lone = {measure.named(of) for measure in (Measure.CONFIDENCE_OF, Measure.DELAY_OF) for of in BEYOND}
    return missing if sum(control(policy) is not None for policy in policies) > 1 else missing | lone
