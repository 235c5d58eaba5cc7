"""Verdicts: an interval against a limit, as data. `verdict` has the type and the decision, `wording` the sentences."""

from sinkscope.sinks.measures import Measure
from sinkscope.verdicts.verdict import UNKNOWN, Decision, Number, Reason, Side, Status, Verdict, certain, decide

__all__ = ["UNKNOWN", "Decision", "Measure", "Number", "Reason", "Side", "Status", "Verdict", "certain", "decide"]
