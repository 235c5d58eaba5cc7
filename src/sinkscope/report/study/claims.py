"""The claims of "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731), each with the rule that decides on it here.

`judge` is a pure function of the evidence. What a claim is about is a family of models: the paper speaks of LLaDA-8B, Dream-7B,
MMaDA-8B and Llama-3.1-8B. A verdict is about the model that was studied, not about those.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sinkscope.report.study.evidence import ACCURACIES, PAIRS, TRACES, Evidence
from sinkscope.report.study.masking_rules import (
    collapses,
    due_to_sinks,
    keeps,
    loses_less_than_causal,
    loses_most,
    worse,
)
from sinkscope.report.study.rules import NOT_MEASURED, Judgement, Rule
from sinkscope.report.study.trace_rules import (
    drifts,
    enriched,
    kinds,
    later_and_less_sure,
    leads,
    measure,
    rarer,
    with_sinks,
)

DIFFUSION = ("llada", "dream", "mmada")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        text: the claim in our words; where: its place in the paper; measured: how it is measured here; rule: how it is decided.
        families: the kinds of model that it is about.
        kind: the kind of evidence that decides on it; every task, or set of traces, is judged.
    """

    name: str
    theme: str
    text: str
    where: str
    measured: str
    rule: str
    families: tuple[str, ...]
    decide: Rule
    kind: str = TRACES


THEMES = "What breaks without them", "How many, and where", "Movement", "What they are made of"
"""In the order of the table: the paper's main question first."""

BREAK, COUNT, MOVE, MADE = THEMES
FIVE = "5 points"
WHOLLY = "the whole interval clears"
RELATIVE = (
    "both masks hid half of their model's sinks and both controls were run; the shares that are kept differ by over 5 % in the "
    "whole interval, and the larger loss exceeds its control; open where nothing is left in either"
)

CLAIMS = (
    Claim("present", COUNT, "Diffusion language models have attention sinks", "sec. 4.1",
          "share of head-steps that have a sink (ε = 3)", f"{WHOLLY} 1 %", DIFFUSION,
          measure("heads without", 0.01, True, "of head-steps have one", complement=True)),
    Claim("filtered", COUNT, "At ε = 3 at least 96 % of the tokens are no sinks", "sec. 4.1, app. B",
          "share of tokens that are not above the threshold", f"{WHOLLY} 96 %", DIFFUSION,
          measure("tokens filtered at ε = 3", 0.96, True, "of tokens")),
    Claim("rare", COUNT, "Most heads and layers show no clear sink (MMaDA)", "sec. 4.2",
          "share of head-steps without a sink", f"{WHOLLY} one half", ("mmada",),
          measure("heads without", 0.5, True, "of head-steps have none")),
    Claim("rarer", COUNT, "MMaDA’s sinks are rarer than LLaDA’s", "sec. 4.2",
          "sinks per head, beside the study's LLaDA model on the same traced task", f"the difference: {WHOLLY} 0", ("mmada",),
          rarer("llada")),
    Claim("fewer", COUNT, "The number of sinks falls with depth (LLaDA)", "sec. 4.2, fig. 5",
          "sinks per head along a line through all layers, first to last", f"{WHOLLY} 0", ("llada",),
          with_sinks(measure("sinks per head: change with depth", 0.0, False, "sinks per head, first layer to last",
                             shown="number"))),
    Claim("few", COUNT, "The deepest layers have one or two sinks each (LLaDA)", "sec. 4.2",
          "share of the steps in which a layer of the deepest quarter has one or two positions that are sinks",
          f"{WHOLLY} one half", ("llada",),
          with_sinks(measure("one or two positions in the deepest layers", 0.5, True, "of steps have one or two"))),
    Claim("early", COUNT, "Sinks are strongest in the early layers (Dream)", "sec. 4.2",
          "share of the attention that sinks absorb along a line through all layers, first to last", f"{WHOLLY} 0", ("dream",),
          with_sinks(measure("absorbed: change with depth", 0.0, False, "of all attention, first layer to last",
                             shown="number"))),
    Claim("late", COUNT, "Sinks are stronger in the late layers (LLaDA)", "fig. 5",
          "strength of each head's main sink along a line through all layers, first to last", f"{WHOLLY} 0", ("llada",),
          with_sinks(measure("main sink: change with depth", 0.0, True, "times uniform, first layer to last",
                             shown="number"))),
    Claim("moving", MOVE, "Sinks move or vanish as generation goes on (LLaDA, Dream)", "sec. 4.2, figs. 1, 4, 7",
          "share of the head-steps with a sink that belong to heads that move or vanish, and to static ones "
          "(the page on analysis defines them)",
          "supported: moving or vanishing heads are more than half in the whole interval; contradicted: static ones are",
          ("llada", "dream"), kinds(moving=True)),
    Claim("static", MOVE, "Sinks stay where they are (MMaDA; autoregressive models)", "sec. 4.2, figs. 7, 8",
          "the same shares; autoregressive models over all queries and for the newest query", "the reverse; both must agree",
          ("mmada", "causal"), kinds(moving=False)),
    Claim("start", MOVE, "They sit at the start of the sequence (MMaDA; autoregressive models)", "sec. 4.2, fig. 8",
          "share of the sinks' attention on the first 4 positions; autoregressive models over all queries and for the newest one",
          f"{WHOLLY} one half; both must agree", ("mmada", "causal"),
          with_sinks(measure("on the first 4 positions", 0.5, True, "of sink attention"))),
    Claim("lasting", MOVE, "Sinks usually last several steps; some flicker for one (LLaDA)", "sec. 4.2, fig. 6b",
          "share of residences that last one step", f"{WHOLLY} one half", ("llada",),
          with_sinks(measure("residences of one step", 0.5, False, "of residences last one step"))),
    Claim("right", MOVE, "Sinks shift to the right as blocks are finished (LLaDA)", "fig. 7",
          "drift of the strongest sink over a generation, and its moves at the ends of blocks",
          "supported: more than 0.1 of the length to that side in the whole interval, and moves at the ends of blocks more often "
          "than at permuted times (p ≤ 0.05); contradicted: wholly below 0.1; open above 20 % ties", ("llada",),
          drifts(+1, "moves as a block ends")),
    Claim("left", MOVE, "Sinks shift to the left as tokens are decided (Dream)", "sec. 4.2, figs. 7, 8b",
          "drift of the strongest sink over a generation", "more (contradicted: less) than 0.1 of the length to the left in the "
          "whole interval; open above 20 % ties", ("dream",), drifts(-1)),
    Claim("rightmost", MOVE, "They start at the right-most mask (Dream)", "sec. 4.2, fig. 8b",
          "share of the heads with a sink in the first step whose strongest one is the right-most mask",
          f"{WHOLLY} one quarter (“often”)", ("dream",),
          with_sinks(measure("first on the right-most mask", 0.25, True, "of such heads"))),
    Claim("split", MOVE, "In the deepest layers masked and unmasked queries have sinks of their own (LLaDA)", "fig. 6a",
          "how often the two have different sinks in the deepest quarter of the layers, less how often random classes of the "
          "same sizes do", f"{WHOLLY} 0", ("llada",),
          with_sinks(measure("split beyond random classes", 0.0, True, "beyond random classes"))),
    Claim("newline", MADE, "Sinks form on line breaks (LLaDA)", "sec. 4.2, table 2",
          "how often line breaks are sinks, relative to the other keys of the same step and region", f"{WHOLLY} 1",
          ("llada",), enriched("newline")),
    Claim("punctuation", MADE, "… on punctuation (LLaDA)", "sec. 4.2, table 2", "the same for punctuation", f"{WHOLLY} 1",
          ("llada",), enriched("punctuation")),
    Claim("whitespace", MADE, "… on white space (LLaDA)", "sec. 4.2, table 2", "the same for white space", f"{WHOLLY} 1",
          ("llada",), enriched("whitespace")),
    Claim("end", MADE, "… on end-of-text tokens (LLaDA)", "sec. 4.2", "the same for end tokens", f"{WHOLLY} 1",
          ("llada",), enriched("end")),
    Claim("masks", MADE, "Mask tokens hold a good part of the sinks (table 2: 17 to 37 %)", "table 2",
          "the same for masks: their share of the detections says little, because masks are a good part of the text",
          f"{WHOLLY} 1", DIFFUSION, enriched("mask", "share")),
    Claim("semantic", MADE, "Sinks follow the meaning and structure of the text (LLaDA)", "sec. 4.2",
          "what token category and position explain on held-out prompts",
          "one of them holds two thirds of what the two explain uniquely, in the whole interval over prompts", ("llada",),
          leads("semantic", "positional")),
    Claim("positional", MADE, "Sinks follow position (Dream)", "sec. 4.2", "the same", "as above", ("dream",),
          leads("positional", "semantic")),
    Claim("robust-1", BREAK, "Masking each head's top sink hardly hurts a diffusion model", "sec. 4.3, table 1",
          "accuracy under top:1 (each head its own key) beside none, paired by document",
          f"supported: the paired interval of the loss ends below {FIVE} (possible from 93 documents on) and half of the sinks "
          f"were hidden; contradicted: it begins above {FIVE} and the control with as many random keys loses less", DIFFUSION,
          keeps("top:1"), ACCURACIES),
    Claim("robust-5", BREAK, "Nor does masking the top 5", "table 1", "the same under top:5", "as above", DIFFUSION,
          keeps("top:5"), ACCURACIES),
    Claim("dose", BREAK, "Masking the top 10 costs clearly more than masking one", "sec. 4.3, table 1",
          "accuracy under top:10 beside top:1, paired",
          f"supported: over {FIVE} more, and beyond the control of top:10; contradicted: at most {FIVE} more, and top:10 hid "
          "half of the sinks; open where top:1 leaves an accuracy under 0.2", DIFFUSION, worse("top:10", "top:1"), ACCURACIES),
    Claim("mostly", BREAK, "At top 10 the loss is mostly MMaDA’s", "sec. 4.3, table 1",
          "share of the accuracy that is lost under top:10, beside every other diffusion model of the study", RELATIVE,
          ("mmada",), loses_most("top:10", DIFFUSION), ACCURACIES),
    Claim("collapse", BREAK, "An autoregressive model collapses when one sink is masked", "sec. 4.3, table 1",
          "share of the accuracy that is left under top:1 (ranked by the last token's row)",
          "less than half is left in the whole interval, and the control keeps more", ("causal",), collapses("top:1"),
          ACCURACIES),
    Claim("rival", BREAK, "Diffusion models are more robust than autoregressive ones", "abstract, sec. 4.3",
          "share of the accuracy that is lost under top:1, beside the study's causal model", RELATIVE, DIFFUSION,
          loses_less_than_causal("top:1"), ACCURACIES),
    Claim("rival-model", BREAK, "The same, when one set of keys is hidden in the whole model", "another reading of sec. 4.3",
          "the same under top:1@model", "as above", DIFFUSION, loses_less_than_causal("top:1@model"), ACCURACIES),
    Claim("sinks", BREAK, "What is lost is due to the sinks, not to hiding keys", "implied; the paper has no control",
          "the loss under top:1 beside random(top:1), beside random(top:1),match=mass, and under silence",
          f"supported only when the loss exceeds both controls and silence loses more than {FIVE} as well; contradicted when a "
          "control loses as much and leaves something to lose", (*DIFFUSION, "causal"), due_to_sinks("top:1"), ACCURACIES),
    Claim("confidence", BREAK, "Tokens that attended to a masked sink lose confidence and are decided later",
          "sec. 4.3, offered as an explanation",
          "change of confidence and delay from a trace without to one with top:1: tokens that attended to the sinks more than "
          "the median, less the other tokens; less the same under the control where it was traced",
          "supported: confidence wholly below 0 and delay wholly above 0; contradicted: either wholly on the other side",
          DIFFUSION, later_and_less_sure, PAIRS),
)  # fmt: skip


def judge(evidence: Iterable[Evidence]) -> dict[str, dict[str, tuple[Judgement, ...]]]:
    """Claim → model → a judgement for each task or set of traces; none where a claim is not about this kind of model."""
    known = list(evidence)
    families = {one.model: one.family for one in known}
    return {
        claim.name: {
            model: tuple(
                claim.decide(one)._replace(about=one.about, rests=one.rests)
                for one in known
                if one.model == model and one.kind == claim.kind
            )
            or (NOT_MEASURED,)
            if family in claim.families
            else ()
            for model, family in families.items()
        }
        for claim in CLAIMS
    }
