"""The battery: nine generated skills with a dial for difficulty, for small models and for instruct models alike.

A skill is an entry of `skills.SKILLS`; `task` asks them, `documents` makes their texts.
"""

from sinkscope.tasks.battery.documents import (
    SKILLS,
    Stratum,
    strata,
    stratum_of,
    test_documents,
    train_document,
    train_documents,
)

__all__ = [
    "SKILLS", "Stratum", "strata", "stratum_of", "test_documents", "train_document", "train_documents",
]  # fmt: skip
