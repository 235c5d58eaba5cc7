"""Tasks: documents, prompts and grading, with nothing but the standard library at import time."""

from sinkscope.tasks.registry import get, names
from sinkscope.tasks.task import Document, Prompt, Scheme, Task, Turn, Verdict

__all__ = ["Document", "Prompt", "Scheme", "Task", "Turn", "Verdict", "get", "names"]
