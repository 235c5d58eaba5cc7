"""The claims of "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731), each with the rule that decides on it here.

`judge` is a pure function of the evidence. What a claim is about is a family of models: the paper speaks of LLaDA-8B, Dream-7B,
MMaDA-8B and Llama-3.1-8B. A verdict is about the model that was studied, not about those.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sinkscope.report.study.evidence import Evidence
from sinkscope.report.study.rules import (
    Judgement,
    Rule,
    absent,
    collapses,
    deeper,
    drifts,
    due_to_sinks,
    enriched,
    keeps,
    last_layer,
    loses_less_than_causal,
    measure,
    verdict,
    worse,
)

DIFFUSION = ("llada", "dream", "mmada")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        text: the claim in our words; where: its place in the paper; measured: how it is measured here; rule: what decides.
        families: the kinds of model that it is about.
    """

    name: str
    theme: str
    text: str
    where: str
    measured: str
    rule: str
    families: tuple[str, ...]
    decide: Rule


THEMES = "What breaks without them", "How many, and where", "Movement", "What they are made of"
"""In the order of the table: the paper's main question first."""

BREAK, COUNT, MOVE, MADE = THEMES
FIVE = "5 points"
WHOLLY = "the 95 % interval lies wholly on one side of"

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
    Claim("fewer", COUNT, "The number of sinks falls with depth (LLaDA)", "sec. 4.2, fig. 5",
          "sinks per head, by layer", "the intervals of the first and the last layer are apart", ("llada",),
          deeper("sinks_per_head", True, "(sinks per head)")),
    Claim("few", COUNT, "The deepest layers have one or two sinks each (LLaDA)", "sec. 4.2",
          "distinct positions that are sinks in the last layer", f"{WHOLLY} 2", ("llada",),
          last_layer("distinct_positions", 2.0, "positions in the last layer")),
    Claim("early", COUNT, "Sinks are strongest in the early layers (Dream)", "sec. 4.2",
          "share of the attention that sinks absorb, by layer", "the intervals of the first and the last layer are apart",
          ("dream",), deeper("absorbed", True, "(share of attention)")),
    Claim("late", COUNT, "Sinks are stronger in the late layers (LLaDA)", "fig. 5",
          "strength of each head's main sink: the picture is below, without an interval", "none: no table has an interval",
          ("llada",), absent("not tabulated; see the layer × head picture")),
    Claim("moving", MOVE, "Sinks move or vanish as generation goes on (LLaDA, Dream)", "sec. 4.2, figs. 1, 4, 7",
          "share of the head-steps with a sink that belong to static heads (one residence ≥ 90 % of the steps)",
          f"{WHOLLY} one half", ("llada", "dream"),
          measure("static heads", 0.5, False, "belong to static heads")),
    Claim("static", MOVE, "Sinks stay where they are (MMaDA; autoregressive models)", "sec. 4.2, figs. 7, 8",
          "the same share", f"{WHOLLY} one half", ("mmada", "causal"),
          measure("static heads", 0.5, True, "belong to static heads")),
    Claim("start", MOVE, "They sit at the start of the sequence (MMaDA; autoregressive models)", "sec. 4.2, fig. 8",
          "share of the sinks' attention on the first 4 positions", f"{WHOLLY} one half", ("mmada", "causal"),
          measure("on the first 4 positions", 0.5, True, "of sink attention")),
    Claim("lasting", MOVE, "Sinks usually last several steps; some flicker for one (LLaDA)", "sec. 4.2, fig. 6b",
          "share of residences that last one step", f"{WHOLLY} one half", ("llada",),
          measure("residences of one step", 0.5, False, "of residences last one step")),
    Claim("right", MOVE, "Sinks shift to the right as blocks are finished (LLaDA)", "fig. 7",
          "drift of the strongest sink over a generation", "at least 0.1 of the length to that side, the interval beyond 0; "
          "contradicted when the interval lies wholly below 0.1; open above 20 % ties", ("llada",), drifts(+1)),
    Claim("left", MOVE, "Sinks start at the right end and shift to the left (Dream)", "sec. 4.2, figs. 7, 8b",
          "the same drift", "as above, to the left", ("dream",), drifts(-1)),
    Claim("split", MOVE, "In the deepest layers masked and unmasked queries have sinks of their own (LLaDA)", "fig. 6a",
          "`split_by_layer` of a trace with by_query, and figure 6", "none: no table of a study holds it yet", ("llada",),
          absent("not tabulated; see figures/figure_6")),
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
          "share of the detections that are on masks; mind that masks are a good part of the text, too", f"{WHOLLY} 10 %",
          DIFFUSION, measure("mask: frequency", 0.1, True, "of detections")),
    Claim("semantic", MADE, "Sinks follow the meaning and structure of the text (LLaDA)", "sec. 4.2",
          "what token category and position explain on held-out prompts",
          "two thirds of what the two explain uniquely decide", ("llada",),
          verdict("semantic or positional", "semantic", "positional")),
    Claim("positional", MADE, "Sinks follow position (Dream)", "sec. 4.2", "the same", "as above", ("dream",),
          verdict("semantic or positional", "positional", "semantic")),
    Claim("robust-1", BREAK, "Masking each head's top sink hardly hurts a diffusion model", "sec. 4.3, table 1",
          "accuracy under top:1 (each head its own key) beside none, paired by document",
          f"supported: the paired interval of the loss ends below {FIVE} and half of the sinks were hidden; contradicted: it "
          f"begins above {FIVE} and the control with as many random keys loses less", DIFFUSION, keeps("top:1")),
    Claim("robust-5", BREAK, "Nor does masking the top 5", "table 1", "the same under top:5", "as above", DIFFUSION,
          keeps("top:5")),
    Claim("dose", BREAK, "Masking the top 10 costs clearly more than masking one", "sec. 4.3, table 1",
          "accuracy under top:10 beside top:1, paired", f"{WHOLLY} {FIVE}, and beyond the control of top:10", DIFFUSION,
          worse("top:10", "top:1")),
    Claim("collapse", BREAK, "An autoregressive model collapses when one sink is masked", "sec. 4.3, table 1",
          "accuracy under top:1 (ranked by the last token's row), Wilson interval",
          "less than half of the accuracy is left, and the control keeps more", ("causal",), collapses("top:1")),
    Claim("rival", BREAK, "Diffusion models are more robust than autoregressive ones", "abstract, sec. 4.3",
          "loss of the study's causal model under top:1 minus the loss of this one, paired by document", f"{WHOLLY} {FIVE}",
          DIFFUSION, loses_less_than_causal("top:1")),
    Claim("rival-model", BREAK, "The same, when one set of keys is hidden in the whole model", "another reading of sec. 4.3",
          "the same under top:1@model", "as above", DIFFUSION, loses_less_than_causal("top:1@model")),
    Claim("sinks", BREAK, "What is lost is due to the sinks, not to hiding keys", "implied; the paper has no control",
          "the loss under top:1 beside random(top:1), beside random(top:1),match=mass, and under silence",
          f"supported only when the loss exceeds both controls and silence loses more than {FIVE} as well; contradicted when a "
          "control loses as much", (*DIFFUSION, "causal"), due_to_sinks("top:1")),
    Claim("confidence", BREAK, "Tokens that attended to a masked sink lose confidence and are decided later",
          "sec. 4.3, offered as an explanation", "pairs of traces with and without a policy (study mechanisms)",
          "none: the comparison of such traces needs maps of both", DIFFUSION,
          absent("not measured by this study; see ss.compare_traces")),
)  # fmt: skip


def judge(evidence: Iterable[Evidence]) -> dict[str, dict[str, Judgement | None]]:
    """Claim → model → judgement; None where a claim is not about this kind of model."""
    known = list(evidence)
    return {
        claim.name: {one.model: claim.decide(one) if one.family in claim.families else None for one in known}
        for claim in CLAIMS
    }
