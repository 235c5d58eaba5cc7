"""Training an organism by a recipe: the start, the documents, the losses, and what is left in the folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinkscope import InputError
from sinkscope.base.files import write_atomically
from sinkscope_train import emergence, monitor
from sinkscope_train.corpus import ABOUT, CorpusPlan, Reader, made_of, open_corpus
from sinkscope_train.graphs import ReplayedStep
from sinkscope_train.layout import save
from sinkscope_train.loop import Loop, finished, learning_rate
from sinkscope_train.network import Loss, decoder_layer, drawn_masks, head_loss, masked_at, parameters, rotation
from sinkscope_train.options import TrainingOptions, as_line, split
from sinkscope_train.parallel import World, world
from sinkscope_train.recipe import BLOCK, LENGTH, MIXES, SIZES, Recipe, recipe
from sinkscope_train.start import Start, size_of, start


def train_recipe(name: str, out: str | Path, device: str = "auto", **options: Any) -> dict[str, Any]:
    """Trains an organism, or goes on with a run that was interrupted in the same folder.

    Args:
        name: causal, scratch, adapted, multimodal or block; text_only, which is scratch continued, to compare multimodal with.
        out: folder for the checkpoint in its official layout, training.json, emergence.json and log.jsonl.
        device: auto, cpu, cuda. Several GPUs: start the command under torchrun.
        options: settings of the recipe (`Recipe`) and of the run (`TrainingOptions`); None: not given. `size` is one of
            SIZES; `init` a folder or hub id to start from (recipe adapted: any causal Llama or Qwen2 checkpoint).

    Returns:
        What training.json holds.
    """
    changes, run = split(Recipe, options)
    run["quiet"] = run.get("quiet", False) or int(os.environ.get("RANK", "0")) > 0
    line = as_line(name, out=str(out), device=device, **options)
    if not run["quiet"]:
        print(line, flush=True)
    chosen = TrainingOptions(recipe=recipe(name, **changes), out=Path(out), device=device, line=line, **run)
    return train(chosen)


def train(options: TrainingOptions) -> dict[str, Any]:
    """Carries out a recipe, or goes on where an earlier call in the same folder stopped.

    Returns:
        What training.json holds: recipe, data, hardware, time, held-out accuracies by the monitor.
    """
    asked = options.recipe
    with world(options.device) as processes:
        if asked.batch % (processes.size * asked.packed):
            rows = f" in rows of {asked.packed}" if asked.packed > 1 else ""
            raise InputError(
                f"batch {asked.batch}{rows} cannot be split over {processes.size} processes; change --batch"
            )
        begin = start(asked, options.init)
        options = replace(options, recipe=with_size_of(begin, asked))
        done = finished(options, {"recipe": options.recipe.as_dict(), "start_digest": begin.digest})
        if done is not None:
            return done
        if processes.main and options.line:
            write_atomically(options.out / "command.txt", options.line + "\n")
        _documents(options, begin, processes)
        return OrganismTraining(options, begin, processes).run()


def with_size_of(begin: Start, recipe: Recipe) -> Recipe:
    """The recipe with the size of the network it starts from; another size that was asked for is refused."""
    size = size_of(begin.network)
    if recipe.size not in (size, SIZES["6m"]):
        raise InputError(
            f"a size of {recipe.size} was asked for, and {begin.source} has {size}: a recipe that starts from weights has their "
            "size; leave the option out, or start from others"
        )
    return replace(recipe, size=size)


def _documents(options: TrainingOptions, begin: Start, processes: World) -> None:
    """Makes the documents where they are not there yet; refuses those of another run."""
    recipe, folder, words = options.recipe, corpus_folder(options), begin.vocabulary
    if options.documents is not None:
        about = made_of(folder, mix=MIXES[recipe.mix], tokenizer=words.fingerprint)
        if recipe.pictures and not about["pictures"]:
            raise InputError(f"the recipe {recipe.name} needs pictures, and {folder} has none")
        return
    try:
        if processes.main:
            plan = CorpusPlan.of(recipe, words)
            plan.make_in(folder, None if options.quiet else partial(print, flush=True))
    except InputError as error:
        if not (folder / ABOUT).exists():
            raise
        raise InputError(f"{options.out} holds a run of another recipe or other settings: {error}") from error
    processes.wait()


def corpus_folder(options: TrainingOptions) -> Path:
    """The documents' folder."""
    return options.documents or options.out / "corpus"


class OrganismTraining(Loop):
    """A recipe on its corpus."""

    def __init__(self, options: TrainingOptions, begin: Start, processes: World) -> None:
        self.recipe, self.begin, self.training = options.recipe, begin, options
        self.corpus_about = made_of(corpus_folder(options))
        identity = {
            "settings": json.dumps(self.recipe.as_dict(), sort_keys=True),
            "start": str(begin.digest),
            "documents": json.dumps(self.corpus_about, sort_keys=True),
        }
        super().__init__(begin.network, self.recipe, options, processes, identity)
        self.vocabulary, self.mask = begin.vocabulary, int(begin.vocabulary.mask or 0)
        corpus = open_corpus(corpus_folder(options))
        self.reader = Reader(self.recipe, corpus, self.vocabulary, self.device)
        self.random = torch.Generator(self.device)
        longest = LENGTH * self.recipe.packed + self.vocabulary.lead - 1
        self.rotary = rotation(self.network, longest, self.device)
        graphs = options.graphs and self.device.type == "cuda" and self.world.size == 1
        self.weighted_loss = self._loss(graphs)
        self.replayed = ReplayedStep(self._taken, self.optimizer, self.device, self.log.note) if graphs else None
        if self.probed:
            self.held_out = emergence.probe(self.recipe, self.vocabulary, self.device)

    def _loss(self, graphs: bool) -> Any:
        """The loss, compiled as a whole; or by layers where steps are replayed, which costs them nothing and is done sooner."""
        if self.compiled and graphs:
            layer, head = (torch.compile(part, dynamic=False) for part in (decoder_layer, head_loss))
            return Loss(self.network, self.recipe.objective, layer, BLOCK, head)
        loss = self.world.shared(Loss(self.network, self.recipe.objective, block=BLOCK))
        return torch.compile(loss, dynamic=False) if self.compiled else loss

    def losses(self, step: int) -> Iterator[Tensor]:
        """Cross-entropy per target of the whole batch, times the number of processes."""
        yield self._loss_of(*self._drawn(step))

    def take_step(self) -> Tensor:
        """Takes the step whose turn it is; returns its loss."""
        if self.replayed is None:
            return super().take_step()
        return self.replayed(learning_rate(self.recipe, self.step), *self._drawn(self.step))

    def _taken(self, *drawn: Tensor) -> Tensor:
        return self.update(self._loss_of(*part) for part in (drawn,))

    def _drawn(self, step: int) -> tuple[Tensor, ...]:
        """All that differs between steps: the numbers of the documents; for diffusion, masked positions and times before them."""
        documents = self.reader.chosen(step)
        if self.recipe.causal:
            return documents
        rows, columns = self.reader.shape
        self.random.manual_seed((self.recipe.seed * 1_000_003 + step) * 64 + self.world.rank)
        return *drawn_masks((rows // self.world.size, columns), self.random, self.device), *documents

    def _loss_of(self, *drawn: Tensor) -> Tensor:
        """The loss of what was drawn: operations on the device alone, the same ones in every step."""
        causal = self.recipe.causal
        batch = self.reader.rows(*drawn[0 if causal else 2 :])
        if self.world.size > 1:
            batch = batch.rows(slice(self.world.rank, None, self.world.size))
        goals = batch.targets(causal)
        seen, weight = (batch.ids, goals.float()) if causal else masked_at(batch, self.mask, *drawn[:2])
        targets = self.world.total(goals.sum()) / self.world.size
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss: Tensor = self.weighted_loss(seen, batch.ids, weight, batch.real, *self.rotary) / targets
        return loss

    def check(self, final: bool) -> dict[str, Any]:
        """Held-out accuracy by task."""
        count = self.training.final_count if final else self.training.check_count
        if not count:
            return {}
        accuracies = monitor.accuracies(
            self.network, self.recipe.layout, self.vocabulary, count, self.device, self.log.note
        )
        return {"accuracy": accuracies}

    def finish(self, checked: dict[str, Any]) -> dict[str, Any]:
        """Writes the checkpoint in its official layout."""
        save(self.network, self.recipe.layout, self.vocabulary, self.options.out)
        corpus, names = self.corpus_about, ["mix", "docstrings", *(["pictures"] if self.recipe.pictures else [])]
        return {
            "recipe": self.recipe.as_dict(),
            "parameters": parameters(self.network),
            "starts_from": self.begin.source,
            "start_digest": self.begin.digest,
            "steps": self.recipe.steps,
            "tokens": self.recipe.tokens,
            "documents": corpus["documents"],
            **{name: corpus[name] for name in names if name in corpus},
            "monitor": {**checked, "count": self.training.final_count},
        }
