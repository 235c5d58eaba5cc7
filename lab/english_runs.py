"""The runs of the English experiment: SmolLM2 as a diffusion model (the twin) and continued as it was, with several seeds.

    python -m lab.english_runs --text TOKENS --work RUNS --out RESULTS --seconds 180

TOKENS holds train.npy, held_out.npy and text.json (`lab/english_text.py tokens` writes them into ids/); `smollm2` must have been
fetched. The twin and the continued model of one seed read the same rows in the same order. --ways says what is trained: low-rank
adapters (twin-lora-0), all weights (twin-full-0), or, for the twin alone, all weights from a random start (twin-random-0): the
source's shape and tokenizer, nothing that it learned. One process for each kind and way shares the device, so that one computes
while another loads, compiles or writes. They time a few steps together: all runs then get the same number of steps, as many as
fit. Finished runs are kept, interrupted ones resumed: the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from sinkscope.files import write_atomically
from sinkscope.models.load import find, load
from sinkscope.organisms.adapt import (
    Adaptation,
    AdaptationSource,
    AdaptOptions,
    AdaptTraining,
    adaptation,
    source_of,
)
from sinkscope.organisms.layout import save_tensors, tensors, write_json
from sinkscope.organisms.loop import finished, prepare
from sinkscope.organisms.parallel import World, world

OBJECTIVES = {"twin": "diffusion", "causal": "causal"}
WARM, TIMED = 3, 8
"""Steps before those that are timed, and timed steps."""
OVERHEAD = 4.0
"""Seconds of a run besides its steps, as far as the other process cannot use them."""
WAYS = ("lora", "full", "random")
"""What is trained: adapters over frozen weights, all weights, or all weights from a random start."""
KEPT = ("training.json", "emergence.json", "log.jsonl", "adapter_config.json", "config.json")


def groups(ways: list[str]) -> list[str]:
    """Kinds and ways, such as twin-full; a model that goes on has no random start.

    >>> groups(["full", "random"])
    ['twin-full', 'causal-full', 'twin-random']
    """
    return [f"{kind}-{way}" for way in ways for kind in OBJECTIVES if (kind, way) != ("causal", "random")]


def random_start(source: str, seed: int, folder: Path) -> str:
    """A checkpoint with the shape and the tokenizer of a source, and weights drawn anew as those of the organisms are."""
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        model = load(source, device="cpu", dtype="float32")
        random = torch.Generator().manual_seed(seed)
        small = 0.02 / (2 * model.shape.layers) ** 0.5
        with torch.no_grad():
            for name, weight in model.network.named_parameters():
                if weight.dim() == 2:
                    std = small if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                    weight.copy_(torch.randn(weight.shape, generator=random) * std)
                else:
                    weight.fill_(0.0 if name.endswith("bias") else 1.0)
        for file in find(source).folder.iterdir():
            if file.name.startswith(("tokenizer", "chat_template", "special_tokens", "generation_config")):
                shutil.copyfile(file, folder / file.name)
        write_json(folder / "config.json", dict(model.checkpoint.config) | {"dtype": "bfloat16"})
        save_tensors(tensors(model.network, "llama"), folder / "model.safetensors")
    return str(folder)


class Runs:
    """The runs of one objective and way, in one process."""

    def __init__(self, group: str, arguments: argparse.Namespace, processes: World) -> None:
        self.group, self.given, self.processes = group, arguments, processes
        self.kind, self.way = group.split("-")
        self.alone = False
        self.names = [f"{group}-{seed}" for seed in range(arguments.seeds)]

    def settings(self, name: str, steps: int) -> Adaptation:
        """The adaptation of a run such as twin-lora-0."""
        given, seed = self.given, int(name.rpartition("-")[2])
        masked = {"mask_token": given.mask_token} if self.kind == "twin" else {}
        rank, rate = {
            "lora": (given.lora, given.rate),
            "full": (0, given.full_rate),
            "random": (0, given.random_rate),
        }[self.way]
        source = given.source
        if self.way == "random":
            source = random_start(source, seed, given.work / f"start-{seed}")
        return adaptation(
            source, objective=OBJECTIVES[self.kind], lora=rank, seed=seed, steps=steps,
            batch=given.batch, length=given.length, learning_rate=rate, **masked,
        )  # fmt: skip

    def load(self, name: str, steps: int) -> AdaptationSource:
        """The network that a run starts from."""
        return source_of(self.settings(name, steps))

    def options(self, name: str, steps: int, probe: bool = True) -> AdaptOptions:
        """A run, with the tokens put where it looks for them."""
        given = self.given
        options = AdaptOptions(
            adaptation=self.settings(name, steps), text="text", out=given.work / (name if probe else f"timing-{name}"),
            device=given.device, rows_at_a_time=given.rows, check_rows=64, check_every=100, save_every=given.save_every,
            report_every=20,
            probe=probe,
        )  # fmt: skip
        prepare(options)
        if not (options.out / "text").exists():
            (options.out / "text").symlink_to(given.text.resolve(), target_is_directory=True)
        return options

    def planned(self) -> int:
        """Steps of every run: given, found before, or as many as fit."""
        if self.given.steps is not None:
            return int(self.given.steps)
        plan = self.given.work / "plan.json"
        if not plan.exists():
            taken = max(self._exchanged("seconds", self._seconds_per_step(self.names[0])).values())
            began = min(self._exchanged("began", self.given.began).values())
            left = self.given.seconds - (time.time() - began) - OVERHEAD * len(self.names)
            steps = max(10, int(left / (taken * self.given.seeds)) // 10 * 10)
            steps = min(self._exchanged("steps", steps).values())
            write_atomically(plan, json.dumps({"steps": steps, "seconds_per_step": taken}))
        return int(json.loads(plan.read_text())["steps"])

    def _seconds_per_step(self, name: str) -> float:
        """Measured while the other processes do the same, on a run that is thrown away."""
        training = AdaptTraining(self.options(name, 1000, False), self.load(name, 1000), self.processes)
        began = 0.0
        for step in range(WARM + TIMED):
            if step == WARM:
                self._exchanged("ready", 1)
                began = _now()
            training.step = step
            training.take_step()
        taken = (_now() - began) / TIMED
        tokens = self.given.batch * self.given.length
        print(f"{name}: {taken:.3f} s a step, {tokens / taken:,.0f} tokens/s beside the others", flush=True)
        return taken

    def _exchanged(self, name: str, value: Any, patience: float = 60.0) -> dict[str, Any]:
        """What each process says; one that says nothing for long is given up."""
        place = {group: self.given.work / f"{name}-{group}.json" for group in groups(self.given.ways)}
        write_atomically(place[self.group], json.dumps(value))
        until = time.monotonic() + patience
        while not self.alone and not all(path.exists() for path in place.values()):
            time.sleep(0.05)
            self.alone = time.monotonic() > until
        return {group: json.loads(path.read_text()) for group, path in place.items() if path.exists()}

    def run(self) -> None:
        """All runs, one after the other; the next one's network is loaded meanwhile."""
        steps = self.planned()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(f"{self.group}: {steps} steps of {self.given.batch} rows, {len(self.names)} runs", flush=True)
        with ThreadPoolExecutor(1) as ahead:
            following = ahead.submit(self.load, self.names[0], steps)
            for place, name in enumerate(self.names):
                source = following.result()
                if place + 1 < len(self.names):
                    following = ahead.submit(self.load, self.names[place + 1], steps)
                options = self.options(name, steps)
                wanted = {"adaptation": options.adaptation.as_dict(), "source_digest": source.digest}
                if finished(options, wanted) is None:
                    AdaptTraining(options, source, self.processes).run()
                self.bring_out(self.names[: place + 1])
                print(f"{name} is out after {time.time() - self.given.began:.0f} s", flush=True)

    def bring_out(self, names: list[str]) -> None:
        """The adapters as NAME.safetensors, and what is small of all runs in one archive; whole weights stay where they are."""
        out = self.given.out
        out.mkdir(parents=True, exist_ok=True)
        with tarfile.open(out / f"{self.group}.tar.xz", "w:xz", preset=1) as tar:
            for name in names:
                folder = self.given.work / name
                if (folder / "adapter_model.safetensors").exists():
                    shutil.copyfile(folder / "adapter_model.safetensors", out / f"{name}.safetensors")
                for file in sorted(folder.glob("*.json*")):
                    if file.name in KEPT:
                        tar.add(file, f"{name}/{file.name}")


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic()


def main() -> None:
    """The command; with --only it is one of its processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, words in (
        ("text", "the folder of tokens"),
        ("work", "for the runs"),
        ("out", "for their results"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=words)
    parser.add_argument("--source", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=180.0, help="for everything, from the beginning")
    parser.add_argument("--steps", type=int, help="instead of as many as fit")
    for name, default in (("seeds", 3), ("lora", 16), ("batch", 64), ("rows", 64), ("length", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["lora", "full"], help="what is trained")
    parser.add_argument("--mask-token", default="<empty_output>")
    parser.add_argument("--rate", type=float, default=1.5e-3, help="learning rate of adapters")
    parser.add_argument("--full-rate", type=float, default=3e-4, help="learning rate of all weights")
    parser.add_argument("--random-rate", type=float, default=1e-3, help="learning rate from a random start")
    parser.add_argument(
        "--save-every", type=int, default=250, help="steps between states to resume from; 0: none"
    )
    parser.add_argument("--only", choices=groups(list(WAYS)), help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, default=time.time(), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.only:
        torch.set_float32_matmul_precision("high")
        with world(arguments.device) as processes:
            Runs(arguments.only, arguments, processes).run()
        return
    for old in arguments.work.glob("*-*.json"):
        old.unlink()
    command = [sys.executable, "-m", "lab.english_runs", *sys.argv[1:], "--began", str(arguments.began)]
    running = [subprocess.Popen([*command, "--only", group]) for group in groups(arguments.ways)]  # noqa: S603
    if any(code for code in [process.wait() for process in running]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
