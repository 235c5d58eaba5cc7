"""GSM8K (Cobbe et al. 2021): grade-school word problems, put and graded as each model's official evaluation
does it.

The test set has 1319 documents: `test.jsonl` of github.com/openai/grade-school-math, or `openai/gsm8k` on the
hub.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from sinkscope.errors import InputError
from sinkscope.tasks.extraction import extract, is_right
from sinkscope.tasks.schemes import choose, compose, of_the_paper
from sinkscope.tasks.sources import Example, HubData, read_examples, read_rows
from sinkscope.tasks.task import Document, Prompt, Scheme, Task, Verdict, cut

_FIELDS = ("question", "answer")
_REVISION = "e53f048856ff4f594e959d75785d2c2d37b678ee"
TEST = HubData("openai/gsm8k", "main", "test", "GSM8K's test.jsonl (1319 lines)", 1319, _FIELDS, _REVISION)
TRAIN = HubData("openai/gsm8k", "main", "train", "GSM8K's train.jsonl (7473 lines)", 7473, _FIELDS, _REVISION)

_OPENCOMPASS: dict[str, Any] = {
    "family": "llada",
    "shots": "gsm8k_4shot_opencompass",
    "count": 4,
    "question": "Question: {question}\nLet's think step by step\nAnswer:",
    "extraction": "gsm8k-opencompass",
}
_COT: dict[str, Any] = {
    "question": "Q: {question}\nA:",
    "until": ("Q:", "</s>", "<|im_end|>"),
    "extraction": "gsm8k-flexible",
}
_FIVE: dict[str, Any] = {
    "shots": "train",
    "count": 5,
    "question": "Question: {question}\nAnswer:",
    "until": ("Question:", "</s>", "<|im_end|>"),
    "extraction": "gsm8k-flexible",
}
_THINK = (
    "You should first think about the reasoning process in the mind and then provide the user with the "
    "answer. The reasoning process is enclosed within <think> </think> tags, i.e. <think> reasoning process "
    "here </think> answer here\n"
)
_DREAM: dict[str, Any] = {"algorithm": "entropy", "alg_temp": 0.0}

_SCHEMES = (
    Scheme(
        name="llada-blocks",
        source="ML-GSAI/LLaDA, OpenCompass configuration gsm8k_gen_1d7fe4, in blocks; bf16, batch 1",
        decoding={"length": 256, "steps": 256, "block": 8},
        published={"ML-GSAI/LLaDA EVAL.md, internal": 0.786, "ML-GSAI/LLaDA EVAL.md, OpenCompass": 0.789},
        **_OPENCOMPASS,
    ),
    Scheme(
        name="llada-pure",
        source="ML-GSAI/LLaDA, OpenCompass configuration gsm8k_gen_1d7fe4, one block; bf16, batch 1",
        decoding={"length": 512, "steps": 512, "block": 512, "confidence_eos_eot_inf": True},
        published={"ML-GSAI/LLaDA EVAL.md, internal": 0.694, "ML-GSAI/LLaDA EVAL.md, OpenCompass": 0.688},
        **_OPENCOMPASS,
    ),
    Scheme(
        name="llada-base",
        family="llada",
        source="ML-GSAI/LLaDA, lm-eval 0.4.8 task gsm8k on LLaDA-8B-Base, one block",
        layout="plain",
        decoding={"length": 1024, "steps": 1024, "block": 1024},
        published={"ML-GSAI/LLaDA EVAL.md": 0.703},
        **_FIVE,
    ),
    Scheme(
        name="dream-instruct",
        family="dream",
        source="DreamLM/Dream eval_instruct/eval.sh, lm-eval task gsm8k_cot, no examples; which filter is "
        "reported is not stated, here the flexible one",
        keep_special=True,
        prompt_tokens=1024,
        decoding={"length": 256, "steps": 256, "temperature": 0.1, "top_p": 0.9, **_DREAM},
        published={"Dream paper": 0.81},
        **{**_COT, "until": ("<|endoftext|>", *_COT["until"])},
    ),
    Scheme(
        name="dream-base",
        family="dream",
        source="DreamLM/Dream eval/, lm-eval task gsm8k_cot with 8 examples on Dream-v0-Base-7B",
        shots="gsm8k_8shot_cot",
        count=8,
        layout="plain",
        bos=True,
        decoding={"length": 256, "steps": 256, "temperature": 0.0, **_DREAM},
        published={"Dream paper": 0.772},
        **_COT,
    ),
    Scheme(
        name="mmada-mixcot",
        family="mmada",
        source="Gen-Verse/MMaDA evaluation/lm/eval.sh, lm-eval task gsm8k, 5 examples in one user turn after "
        "the thinking sentence; its authors say results are not aligned with their internal ones",
        layout="one_turn",
        preamble=_THINK,
        decoding={"length": 256, "steps": 256, "block": 64},
        published={"MMaDA paper, other checkpoint and settings": 0.734},
        **_FIVE,
    ),
    Scheme(
        name="llama-cot",
        family="causal",
        source="lm-eval 0.4.13 task gsm8k_cot_llama with --apply_chat_template --fewshot_as_multiturn; the "
        "length is the harness's default",
        shots="gsm8k_8shot_llama",
        count=8,
        question="Given the following problem, reason and give a final answer to the problem.\n"
        'Problem: {question}\nYour response should end with "The final answer is [answer]" where [answer] is '
        "the response to the problem.\n",
        until=("<|eot_id|>", "<|start_header_id|>user<|end_header_id|>", "Q:", "</s>", "<|im_end|>"),
        keep_special=True,
        extraction="gsm8k-flexible",
        decoding={"length": 256},
    ),
    Scheme(
        name="causal-base",
        family="causal",
        source="lm-eval task gsm8k, 5 examples, for models without a chat template",
        layout="plain",
        decoding={"length": 256},
        **_FIVE,
    ),
)
_of_the_paper = partial(of_the_paper, _SCHEMES, "prompt or examples")
_ONE_TURN = "lm-eval's gsm8k, 5 examples in one user turn"
SCHEMES = (
    *_SCHEMES,
    _of_the_paper(
        "llada-base",
        "llada",
        0.76,
        _ONE_TURN,
        layout="one_turn",
        decoding={"length": 256, "steps": 256, "block": 32},
    ),
    _of_the_paper("dream-instruct", "dream", 0.82, "Dream's own evaluation"),
    _of_the_paper("mmada-mixcot", "mmada", 0.54, "MMaDA's evaluation script"),
    _of_the_paper("causal-base", "causal", 0.85, _ONE_TURN, layout="one_turn"),
)

DEFAULTS = {
    "llada": "llada-blocks",
    "dream": "dream-instruct",
    "mmada": "mmada-mixcot",
    "causal": "llama-cot",
}

_SHOTS_SEED = 1234  # lm-eval's default seed of the examples


@dataclass(frozen=True)
class Gsm8k(Task):
    """The task. `data`: the test file; examples from the training set are read from the file beside it."""

    scheme: Scheme
    data: Path | None = None
    name: str = "gsm8k"

    def documents(self, limit: int | None = None) -> list[Document]:
        """The test documents, with examples of their own where the scheme draws them (as lm-eval does)."""
        rows = read_rows(TEST, self.data)
        drawn = self._drawn(len(rows)) if self.scheme.shots == "train" else [{} for _ in rows]
        documents = [
            Document(f"test-{index}", row["question"], row["answer"], extra)
            for index, (row, extra) in enumerate(zip(rows, drawn, strict=True))
        ]
        return documents[:limit]

    def _drawn(self, number: int) -> list[dict[str, str]]:
        """Examples of the training set for each document.

        One random stream, consumed in the order of the documents.
        """
        train = read_rows(TRAIN, None if self.data is None else _train_file(self.data))
        rng = Random(_SHOTS_SEED)  # noqa: S311
        draws = [rng.sample(range(len(train)), self.scheme.count) for _ in range(number)]
        return [
            {"examples": json.dumps([[train[i]["question"], train[i]["answer"]] for i in draw])}
            for draw in draws
        ]

    def prompt(self, document: Document) -> Prompt:
        """The question after the scheme's examples."""
        examples: tuple[Example, ...] = ()
        if "examples" in document.extra:
            examples = tuple(Example(*pair) for pair in json.loads(document.extra["examples"]))
        elif self.scheme.shots:
            examples = read_examples(self.scheme.shots)[: self.scheme.count]
        return compose(self.scheme, self.scheme.question.format(question=document.question), examples)

    def grade(self, document: Document, output: str) -> Verdict:
        """Right when the scheme's extraction finds the gold number.

        The gold text itself is always right: OpenCompass's rule, kept as it is, misses the 14 with commas.
        """
        number = extract(self.scheme.extraction, cut(output, self.scheme.until))
        gold = output.strip() == document.answer.strip()
        return Verdict(gold or is_right(self.scheme.extraction, number, document.answer), number)


def _train_file(test: Path) -> Path:
    """The training file beside a test file: the same name with "train" for "test"."""
    train = test.with_name(test.name.replace("test", "train"))
    if train == test or not train.is_file():
        raise InputError(
            f"this scheme draws its examples from GSM8K's training set, and there is no {train.name} beside "
            f"{test}: put {TRAIN.file} there under that name, or choose a scheme with fixed examples"
        )
    return train


def task(scheme: str | None = None, family: str | None = None, data: str | Path | None = None) -> Gsm8k:
    """GSM8K by a named scheme, else by the default of a family."""
    return Gsm8k(choose("gsm8k", SCHEMES, DEFAULTS, scheme, family), None if data is None else Path(data))
