"""Tasks: documents, prompts and grading, with nothing but the standard library at import time."""

from sinkscope.tasks.registry import get, names
from sinkscope.tasks.task import Document, Mark, Prompt, Scheme, Task, Turn

__all__ = ["Document", "Mark", "Prompt", "Scheme", "Task", "Turn", "get", "names"]
