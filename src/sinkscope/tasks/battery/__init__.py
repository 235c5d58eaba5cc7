"""The battery: nine generated skills with a dial for difficulty, for small models and for instruct models alike.

A skill is a file with a `SKILL`, named in `strata.SKILLS`; `task` asks them, `documents` makes their texts.
"""

from sinkscope.tasks.battery.documents import test_documents, train_document, train_documents
from sinkscope.tasks.battery.strata import SKILLS, Stratum, strata, stratum_of

__all__ = [
    "SKILLS",
    "Stratum",
    "strata",
    "stratum_of",
    "test_documents",
    "train_document",
    "train_documents",
]
