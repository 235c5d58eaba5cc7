"""Training: AdamW, cosine schedule, bf16 and compiled on a GPU, resumable, the same code on a CPU.

A step is a pure function of the recipe, the corpus, the state and the step's number: nothing else is random. So a run that
was killed and started again ends with the same weights (bit for bit on a CPU).
"""

from __future__ import annotations

import json
import math
import pickle
import platform
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope.errors import InputError
from sinkscope.organisms import emergence, monitor
from sinkscope.organisms.batches import Reader
from sinkscope.organisms.corpus import (
    MOST_DOCUMENTS,
    MOST_PICTURES,
    Corpus,
    ingredients,
    made_of,
    make,
    same_ingredients,
)
from sinkscope.organisms.layout import save, write_json
from sinkscope.organisms.live import Live
from sinkscope.organisms.network import parameters, rotation
from sinkscope.organisms.objectives import Loss, corrupt, weights
from sinkscope.organisms.parallel import World, world
from sinkscope.organisms.recipe import LENGTH, MIXES, SIZES, Recipe
from sinkscope.organisms.sources import read_corpus
from sinkscope.organisms.start import Start, size_of, start

STATE = "state.pt"


@dataclass(frozen=True)
class Run:
    """How a recipe is carried out; nothing here changes what is learned, apart from `corpus` and its share.

    Attributes:
        init: what to start from instead of what the recipe says: a folder or hub id.
        documents: a folder made by `python -m sinkscope.organisms.corpus`, so that several runs share it.
        corpus: the user's own text, a file or hub data set, mixed in at `corpus_share`.
        report_every, check_every, save_every: steps between loss reports, accuracy checks and resumable checkpoints
            (0: only at the end).
        check_count: held-out questions per task in an accuracy check; the last one has `final_count`.
        stop_after: leave after this step with the state saved, as a kill would; for tests.
    """

    recipe: Recipe
    out: Path
    device: str = "auto"
    init: str | Path | None = None
    documents: Path | None = None
    corpus: str | None = None
    corpus_share: float = 0.2
    report_every: int = 50
    check_every: int = 1000
    save_every: int = 1000
    check_count: int = 64
    final_count: int = 256
    compile: bool | None = None
    probe: bool = True
    quiet: bool = False
    stop_after: int | None = None


def train(run: Run) -> dict[str, Any]:
    """Carries out a recipe, or goes on where an earlier call in the same folder stopped.

    Returns:
        What training.json holds: recipe, data, hardware, time, held-out accuracies by the monitor.
    """
    try:
        run.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the run cannot be kept in {run.out} ({error}): name another folder") from error
    with world(run.device) as here:
        if run.recipe.batch % (here.size * run.recipe.packed):
            each = f" in rows of {run.recipe.packed}" if run.recipe.packed > 1 else ""
            raise InputError(
                f"batch {run.recipe.batch}{each} cannot be split over {here.size} processes; change --batch"
            )
        begin = start(run.recipe, run.init)
        run = replace(run, recipe=own_size(run.recipe, begin))
        done = _finished(run, begin)
        if done is not None:
            return done
        corpus = _corpus(run, begin, here)
        return _Training(run, begin, corpus, here).go()


def own_size(recipe: Recipe, begin: Start) -> Recipe:
    """The recipe with the size of the network it starts from; a size that was asked for and is another is refused."""
    found = size_of(begin.network)
    if recipe.size not in (found, SIZES["6m"]):
        raise InputError(
            f"a size of {recipe.size} was asked for, and {begin.source} has {found}: a recipe that starts from weights has their "
            "size; leave the option out, or start from others"
        )
    return replace(recipe, size=found)


def _finished(run: Run, begin: Start) -> dict[str, Any] | None:
    """What a run that is over left in the folder, if it was this one; another one is refused, because it would be lost."""
    path = run.out / "training.json"
    if not path.exists() or (run.out / STATE).exists():
        return None
    about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    other_text = run.documents is None and about["corpus"] != run.corpus
    if about["recipe"] != run.recipe.as_dict() or about["start_digest"] != begin.digest or other_text:
        raise InputError(
            f"{run.out} holds a finished run of another recipe, start or settings: choose another folder"
        )
    if not run.quiet:
        print(f"{run.out} is finished: nothing is left to do")
    return about


def _corpus(run: Run, begin: Start, here: World) -> Corpus:
    if run.documents is not None:
        corpus = Corpus.open(run.documents)
        same_ingredients(
            run.documents,
            {"mix": MIXES[run.recipe.mix], "tokenizer": begin.vocabulary.fingerprint},
        )
        if run.recipe.pictures and not len(corpus.codes):
            raise InputError(f"the recipe {run.recipe.name} needs pictures, and {run.documents} has none")
        return corpus
    folder = run.out / "corpus"
    wanted = min(run.recipe.steps * run.recipe.batch, MOST_DOCUMENTS)
    drawn = min(math.ceil(wanted * run.recipe.pictures), MOST_PICTURES)
    share = run.corpus_share if run.corpus is not None else 0.0
    make_them = here.main and not (folder / "corpus.json").exists()
    # Read first: `ingredients` can take seconds, and a misspelt file is better told at once.
    extra = read_corpus(run.corpus) if make_them and run.corpus is not None else ()
    say = None if run.quiet else partial(print, flush=True)
    if make_them and say is not None:
        say(f"making {wanted:,} documents")
    about = ingredients(run.recipe.mix, begin.vocabulary, share, run.corpus)
    if make_them:
        workers = 1 if wanted < 20_000 else 0
        made = make(wanted, drawn, begin.vocabulary, extra, share, workers, run.recipe.mix, say)
        made.save(folder, about)
    here.wait()
    try:
        same_ingredients(folder, {**about, "documents": wanted, "pictures": drawn})
    except InputError as error:
        raise InputError(f"{run.out} holds a run of another recipe or other settings: {error}") from error
    return Corpus.open(folder)


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then a cosine to zero."""
    warm = min(1.0, (step + 1) / max(1, min(recipe.warmup, recipe.steps // 10)))
    return recipe.learning_rate * warm * 0.5 * (1.0 + math.cos(math.pi * step / recipe.steps))


class _Training:
    """The state of one run."""

    def __init__(self, run: Run, begin: Start, corpus: Corpus, here: World) -> None:
        self.run, self.recipe, self.here, self.begin = run, run.recipe, here, begin
        self.device = here.device
        self.network = begin.network.to(self.device)
        self.vocabulary = begin.vocabulary
        self.reader = Reader(self.recipe, corpus, self.vocabulary, self.device)
        self.documents = len(corpus)
        self.optimizer = torch.optim.AdamW(
            self._groups(),
            lr=self.recipe.learning_rate,
            betas=self.recipe.betas,
            fused=self.device.type == "cuda",
        )
        self.step, self.seconds = 0, 0.0
        self.points: list[dict[str, Any]] = []
        # The loss since the last report, kept in the state so that a resumed run reports the same numbers.
        self.summed, self.since = torch.zeros((), device=self.device), 0
        self.last_loss = float("nan")
        self._resume()
        loss: Any = Loss(self.network, self.recipe.objective)
        on_gpu = self.device.type == "cuda"
        self.loss = (
            torch.compile(loss, dynamic=False) if (on_gpu if run.compile is None else run.compile) else loss
        )
        self.rotary = rotation(self.network, LENGTH * self.recipe.packed, self.device)
        self.random = torch.Generator(self.device)

    def _groups(self) -> list[dict[str, Any]]:
        training = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        return [
            {"params": [one for one in training if one.dim() > 1], "weight_decay": self.recipe.weight_decay},
            {"params": [one for one in training if one.dim() <= 1], "weight_decay": 0.0},
        ]

    def go(self) -> dict[str, Any]:
        """All steps from where the state is."""
        run, recipe = self.run, self.recipe
        live = Live(run.out, recipe.name, recipe.steps, self.step, run.quiet) if self.here.main else None
        held_out = (
            emergence.probe(recipe, self.vocabulary, self.device) if run.probe and self.here.main else None
        )
        probed = set(emergence.log_spaced(recipe.steps))
        began = time.monotonic()
        try:
            while self.step < recipe.steps:
                if held_out is not None and self.step in probed:
                    self._probe(held_out)
                self.summed += self._step()
                self.step += 1
                self.since += 1
                done = self.step == recipe.steps
                if self.step % run.report_every == 0 or done:
                    loss, passed = float(self.summed) / self.since, time.monotonic() - began
                    self.seconds += passed
                    if not math.isfinite(loss):
                        raise InputError(
                            f"the loss is {loss} at step {self.step}: try a smaller learning rate"
                        )
                    if live is not None:
                        speed = self.since * recipe.batch * LENGTH / passed
                        live.report(
                            {"step": self.step, "loss": round(loss, 5), "tokens_per_second": round(speed)}
                        )
                    self.summed, self.since, began = torch.zeros((), device=self.device), 0, time.monotonic()
                    self.last_loss = loss
                if live is not None and run.check_every and self.step % run.check_every == 0 and not done:
                    live.report({"step": self.step, "accuracy": self._accuracy(run.check_count, live)})
                if self.here.main and not done and run.save_every and self.step % run.save_every == 0:
                    self._save_state()
                if self.step == run.stop_after:
                    self._save_state()
                    return {}
            if held_out is not None and (not self.points or self.points[-1]["step"] != self.step):
                self._probe(held_out)
            if live is None:
                return {}
            accuracies = self._accuracy(run.final_count, live)
            live.report({"step": self.step, "accuracy": accuracies})
            return self._finish(accuracies)
        finally:
            if live is not None:
                live.close()

    def _step(self) -> Tensor:
        recipe = self.recipe
        rate = learning_rate(recipe, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self.reader.batch(self.step, self.here.rank, self.here.size)
        if recipe.causal:
            seen, weight = batch.ids, weights(batch)
        else:
            self.random.manual_seed((recipe.seed * 1_000_003 + self.step) * 64 + self.here.rank)
            seen, weight = corrupt(batch, int(self.vocabulary.mask or 0), self.random)
        targets = self.here.total(batch.targets(recipe.causal).sum()) / self.here.size
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss: Tensor = self.loss(seen, batch.ids, weight, batch.real, *self.rotary) / targets
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.here.average_gradients(self.network)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), recipe.clip)
        self.optimizer.step()
        return self.here.total(loss.detach()) / self.here.size

    def _accuracy(self, count: int, live: Live) -> dict[str, float]:
        writer = monitor.Writer(self.network, self.recipe.objective, self.vocabulary)
        found = {}
        for one in monitor.questions(self.recipe, self.vocabulary, count, self.device):
            live.note(f"answers {count} held-out questions of {one.task}")  # minutes on a CPU
            found[one.task] = round(monitor.accuracy(writer, one), 4)
        return found

    def _probe(self, held_out: emergence.Probe) -> None:
        loss = float(self.summed) / self.since if self.since else self.last_loss
        point = {
            "step": self.step,
            "tokens": self.step * self.recipe.batch * LENGTH,
            "loss": round(loss, 5) if math.isfinite(loss) else None,
            "levels": emergence.measure(self.network, held_out),
        }
        self.points = [one for one in self.points if one["step"] < self.step] + [point]
        write_json(
            self.run.out / "emergence.json", {"recipe": self.recipe.name, "points": self.points}, compact=True
        )

    def _save_state(self) -> None:
        partial = self.run.out / f"{STATE}.partial"
        state = {
            "recipe": json.dumps(self.recipe.as_dict(), sort_keys=True),
            "start": str(self.begin.digest),
            "documents": self._documents(),
            "step": self.step,
            "seconds": self.seconds,
            "points": json.dumps(self.points),
            "loss": (self.summed, self.since, self.last_loss),
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, partial)
        partial.replace(self.run.out / STATE)

    def _resume(self) -> None:
        path = self.run.out / STATE
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            kept = (state["recipe"], state["start"], state["documents"])
        except (RuntimeError, OSError, EOFError, KeyError, pickle.UnpicklingError) as error:
            raise InputError(
                f"{path} cannot be read ({type(error).__name__}): it is broken, or of another version; delete it to begin anew"
            ) from error
        here = (json.dumps(self.recipe.as_dict(), sort_keys=True), str(self.begin.digest), self._documents())
        for what, then, now in zip(("settings", "start", "documents"), kept, here, strict=True):
            if then != now:
                raise InputError(
                    f"{self.run.out} holds a run of another recipe or other settings (the {what} differ); choose another folder"
                )
        self.step, self.seconds = int(state["step"]), float(state["seconds"])
        self.points = json.loads(state["points"])
        self.summed, self.since, self.last_loss = state["loss"]
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _documents(self) -> str:
        """What the documents are, for the state."""
        made = made_of(self.run.documents or self.run.out / "corpus")
        made.pop("seconds", None)
        return json.dumps(made, sort_keys=True)

    def _source(self) -> dict[str, Any]:
        """What the documents are made of, as their folder says: several runs may share one that this run did not make."""
        made = made_of(self.run.documents or self.run.out / "corpus")
        found = {"mix": made["mix"], "corpus": made["corpus"]}
        wanted = ("docstrings",) + (("corpus_share",) if made["corpus"] else ())
        wanted += ("pictures",) if self.recipe.pictures else ()
        return found | {name: made[name] for name in wanted if name in made}

    def _finish(self, accuracies: dict[str, float]) -> dict[str, Any]:
        save(self.network, self.recipe.layout, self.vocabulary, self.run.out)
        about = {
            "recipe": self.recipe.as_dict(),
            "parameters": parameters(self.network),
            "starts_from": self.begin.source,
            "start_digest": self.begin.digest,
            "steps": self.recipe.steps,
            "tokens": self.recipe.tokens,
            "documents": self.documents,
            **self._source(),
            "loss": round(self.last_loss, 5),
            "seconds": round(self.seconds, 1),
            "processes": self.here.size,
            "hardware": _hardware(self.device),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            "monitor": {"accuracy": accuracies, "count": self.run.final_count},
        }
        write_json(self.run.out / "training.json", about)
        (self.run.out / STATE).unlink(missing_ok=True)
        return about


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {torch.get_num_threads()} threads"
