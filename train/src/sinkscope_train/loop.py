"""The training loop: AdamW, warm-up and cosine, bf16 and compiled on a GPU, reports, and a state to resume from.

A step is a pure function of the settings, the data, the state and the step's number: nothing else is random. So a run that
was killed and started again ends with the same weights (bit for bit on a CPU), which is why the loop is ours.
"""

from __future__ import annotations

import json
import math
import pickle
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope import InputError
from sinkscope_train.emergence import Probe, log_spaced, measure
from sinkscope_train.layout import write_json
from sinkscope_train.options import LoopOptions
from sinkscope_train.parallel import World
from sinkscope_train.recipe import Schedule
from sinkscope_train.trained_runs import DONE, STATE, is_finished


def finished(options: LoopOptions, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """training.json of a folder whose run is over; None: it is not. A run of other settings is refused: it would be lost.

    Args:
        wanted: what training.json must say.
    """
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the run cannot be kept in {options.out} ({error}): name another folder") from error
    if not is_finished(options.out):
        return None
    about: dict[str, Any] = json.loads((options.out / DONE).read_text(encoding="utf-8"))
    if any(about.get(name) != value for name, value in wanted.items()):
        raise InputError(
            f"{options.out} holds a finished run of another recipe, start or settings: choose another folder"
        )
    if not options.quiet:
        print(f"{options.out} is finished: nothing is left to do")
    return about


def learning_rate(schedule: Schedule, step: int) -> float:
    """Linear warm-up, then a cosine to zero."""
    warm = min(1.0, (step + 1) / max(1, min(schedule.warmup, schedule.steps // 10)))
    return schedule.learning_rate * warm * 0.5 * (1.0 + math.cos(math.pi * step / schedule.steps))


class Loop(ABC):
    """One training run and its state; a subclass gives the loss of a step, what is measured on the way, and the end.

    Args:
        network: trained in place; parameters without gradients stay as they are.
        identity: what makes this run this run, name → text; a saved state of another one is refused.
    """

    def __init__(
        self, network: Any, schedule: Schedule, options: LoopOptions, world: World, identity: dict[str, str]
    ) -> None:
        self.network, self.schedule, self.options, self.world = network, schedule, options, world
        self.identity, self.device, self.log = (
            identity,
            world.device,
            TrainingLog(options.out, schedule, options.quiet),
        )
        network.to(self.device)
        self.probed = set(log_spaced(schedule.steps)) if options.probe and world.main else set()
        self.held_out: Probe | None = None
        self.trained = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
        groups: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, weight in self.trained.items():
            groups[self.decays(name, weight)].append(weight)
        parts = [
            {"params": groups[kind], "weight_decay": decay}
            for kind, decay in ((True, schedule.weight_decay), (False, 0.0))
        ]
        self.optimizer = torch.optim.AdamW(
            parts, lr=schedule.learning_rate, betas=schedule.betas, fused=self.device.type == "cuda"
        )
        self.step, self.seconds = 0, 0.0
        self.points: list[dict[str, Any]] = []
        # The loss since the last report is part of the state: a resumed run reports the same numbers.
        self.summed, self.since = torch.zeros((), device=self.device), 0
        self.last_loss = float("nan")
        self._resume()

    @property
    def compiled(self) -> bool:
        """Whether the network is compiled."""
        asked = self.options.compile
        return self.device.type == "cuda" if asked is None else asked

    def decays(self, name: str, weight: Tensor) -> bool:
        """True for weights that decay: matrices do, norms do not."""
        return weight.dim() > 1

    @abstractmethod
    def losses(self, step: int) -> Iterable[Tensor]:
        """The loss of this process's rows of a step, in parts whose gradients are added up before the next part is asked for.

        The mean over processes of the sum of the parts is the loss of the step.
        """

    @abstractmethod
    def check(self, final: bool) -> dict[str, Any]:
        """Measurements every `check_every` steps and at the end, for the log."""

    @abstractmethod
    def finish(self, checked: dict[str, Any]) -> dict[str, Any]:
        """Writes the checkpoint; returns what training.json says besides loss, time and machine."""

    def run(self) -> dict[str, Any]:
        """All steps from where the state is; {} in processes other than the first, and when stopped."""
        options, steps, began = self.options, self.schedule.steps, time.monotonic()
        if self.world.main:
            self.log.begin(self.step)
        while self.step < steps:
            if self.step in self.probed:
                self._probe()
            self.summed += self.take_step()
            self.step += 1
            self.since += 1
            if self.step % options.report_every == 0 or self.step == steps:
                self._report(time.monotonic() - began)
                began = time.monotonic()
            if self.world.main and self.step < steps:
                if options.check_every and self.step % options.check_every == 0:
                    self.log.report({"step": self.step, **self.check(final=False)})
                if options.save_every and self.step % options.save_every == 0:
                    self._save_state()
            if self.step == options.stop_after:
                self._save_state()
                return {}
        if self.probed and (not self.points or self.points[-1]["step"] != self.step):
            self._probe()
        if not self.world.main:
            return {}
        checked = self.check(final=True)
        self.log.report({"step": self.step, **checked})
        about = {
            "loss": round(self.last_loss, 5),
            "seconds": round(self.seconds, 1),
            "processes": self.world.size,
            "hardware": self.world.hardware,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            **self.finish(checked),
        }
        write_json(options.out / DONE, about)
        (options.out / STATE).unlink(missing_ok=True)
        return about

    def take_step(self) -> Tensor:
        """Takes the step whose turn it is; returns its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.schedule, self.step)
        return self.update(self.losses(self.step))

    def update(self, losses: Iterable[Tensor]) -> Tensor:
        """One step of the optimiser by the gradients of these parts of a loss; returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.trained.values(), self.schedule.clip)
        self.optimizer.step()
        return self.world.total(total) / self.world.size

    def _report(self, seconds: float) -> None:
        self.last_loss = float(self.summed) / self.since
        self.seconds += seconds
        if not math.isfinite(self.last_loss):
            raise InputError(f"the loss is {self.last_loss} at step {self.step}: try a smaller learning rate")
        if self.world.main:
            speed = round(self.since * self.schedule.tokens / self.schedule.steps / seconds)
            loss = round(self.last_loss, 5)
            self.log.report({"step": self.step, "loss": loss, "tokens_per_second": speed})
        self.summed, self.since = torch.zeros((), device=self.device), 0

    def _probe(self) -> None:
        loss = float(self.summed) / self.since if self.since else self.last_loss
        point = {
            "step": self.step,
            "tokens": self.step * self.schedule.tokens // self.schedule.steps,
            "loss": round(loss, 5) if math.isfinite(loss) else None,
            "levels": {} if self.held_out is None else measure(self.network, self.held_out),
        }
        self.points = [earlier for earlier in self.points if earlier["step"] < self.step] + [point]
        data = {"recipe": self.schedule.name, "points": self.points}
        write_json(self.options.out / "emergence.json", data, compact=True)

    def _save_state(self) -> None:
        partial = self.options.out / f"{STATE}.partial"
        state = {
            "identity": self.identity,
            "step": self.step,
            "seconds": self.seconds,
            "points": json.dumps(self.points),
            "loss": (self.summed, self.since, self.last_loss),
            "network": {name: weight.detach() for name, weight in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, partial)
        partial.replace(self.options.out / STATE)

    def _resume(self) -> None:
        path = self.options.out / STATE
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            identity = state["identity"]
        except (RuntimeError, OSError, EOFError, KeyError, pickle.UnpicklingError) as error:
            raise InputError(
                f"{path} cannot be read ({type(error).__name__}): it is broken, or of another version; delete it to begin anew"
            ) from error
        differ = [name for name, value in self.identity.items() if identity.get(name) != value]
        if differ:
            raise InputError(
                f"{self.options.out} holds a run of another recipe or other settings (the {differ[0]} differ); choose another "
                "folder"
            )
        self.step, self.seconds = int(state["step"]), float(state["seconds"])
        self.points = json.loads(state["points"])
        self.summed, self.since, self.last_loss = state["loss"]
        with torch.no_grad():
            for name, weight in self.trained.items():
                weight.copy_(state["network"][name])
        self.optimizer.load_state_dict(state["optimizer"])


class TrainingLog:
    """Appends to log.jsonl, one JSON line per report, and prints what a person wants to know meanwhile."""

    def __init__(self, folder: Path, schedule: Schedule, quiet: bool) -> None:
        self.path, self.name, self.steps, self.quiet = (folder / "log.jsonl", schedule.name, schedule.steps, quiet)

    def begin(self, step: int) -> None:
        """Goes on after a step: what was logged later belongs to steps that a resumed run takes again."""
        entries = [entry for entry in read_log(self.path) if entry["step"] <= step]
        self.path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")

    def report(self, entry: dict[str, Any]) -> None:
        """Keeps and shows one report: step, loss, speed, or what a check measured."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        words = " ".join(f"{key} {_short(value)}" for key, value in entry.items() if key != "step")
        if not self.quiet:
            print(f"{self.name} {entry['step']}/{self.steps} {words}", flush=True)

    def note(self, words: str) -> None:
        """Shows what takes long now, without keeping it."""
        if not self.quiet:
            print(f"{self.name}: {words}", flush=True)


def read_log(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a log; a line cut off by a crash is left out."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return entries


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return " ".join(f"{key}={_short(inner)}" for key, inner in value.items())
    return str(value)
