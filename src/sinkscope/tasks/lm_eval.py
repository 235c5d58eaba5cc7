"""The bridge to lm-eval: once this is imported, lm-eval knows the model "sinkscope".

What it does not do: run model-written code outside our sandbox (such tasks are refused; use
`sinkscope evaluate`), or pass off a diffusion model's bound as a log-likelihood (results say what they are).
"""

from __future__ import annotations

import gc
import inspect
import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm  # type: ignore[import-untyped]

from sinkscope.base.checks import one_of, whole
from sinkscope.base.errors import InputError
from sinkscope.base.extras import EXTRAS, read_extras
from sinkscope.decoding import Decoding, decoding_from_options, option_fields
from sinkscope.generation.generate import generate
from sinkscope.models.load import load
from sinkscope.models.prompts import decode, render
from sinkscope.policies import parse_policy
from sinkscope.tasks.answer import rows_at_once
from sinkscope.tasks.experiment import Experiment, ModelIdentity
from sinkscope.tasks.likelihood import DRAWS, Likelihood, likelihoods
from sinkscope.tasks.prompting import start_token, tokenizer_of
from sinkscope.tasks.task import Document, Mark, Task, cut, digest, in_parts, seed_of

LENGTH = 256  # lm-eval's own default, where neither task nor user says
LONGEST = 2048  # windows of rolling likelihoods, where a model states no context
NOT_COMPARABLE = (
    "Monte Carlo lower bound of a diffusion model; not comparable with the exact log-likelihoods of causal models"
)

log = logging.getLogger("lm_eval.sinkscope")


class Requests(Task):
    """The task of the bridge: lm-eval words the questions and grades the answers."""

    name = "lm-eval"

    def documents(self, limit: int | None = None) -> Sequence[Document]:
        return ()

    def grade(self, document: Document, output: str) -> Mark:
        raise InputError("answers to lm-eval's requests are graded by lm-eval")


@register_model("sinkscope")
class SinkscopeLM(TemplateLM):  # type: ignore[misc]
    """A sinkscope model as lm-eval sees it.

    Args (of --model_args):
        pretrained: what `ss.load` takes.
        policy: a policy's text form, with ";" for "," (lm-eval splits its arguments there): "random(top:5);seed=1".
        device: None, or a GPU that is not there (lm-eval's default): the best device that is.
        seed: of every random stream; each request has its own, so nothing depends on the batch.
        draws: of the Monte Carlo bound.
        Other arguments are options of the family's decoding: length, steps, block, …; or extras by their names, such as a rule of
        approximate steps, likewise with ";". These are for generation only.
    """

    def __init__(
        self,
        pretrained: str = "",
        policy: str | None = None,
        device: str | None = None,
        dtype: str = "auto",
        revision: str | None = None,
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        seed: int = 0,
        draws: int = DRAWS,
        **decoding: Any,
    ) -> None:
        super().__init__()
        if not pretrained:
            raise InputError("which model? give --model_args pretrained=MODEL, an organism, a folder or a hub id")
        rule = parse_policy(str(policy or "none").replace(";", ","))
        extras = read_extras({name: str(decoding.pop(name)).replace(";", ",") for name in EXTRAS if name in decoding})
        self.model = load(pretrained, _device(device), dtype, revision)
        self.tokenizer = tokenizer_of(self.model)
        self._device = self.model.device
        self.options = _checked_options(self.model.family, decoding)
        size = int(batch_size) if str(batch_size).isdecimal() else batch_size
        self.batch_size: Any = "auto" if str(size).startswith("auto") else whole("batch_size", size, 1)
        self.most = max_batch_size
        self.draws = draws
        self.errors: list[float] = []
        self._templated = False
        self.experiment = Experiment(
            ModelIdentity.of(self.model), Requests(), self._decoding({}), rule, extras, (seed,)
        )
        # Options that do not fit together are said now.
        self.experiment.check_extras(self.model)

    # ---- text -------------------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """The end token, which also starts a text that has no context when there is no start token."""
        if not self.model.ids.eos:
            raise InputError(f"{self.model.source} names no end token; add eos_token_id to its config.json")
        return self.model.ids.eos[0]

    @property
    def prefix_token_id(self) -> int:
        start = start_token(self.model)
        return self.eot_token_id if start is None else start

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's cache of requests."""
        return f"sinkscope-{self.model.source}-{self.model.digest[:16]}".replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids; a templated prompt has its special tokens already."""
        if add_special_tokens is None:
            bos = self.tokenizer.bos_token
            add_special_tokens = not self._templated and not (bos and string.startswith(bos))
        return list(self.tokenizer(string, add_special_tokens=add_special_tokens).input_ids)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Turns as the model's template writes them."""
        self._templated = True
        end = "add_generation_prompt" if add_generation_prompt else "continue_final_message"
        return render(self.tokenizer, chat_history, self.model.source, **{end: True})

    # ---- generation -------------------------------------------------------------------------------

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers, cut before the first stop string; equally long prompts run together."""
        _refuse_code({request.task_name for request in requests})
        groups: dict[tuple[Decoding, int], list[tuple[int, list[int], int]]] = defaultdict(list)
        asked: dict[int, int] = defaultdict(int)  # lm-eval repeats a request by listing it several times
        for number, request in enumerate(requests):
            context, wishes = request.args
            decoding = self._decoding(wishes)
            prompt, stream = (self._prompt(context, decoding.new_tokens), self.stream(context, asked[id(request)]))
            asked[id(request)] += 1
            groups[decoding, len(prompt)].append((number, prompt, stream))
        answers: dict[int, str] = {}
        policy, extras = self.experiment.policy, self.experiment.extras
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="sinkscope generate_until")
        for (decoding, columns), group in sorted(groups.items(), key=lambda entry: -entry[0][1]):
            for together in in_parts(group, self._rows(columns + decoding.new_tokens)):
                numbers, prompts, seeds = map(list, zip(*together, strict=True))
                run = generate(self.model, torch.tensor(prompts), decoding, policy=policy, seed=seeds, **extras)
                for row, number in enumerate(numbers):
                    answers[number] = self._text(run.answer(row), requests[number].args[1])
                    self.cache_hook.add_partial("generate_until", requests[number].args, answers[number])
                bar.update(len(together))
        bar.close()
        return [answers[number] for number in range(len(requests))]

    def _prompt(self, context: str, length: int) -> list[int]:
        ids = self.tok_encode(context) or [self.prefix_token_id]
        limit = self.model.shape.context
        if limit is not None and len(ids) + length > limit:
            if length >= limit:
                raise InputError(
                    f"length {length} leaves no room for a prompt in the context of {limit}; give length=…"
                )
            log.warning("a prompt of %d tokens loses its beginning: the context is %d", len(ids), limit)
            ids = ids[length - limit :]
        return ids

    def _text(self, answer: list[int], wishes: dict[str, Any]) -> str:
        """The answer before the first stop string; stop strings may be special tokens."""
        until = wishes.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        special = self.tokenizer.all_special_tokens
        marked = [stop for stop in stops if any(token in stop for token in special)]
        if marked:  # these are not in the text that is read, so the answer is cut where they still are
            raw: str = self.tokenizer.decode(answer, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            short = cut(raw, marked)
            if short != raw:
                answer = list(self.tokenizer(short, add_special_tokens=False).input_ids)
        return cut(decode(self.model, torch.tensor(answer, dtype=torch.long), 0), stops)

    def stream(self, context: str, repeat: int = 0) -> int:
        return seed_of(f"{self.experiment.seeds[0]}/{context}/{repeat}")

    def _decoding(self, wishes: dict[str, Any]) -> Decoding:
        """The user's options first, then the task's wishes, then lm-eval's default length."""
        family, options = self.model.family, dict(self.options)
        lengths = (wishes.get(name) for name in ("max_gen_toks", "max_new_tokens", "max_tokens"))
        options.setdefault("length", int(next(filter(None, lengths), LENGTH)))
        allowed = option_fields(family)
        if wishes.get("do_sample"):
            options.setdefault("temperature", float(wishes.get("temperature", 1.0)))
            if "top_p" in allowed and wishes.get("top_p"):
                options.setdefault("top_p", float(wishes["top_p"]))
        if self.model.spec.causal and not options.get("temperature"):  # the most likely token: greedy
            options.pop("temperature", None)
            options.pop("top_p", None)
        if "block" in allowed:
            options.setdefault("block", 32 if options["length"] % 32 == 0 else options["length"])
        return decoding_from_options(family, options, "--model_args")

    def _rows(self, columns: int) -> int:
        rows = rows_at_once(self.model, columns, self.batch_size)
        return rows if self.most is None else min(rows, self.most)

    # ---- likelihoods ------------------------------------------------------------------------------

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **more: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        values = [(item.value, bool(item.greedy)) for item in self._likelihoods(pairs, disable_tqdm)]
        for (texts, _, _), value in zip(requests, values, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, value)
        return values

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts, in windows that together predict each token once."""
        longest = self.model.shape.context or LONGEST
        values = []
        for request in requests:
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            windows = get_rolling_token_windows(tokens, self.prefix_token_id, longest - 1, 1)
            parts = self._likelihoods([make_disjoint_window(window) for window in windows], disable_tqdm)
            values.append(float(sum(part.value for part in parts)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, values[-1])
        return values

    def _likelihoods(self, pairs: Sequence[tuple[list[int], list[int]]], quiet: bool) -> list[Likelihood]:
        policy, (seed,) = self.experiment.policy, self.experiment.seeds
        self.experiment.check_extras(self.model, reads="this task reads likelihoods")
        rows = self._rows(max((len(context) + len(continuation) for context, continuation in pairs), default=1))
        if self.model.spec.causal:
            return likelihoods(self.model, pairs, policy, rows=rows)
        bounds = [
            likelihoods(self.model, [pair], policy, self.draws, seed, rows)[0]
            for pair in tqdm(pairs, disable=quiet, desc=f"sinkscope bounds, {self.draws} draws each")
        ]
        errors = sorted(item.error or 0.0 for item in bounds)
        if errors:
            log.warning(
                "%d values: %s. %d draws each; Monte Carlo standard error: median %.3g, largest %.3g nats",
                len(errors), NOT_COMPARABLE, self.draws, errors[len(errors) // 2], errors[-1],
            )  # fmt: skip
        self.errors += errors
        return bounds

    # ---- what lm-eval writes down, and its cache -----------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """All that can change an answer, apart from the request."""
        draws = None if self.model.spec.causal else self.draws
        return {**self.experiment.identity, "options": self.options, "draws": draws}

    def get_model_info(self) -> dict[str, Any]:
        """Goes into lm-eval's results, under `config`."""
        if self.model.spec.causal:
            return {"sinkscope": self.identity(), "sinkscope_likelihood": "exact"}
        about: dict[str, Any] = {"what": NOT_COMPARABLE, "draws": self.draws, "values": len(self.errors)}
        if self.errors:
            ordered = sorted(self.errors)
            about |= {"error_median": ordered[len(ordered) // 2], "error_largest": ordered[-1]}
        return {"sinkscope": self.identity(), "sinkscope_likelihood": about}

    def set_cache_hook(self, cache_hook: Any) -> None:
        """lm-eval's response cache (--use_cache) is keyed by the request alone, so that a masked run would get the unmasked
        run's answers. Its store is made to keep the answers of each identity apart, whatever else is in the file.
        """
        if cache_hook.dbdict is not None:
            # lm-eval hands out the store and not whoever reads it, so the object itself must learn this.
            store, random = cache_hook.dbdict, self.experiment.decoding.draws
            store.__class__ = _scoped(type(store), digest(self.identity()), random)
        super().set_cache_hook(cache_hook)


def _scoped(store: Any, scope: str, random: bool) -> Any:
    """The class of a store that sees only keys of one scope, and none at all where answers are drawn at random."""

    class Scoped(store):  # type: ignore[misc]
        def __contains__(self, key: str) -> bool:
            return not random and super().__contains__(f"{scope}:{key}")

        def __getitem__(self, key: str) -> Any:
            return super().__getitem__(f"{scope}:{key}")

        def __setitem__(self, key: str, value: Any) -> None:
            super().__setitem__(f"{scope}:{key}", value)

    return Scoped


def _refuse_code(names: set[str | None]) -> None:
    """Tasks whose grading runs the answers do so without our sandbox; lm-eval marks them."""
    from lm_eval.api.task import Task

    for task in gc.get_objects():  # lm-eval does not tell a model about its tasks
        if issubclass(type(task), Task) and getattr(task, "UNSAFE_CODE", False):
            name = getattr(getattr(task, "config", None), "task", None)
            if name in names or getattr(task, "task_name", None) in names:
                raise InputError(
                    f"lm-eval runs the programs of task {name} without a sandbox: use `sinkscope evaluate --task humaneval`, "
                    "which has one"
                )


def _checked_options(family: str, options: dict[str, Any]) -> dict[str, Any]:
    """Decoding options of the family, by name; a name that is near to one of our own is answered with that."""
    names = [*option_fields(family), *EXTRAS, *inspect.signature(SinkscopeLM).parameters]
    for name in options:
        one_of(f"--model_args of a {family} model: option", name, names)
    return json.loads(json.dumps(options))  # type: ignore[no-any-return]


def _device(asked: str | None) -> str:
    """The device to load on; lm-eval asks for "cuda:0" also where there is none."""
    if asked is not None and str(asked).startswith("cuda") and not torch.cuda.is_available():
        log.warning("there is no CUDA device here, and %s was asked for: running on the CPU", asked)
        return "cpu"
    return "auto" if asked is None else str(asked)
