"""Which claims on the paper each part of a study measures, before it runs, and from how many documents on it can decide them.

Of traces the claims' data say what has to be recorded. Of scores the rules are asked, about results as clear as can be: whole
scores are lost or none, masks hit every sink, and controls of equal attention remove as much. How likely a decision is, nobody
knows before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, product

from sinkscope.study.cells import Cell
from sinkscope.study.measured import POLICY, side_by_side, studied
from sinkscope.study.names import control, pooled, role
from sinkscope.study.spec import CAUSAL
from sinkscope.tasks.reading import ReadTask
from sinkscope.tasks.registry import base_and_scheme, guessed
from sinkscope.verdicts import Measure, Status, Verdict
from sinkscope.verdicts.mask_rules import LEAST_HIT, MATCHED
from sinkscope.verdicts.measures import Kind, Measures, PolicyRun
from sinkscope.verdicts.questions import CLAIMS, Claim

CONDITION = (
    f"a loss counts only where the mask hit the strongest sink of {LEAST_HIT:.0%} of the heads, and for most claims only where a "
    f"control of equal attention removed {1 - MATCHED:.0%} of what the mask did: that is seen when it is measured"
)
MOST = 100
"""More documents decide nothing, however clear the results, that these do not."""
LEAST_PROMPTS = 2
"""One prompt has no interval."""
NOTHING, MASKS, HALF, ASKED = (0.0, 0.0, 0.0), (1.0, 1.0, 0.0), (0.5, 0.5, 0.5), (1.0, 0.0, 0.0)
"""The shares of its answers that a model loses under the claim's policy, under other masks, and under controls."""
OUTCOMES = ((NOTHING, NOTHING), (MASKS, MASKS), (HALF, HALF), (MASKS, NOTHING), (NOTHING, MASKS), (ASKED, ASKED))
"""Of the model in question, and of every other one."""


@dataclass(frozen=True)
class Decides:
    """A claim that a part of a study can decide.

    Attributes:
        documents: how many the part has for each model, decoding and policy.
        supported, contradicted: the number from which on it can be; None: never.
    """

    part: str
    documents: int
    claim: str
    supported: int | None
    contradicted: int | None


def deciding(cells: Iterable[Cell]) -> list[Decides]:
    """What each part can decide; a part is a task, or a set of traces, with all its sections."""
    parts: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.kind in ("evaluate", "trace") and cell.exact:
            parts[f"[[{cell.kind}]] {cell.group or base_and_scheme(cell.task)[0]}"].append(cell)
    decides = []
    for part, members in parts.items():
        documents = max(len(cell.documents) for cell in members)
        least = _of_answers(members) if members[0].kind == "evaluate" else _of_traces(members)
        decides += [Decides(part, documents, claim.name, *ends) for claim, ends in least if any(ends)]
    return decides


def sentences(decides: Sequence[Decides]) -> Iterator[str]:
    """The same for people: claims that need as many documents stand together."""
    for (part, documents), claims in groupby(decides, lambda each: (each.part, each.documents)):
        yield f"{part}, {documents} documents, can decide"
        alike: dict[str, list[str]] = defaultdict(list)
        for each in claims:
            ends = {"supported": each.supported, "contradicted": each.contradicted}
            alike[", ".join(f"{word} from {least} on" for word, least in ends.items() if least)].append(each.claim)
        yield from (f"  {', '.join(names)}: {said}" for said, names in alike.items())
    if {each.claim for each in decides} & {claim.name for claim in CLAIMS if claim.kind == Kind.ACCURACIES}:
        yield CONDITION


Least = Iterator[tuple[Claim, tuple[int | None, int | None]]]
"""A claim, and from how many documents on it may be supported, and contradicted."""


def _of_traces(cells: Sequence[Cell]) -> Least:
    """Of the claims on traces, and on pairs of them, those for which everything is recorded."""
    plain = [cell for cell in cells if cell.policy == "none"]
    for claim in CLAIMS:
        if any(_recorded(claim, cell, cells) for cell in plain if claim.concerns(cell.experiment.model.family)):
            yield claim, (LEAST_PROMPTS, LEAST_PROMPTS)


def _recorded(claim: Claim, plain: Cell, cells: Sequence[Cell]) -> bool:
    """Whether all that a claim asks for is recorded, of the model of a cell without a policy, and of others beside it."""
    decoding, capture = plain.experiment.decoding, plain.capture
    if claim.kind == Kind.PAIRS:
        # One control has one damage, and cannot lie on both sides of the policy's.
        policies = {cell.policy for cell in cells if cell.model == plain.model}
        several = sum(control(policy) is not None for policy in policies) > 1
        return POLICY in policies and several and getattr(capture, "level", "") == "maps"
    beside = {cell.experiment.model.family for cell in cells if cell.policy == "none"}
    there = {
        Measure.SPLIT_BEYOND.name: getattr(capture, "by_query", False),
        Measure.BLOCK_P.name: (getattr(decoding, "block", None) or decoding.new_tokens) < decoding.new_tokens,
    }
    rival = claim.options.get("family")
    return (
        claim.kind == Kind.TRACES
        and rival in {None, *beside}
        and all(there.get(name, True) for name in claim.options.values())
    )


def _of_answers(cells: Sequence[Cell]) -> Least:
    """What becomes of each claim on scores under each outcome, for each model that it is about."""
    models = studied(cells)
    text = isinstance(cells[0].experiment.task, ReadTask)
    guess = guessed(cells[0].task, ())  # documents are not read for a plan: of the battery, none
    masks: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for cell in cells:
        policy, among = cell.policy, getattr(cell.experiment.policy, "among", "")
        masked = 2 if control(policy) is not None or among == "others" else 1
        column = 3 if policy == "none" else masked
        for name in (pooled(policy), role(policy, cell.experiment.model.family == CAUSAL)):
            masks[cell.model.name, cell.decoding_name][name] = column

    def verdicts(claim: Claim, documents: int) -> Iterator[Verdict]:
        asked = claim.options.get("policy")
        concerned = [name for name, model in models.items() if claim.concerns(model.family)]
        for name, outcome in product(concerned, OUTCOMES):
            measured = []
            for (model, decoding), policies in masks.items():
                lost = [_scores(documents, share, text) for share in (*outcome[model != name], 0.0)]
                columns = {policy: 0 if policy == asked else column for policy, column in policies.items()}
                runs = {policy: PolicyRun(lost[column], 1.0, 1.0, 1.0, 1.0) for policy, column in columns.items()}
                kind = Kind.TEXTS if text else Kind.ACCURACIES
                measured.append(Measures(model, models[model].family, kind, decoding, runs=runs, guess=guess))
            yield from (claim.verdict(each) for each in side_by_side(measured, models) if each.subject == name)

    def least(claim: Claim, status: Status) -> int | None:
        def can(documents: int) -> bool:
            return any(verdict.status == status for verdict in verdicts(claim, documents))

        return bisect_left(range(MOST), True, lo=1, key=can) if can(MOST) else None

    for claim in CLAIMS:
        if claim.kind == Kind.ACCURACIES:
            yield claim, (least(claim, Status.SUPPORTED), least(claim, Status.CONTRADICTED))


@lru_cache(maxsize=1024)
def _scores(documents: int, share: float, text: bool) -> dict[str, float]:
    """Documents of which a share is lost: their answers, or for each text three nats per token."""
    gone = [int((number + 1) * share) > int(number * share) for number in range(documents)]
    return {str(number): 3.0 + 3.0 * lost if text else float(not lost) for number, lost in enumerate(gone)}
