"""HumanEval (Chen et al. 2021): functions to complete, put and graded as each model's official evaluation
does it.

The test set has 164 documents: `HumanEval.jsonl.gz` of github.com/openai/human-eval, or
`openai/openai_humaneval` on the hub. Programs run in the sandbox, three seconds each as in the original, with
the standard library alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError, nearest
from sinkscope.tasks import bounded
from sinkscope.tasks.bounded import Reading
from sinkscope.tasks.code_text import RULES
from sinkscope.tasks.programs import grade_programs
from sinkscope.tasks.schemes import choose, compose, of_the_paper
from sinkscope.tasks.sources import HubData, read_rows
from sinkscope.tasks.task import Document, Prompt, Scheme, Task, Verdict, cut

TEST = HubData(
    "openai/openai_humaneval",
    "openai_humaneval",
    "test",
    "HumanEval.jsonl.gz or HumanEval.jsonl (164 lines)",
    164,
    ("task_id", "prompt", "entry_point", "canonical_solution", "test"),
    "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
)

_ENTROPY = {"algorithm": "entropy", "alg_temp": 0.0}
_STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
_OPENCOMPASS: dict[str, Any] = {
    "family": "llada",
    "question": "Complete the following python code:\n{question}",
    "extraction": "first-block",
}
_INSTRUCT: dict[str, Any] = {  # lm-eval 0.4.13
    "question": "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{question}\n```\n",
    "prefix": "Here is the completed function:\n```python\n{question}\n",
    "until": _STOPS,
    "extraction": "completion-before-fence",
}
_DREAM_INSTRUCT: dict[str, Any] = {  # the fork of lm-eval in Dream's repository: no closing fence
    "family": "dream",
    "question": "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```{question}",
    "prefix": "Here is the completed function:\n```python\n{question}\n",
    "until": ("<|endoftext|>", *_STOPS),
    "keep_special": True,
    "prompt_tokens": 1024,
    "extraction": "sanitized",
    "decoding": {"length": 768, "steps": 768, "temperature": 0.1, "top_p": 0.9, **_ENTROPY},
}

_SCHEMES = (
    Scheme(
        name="llada-pure",
        source="ML-GSAI/LLaDA, OpenCompass configuration of HumanEval, one block; bf16, batch 1",
        decoding={"length": 512, "steps": 512, "block": 512, "logits_eos_inf": True},
        published={"ML-GSAI/LLaDA EVAL.md, internal": 0.494, "ML-GSAI/LLaDA EVAL.md, OpenCompass": 0.47},
        **_OPENCOMPASS,
    ),
    Scheme(
        name="llada-blocks",
        source="ML-GSAI/LLaDA, OpenCompass configuration of HumanEval, in blocks; no score is published",
        decoding={"length": 512, "steps": 512, "block": 32},
        **_OPENCOMPASS,
    ),
    Scheme(
        name="llada-base",
        family="llada",
        source="ML-GSAI/LLaDA, lm-eval 0.4.8 task humaneval on LLaDA-8B-Base, one block",
        layout="plain",
        until=_STOPS,
        extraction="completion",
        decoding={"length": 1024, "steps": 1024, "block": 1024},
        published={"ML-GSAI/LLaDA EVAL.md": 0.354},
    ),
    Scheme(
        name="dream-instruct",
        source="DreamLM/Dream eval_instruct/eval.sh, task humaneval_instruct of its lm-eval fork",
        published={"Dream paper": 0.555},
        **_DREAM_INSTRUCT,
    ),
    Scheme(
        name="dream-base",
        family="dream",
        source="DreamLM/Dream eval/, lm-eval task humaneval on Dream-v0-Base-7B, and its postprocess_code.py",
        layout="plain",
        bos=True,
        extraction="sanitized",
        decoding={"length": 512, "steps": 512, "temperature": 0.2, "top_p": 0.95, **_ENTROPY},
        published={"Dream paper": 0.579},
    ),
    Scheme(
        name="mmada-instruct",
        family="mmada",
        source="ours: MMaDA publishes no HumanEval; lm-eval's humaneval_instruct with twice the lengths "
        "of its GSM8K script",
        decoding={"length": 512, "steps": 512, "block": 64},
        **_INSTRUCT,
    ),
    Scheme(
        name="llama-instruct",
        family="causal",
        source="lm-eval 0.4.13 task humaneval_instruct with --apply_chat_template",
        decoding={"length": 1024},
        **_INSTRUCT,
    ),
    Scheme(
        name="causal-base",
        family="causal",
        source="lm-eval 0.4.13 task humaneval, for models without a chat template",
        layout="plain",
        until=_STOPS,
        extraction="completion",
        decoding={"length": 1024},
    ),
)
_of_the_paper = partial(of_the_paper, _SCHEMES, "the prompt")
_IN_BLOCKS = {"length": 512, "steps": 512, "block": 32}
SCHEMES = (
    *_SCHEMES,
    _of_the_paper("mmada-instruct", "llada", 0.37, "lm-eval's humaneval_instruct", decoding=_IN_BLOCKS),
    _of_the_paper("dream-instruct", "dream", 0.60, "Dream's own evaluation"),
    _of_the_paper("mmada-instruct", "mmada", 0.16, "as mmada-instruct"),
    _of_the_paper("llama-instruct", "causal", 0.66, "lm-eval's humaneval_instruct"),
)

DEFAULTS = {
    "llada": "llada-pure",
    "dream": "dream-instruct",
    "mmada": "mmada-instruct",
    "causal": "llama-instruct",
}


@dataclass(frozen=True)
class HumanEval(Task):
    """The task. `data`: the file of documents."""

    scheme: Scheme
    data: Path | None = None
    name: str = "humaneval"
    runs_code: bool = True
    sandbox: str = "auto"

    def documents(self, limit: int | None = None) -> list[Document]:
        """The documents in their order, which is that of their ids."""
        rows = read_rows(TEST, self.data)
        return [
            Document(
                row["task_id"],
                row["prompt"],
                row["canonical_solution"],
                {"entry_point": row["entry_point"], "tests": f"{row['test']}\ncheck({row['entry_point']})"},
            )
            for row in rows[:limit]
        ]

    def prompt(self, document: Document) -> Prompt:
        """The function to complete, worded by the scheme."""
        # Not str.format: prompts contain braces of their own.
        asked, prefix = (
            text.replace("{question}", document.question)
            for text in (self.scheme.question, self.scheme.prefix)
        )
        prompt = compose(self.scheme, asked)
        return Prompt(prompt.turns, prefix, prompt.chat)

    def programs(self, pairs: Sequence[tuple[Document, str]]) -> list[Reading]:
        """The sources that are run before the tests; an answer that cannot be read has none."""
        rule = self.scheme.extraction
        if rule not in RULES:
            raise InputError(f"unknown extraction {rule!r}: {nearest(rule, RULES)}")
        return bounded.apply(
            [
                (rule, document.question, cut(output, self.scheme.until), document.extra["entry_point"])
                for document, output in pairs
            ]
        )

    def grade(self, document: Document, output: str) -> Verdict:
        """Right when the program passes the document's tests."""
        return self.grade_many([(document, output)])[0]

    def grade_many(self, pairs: Sequence[tuple[Document, str]], workers: int | None = None) -> list[Verdict]:
        """`grade` for each pair, `workers` programs at a time."""
        tests = [document.extra["tests"] for document, _ in pairs]
        programs = list(zip(self.programs(pairs), tests, strict=True))
        return grade_programs(programs, self.scheme.timeout, self.sandbox, workers)


def task(scheme: str | None = None, family: str | None = None, data: str | Path | None = None) -> HumanEval:
    """HumanEval by a named scheme, else by the default of a family."""
    return HumanEval(
        choose("humaneval", SCHEMES, DEFAULTS, scheme, family), None if data is None else Path(data)
    )
