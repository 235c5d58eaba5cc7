"""Every measure that one part produces and another reads: its name, its unit, its label. Nowhere else are these names spelled.

A measure of each kind of token, of head or of event is one member whose name has a gap: `Measure.ENRICHMENT.named("newline")`.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from sinkscope.base.masked import Masked
from sinkscope.base.sink_rule import EPSILON

Form = Literal["share", "points", "number", "signed", "nats", "p"]
"""How a number is shown: 0.43 as 43 %, as 43 points, as 0.43, as +0.43, with three digits, or as a p-value."""
_HEAD_STEPS, _SINK_STEPS = "share of heads and steps", "share of heads and steps with a sink"
_DETECTIONS, _BOTH = "share of detections", "share of heads and steps where both have a sink"
_UNIFORM = "received attention, uniform = 1"
_MOVES, _SHIFTED, _NATS = "share of moves", "p, shifted event times", "nats per key and step, held out"
_CONFIDENCE, _DELAY = "confidence, b − a", "steps, b − a"


class Measure(Enum):
    """Name in tables, unit, form, and the label that follows the number: "58 % of heads and steps have no sink"."""

    def __init__(self, title: str, unit: str, form: Form = "share", label: str = "") -> None:
        self.title, self.unit, self.form, self.label = title, unit, form, label or unit

    def named(self, of: str = "") -> str:
        """The name in tables; of: what fills its gap.

        >>> Measure.ENRICHMENT.named("newline")
        'newline: enrichment'
        """
        return self.title.format(of)

    # fmt: off
    # ---- traces: data, where, strength, anatomy
    SAMPLES = "samples", "samples", "number"
    PROMPTS = "prompts", "prompts", "number"
    STEPS = "steps", "recorded steps per sample", "number"
    HEADS = "heads", "heads", "number"
    UNKNOWN = "unknown keys", "share of tokens", "share", "of the keys could not be judged"
    SINKS = "sinks per head", "sinks per head and step", "number", "sinks per head"
    SINKS_FEWER = "fewer sinks per head", "sinks per head and step", "signed", "sinks per head fewer"
    WITHOUT = "heads without a sink", _HEAD_STEPS, "share", "of heads and steps have no sink"
    WITH = "heads with", _HEAD_STEPS, "share", "of heads and steps have a sink"
    DISTINCT = "distinct positions", "positions per layer and step", "number"
    ON_FIRST = "on the first 4 positions", "share of sink attention", "share", "of sink attention is on the first 4"
    FILTERED = f"tokens that are no sinks at ε = {EPSILON:g}", "share of tokens", "share", "of tokens are not sinks"
    ABSORBED = "absorbed", "share of attention"
    LEARNED = "learned sink", "share of attention", "share", "of attention goes to learned sinks"
    MAIN = "main sink of a head", _UNIFORM, "number"
    MAIN_SHARE = "main sink of a head: share", "share of a query's attention"
    STORES = "{}, causal forwards", ""  # in the unit of what fills the gap
    GU = "heads with mean attention > 0.3 on the first token", "share of heads"
    DRAINS = "drains", _DETECTIONS, "share", "of detections are drains"
    HUBS = "hubs", _DETECTIONS, "share", "of detections are hubs"
    # ---- traces: depth
    SINKS_DEPTH = "sinks per head: change with depth", "sinks per head, first layer to last", "signed"
    ABSORBED_DEPTH = "absorbed: change with depth", "of all attention, first layer to last", "signed"
    MAIN_DEPTH = "main sink: change with depth", f"{_UNIFORM}, first layer to last", "signed"
    ONE_OR_TWO = "one or two positions in the deepest layers", "share of layers and steps", "share", "of steps have one or two"
    SPLIT = "split by query in the deepest layers", _BOTH
    SPLIT_RANDOM = "split by random classes", _BOTH
    SPLIT_BEYOND = "split beyond random classes", _BOTH, "share", "beyond random classes"
    # ---- traces: dynamics
    KIND = "{} heads", _SINK_STEPS, "share", "belong to {} heads"
    MOVING = "moving or vanishing heads", _SINK_STEPS, "share", "belong to heads that move or vanish"
    KIND_BEYOND = "{} heads beyond chance", _SINK_STEPS, "share", "more than in noise that lasts as long"
    MOVING_CHANCE = "moving or vanishing heads by chance", _SINK_STEPS, "share", "in noise that lasts as long"
    MOVING_BEYOND = "moving or vanishing heads beyond chance", _SINK_STEPS, "share", "more than in noise that lasts as long"
    STRONGEST_MOVES = "strongest sink moves", "moves per head and step"
    ONE_STEP = "residences of one step", "share of residences", "share", "of residences last one step"
    STEP_OVERLAP = "overlap with the step before", "Jaccard index"
    LAYER_OVERLAP = "overlap with the next layer", "Jaccard index"
    SPATIAL = "spatial variance", f"({_UNIFORM})²", "number"
    TEMPORAL = "temporal variance", "positions²", "number"
    TIES = "tied selections", "share of selections", "share", "of the selections were ties"
    DRIFT = "drift against {}", "share of the length per generation", "signed", "of the length"
    LEFT = "moves as its token is decided", _MOVES
    REACHED = "moves to a token just decided", _MOVES
    BLOCK = "moves as a block ends", _MOVES
    LEFT_P = "moves as its token is decided: p", _SHIFTED, "p", "p of moves as tokens are decided"
    REACHED_P = "moves to a token just decided: p", _SHIFTED, "p", "p of moves to decided tokens"
    BLOCK_P = "moves as a block ends: p", _SHIFTED, "p", "p of moves at the ends of blocks"
    FIRST_ON_MASK = "first on the right-most mask", "share of heads with a sink in the first step", "share", "of heads do"
    # ---- traces: composition, attribution
    FREQUENCY = "{}: frequency", _DETECTIONS, "share", "of detections"
    ENRICHMENT = "{}: enrichment", "× base rate of the same steps and regions", "number", "times chance"
    GAIN = "gain: {}", _NATS, "nats", "nats per key and step"
    SEMANTIC = "gain: category − 2 × position", _NATS, "nats", "nats per key and step, category − 2 × position"
    POSITIONAL = "gain: position − 2 × category", _NATS, "nats", "nats per key and step, position − 2 × category"
    # ---- pairs of traces
    FLOW = "attention to {}", "share of attention, b − a", "signed"
    SAME_INPUT = "same input", "share of steps"
    CONFIDENCE_CHANGE = "confidence change", _CONFIDENCE, "signed", "confidence"
    CONFIDENCE_OF = "confidence change of {} tokens", _CONFIDENCE, "signed", "confidence"
    DELAY = "delay", _DELAY, "signed", "steps later"
    DELAY_OF = "delay of {} tokens", _DELAY, "signed", "steps later"
    DAMAGE = "damage of the control, {}", "change of confidence, share of the policy's", "share", "of the damage by a control"
    RIGHT_CHANGE = "right tokens change", "share of masked positions, b − a", "points", "change of the share of right tokens"
    OVERCONFIDENCE = "overconfidence change", "confidence − right tokens, b − a", "points", "more confidence than right tokens"
    DEPENDENCE_DELAY = "dependence and delay", "rank correlation", "signed"
    # ---- inspections: section/measure/place
    PATCH = "patch/{}: kl/difference", "nats beyond the control", "nats", "nats beyond the control"
    LENS_ELSEWHERE = "lens/a token due elsewhere/difference", "more often than at other places", "nats"
    VALUE_MOVES = "movement/drift of the value/difference", "1 − cosine, less that of others", "nats"
    FORESIGHT = "foresight/from the block's first step/recall", "of the top keys", "nats"
    ANGLE = "scores/angle's part/all", "of the gap in scores", "nats"
    PROBE = "probe/{}/sinks", "skill", "signed", "skill"
    PROBE_OTHERS = "probe/{}/others", "skill", "signed", "skill at random places"
    PROBE_FIXED = "probe/{}/fixed", "skill", "signed", "skill at a fixed place"
    PROBE_SHUFFLED = "probe/{}/shuffled", "skill", "signed", "skill with shuffled labels"
    PROBE_MORE = "probe/{}/difference", "skill, sinks less others", "signed", "more skill at sinks"
    PROBE_MORE_FIXED = "probe/{}/fixed difference", "skill, sinks less a fixed place", "signed", "more than at a fixed place"
    # ---- policies: scores (accuracy, or a token's probability), and what was masked
    GUESS = "guess", "accuracy", "share", "is guessed, and points count what lies above it"
    BASE = "base", "score without a policy", "number", "is the score without a mask"
    LOST = "lost", "score lost", "points", "lost"
    LOST_MORE = "lost more", "score lost beyond another policy", "points", "more lost"
    KEPT = "kept", "share of the score without a policy", "share", "left"
    KEPT_MORE = "kept more", "difference of the shares that are left", "share", "more kept"
    OVER_COUNT = "over control", "score lost beyond as many random keys", "points", "more than as many random keys cost"
    OVER_MASS = "over mass control", "score lost beyond equal attention", "points", "more than keys of equal attention cost"
    OVER_OTHERS = "over other keys", "score lost beyond the other half of a mask", "points", "more than the other keys cost"
    HITS = Masked.HITS.heading, "share of the sinks", "share", "of the sinks were masked"
    STRONGEST = Masked.STRONGEST.heading, "share of heads", "share", "of heads had their strongest sink masked"
    REMOVED = "removed", "share of attention", "share", "of the attention was removed"
    SINKS_REMOVED = "sink attention removed", "share of the sinks' attention", "share", "of the sinks' attention was removed"
    MATCHED = "matched", "share of the policy's attention", "share", "as much attention was removed by the control"
    LEAST = "documents needed", "documents", "number", "documents are needed to show that so little is lost"
    GAIN_FIRST = "first keys gain", "score gained", "points", "gained with the first keys in sight"
    SKILL_APART = "apart", "share of right answers, beyond the other skills", "points", "more lost than by the other skills"
    CHANGE = "change of {}", "of the measure", "signed"
    SLOPE = "slope of {}", "for ten times the parameters", "signed"
    P = "p", "p", "p", "p"
    # fmt: on
