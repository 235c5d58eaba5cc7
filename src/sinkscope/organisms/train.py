"""Training an organism by a recipe: the start, the documents, the losses, and what is left in the folder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
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
from sinkscope.organisms.documents import read_corpus
from sinkscope.organisms.graphs import ReplayedStep
from sinkscope.organisms.layout import save
from sinkscope.organisms.loop import Loop, LoopOptions, finished, learning_rate, prepare
from sinkscope.organisms.network import (
    Loss,
    decoder_layer,
    drawn_masks,
    head_loss,
    masked_at,
    parameters,
    rotation,
    weights,
)
from sinkscope.organisms.parallel import World, world
from sinkscope.organisms.recipe import BLOCK, LENGTH, MIXES, SIZES, Recipe
from sinkscope.organisms.start import Start, size_of, start


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(LoopOptions):
    """A recipe and how it is carried out; apart from the recipe, only `init`, `corpus` and its share change what is learned.

    Attributes:
        init: what to start from instead of what the recipe says: a folder or hub id.
        documents: a folder made by `python -m sinkscope.organisms.corpus`, which several runs may share.
        corpus: the user's own text, a file or hub data set, mixed in at `corpus_share`.
        check_count: held-out questions per task in an accuracy check; the last one has `final_count` (0: there is none).
    """

    recipe: Recipe
    init: str | Path | None = None
    documents: Path | None = None
    corpus: str | None = None
    corpus_share: float = 0.2
    check_count: int = 64
    final_count: int = 256

    @property
    def corpus_folder(self) -> Path:
        """The documents' folder."""
        return self.documents or self.out / "corpus"


def train(options: TrainingOptions) -> dict[str, Any]:
    """Carries out a recipe, or goes on where an earlier call in the same folder stopped.

    Returns:
        What training.json holds: recipe, data, hardware, time, held-out accuracies by the monitor.
    """
    recipe = options.recipe
    prepare(options)
    with world(options.device) as processes:
        if recipe.batch % (processes.size * recipe.packed):
            rows = f" in rows of {recipe.packed}" if recipe.packed > 1 else ""
            raise InputError(
                f"batch {recipe.batch}{rows} cannot be split over {processes.size} processes; change --batch"
            )
        begin = start(recipe, options.init)
        options = replace(options, recipe=with_size_of(begin, recipe))
        wanted = {"recipe": options.recipe.as_dict(), "start_digest": begin.digest}
        wanted |= {"corpus": options.corpus} if options.documents is None else {}
        done = finished(options, wanted)
        return done or OrganismTraining(options, begin, _corpus(options, begin, processes), processes).run()


def with_size_of(begin: Start, recipe: Recipe) -> Recipe:
    """The recipe with the size of the network it starts from; another size that was asked for is refused."""
    size = size_of(begin.network)
    if recipe.size not in (size, SIZES["6m"]):
        raise InputError(
            f"a size of {recipe.size} was asked for, and {begin.source} has {size}: a recipe that starts from weights has their "
            "size; leave the option out, or start from others"
        )
    return replace(recipe, size=size)


def _corpus(options: TrainingOptions, begin: Start, processes: World) -> Corpus:
    recipe, folder, words = options.recipe, options.corpus_folder, begin.vocabulary
    if options.documents is not None:
        corpus = Corpus.open(folder)
        same_ingredients(
            folder,
            {
                "mix": MIXES[recipe.mix],
                "tokenizer": words.fingerprint,
                "spelling": None if recipe.spelling == "whole" else recipe.spelling,
            },
        )
        if recipe.pictures and not len(corpus.codes):
            raise InputError(f"the recipe {recipe.name} needs pictures, and {folder} has none")
        return corpus
    documents = min(recipe.steps * recipe.batch, MOST_DOCUMENTS)
    pictures = min(math.ceil(documents * recipe.pictures), MOST_PICTURES)
    share = options.corpus_share if options.corpus is not None else 0.0
    make_them = processes.main and not (folder / "corpus.json").exists()
    # Read first: `ingredients` can take seconds, and a misspelt file is better told at once.
    extra = read_corpus(options.corpus) if make_them and options.corpus is not None else ()
    say = None if options.quiet else partial(print, flush=True)
    if make_them and say is not None:
        say(f"making {documents:,} documents")
    about = ingredients(recipe.mix, words, share, options.corpus, recipe.spelling)
    if make_them:
        workers = 1 if documents < 20_000 else 0
        made = make(documents, pictures, words, extra, share, workers, recipe.mix, say, recipe.spelling)
        made.save(folder, about)
    processes.wait()
    try:
        same_ingredients(folder, {"spelling": None, **about, "documents": documents, "pictures": pictures})
    except InputError as error:
        raise InputError(f"{options.out} holds a run of another recipe or other settings: {error}") from error
    return Corpus.open(folder)


class OrganismTraining(Loop):
    """A recipe on its corpus."""

    def __init__(self, options: TrainingOptions, begin: Start, corpus: Corpus, processes: World) -> None:
        self.recipe, self.begin, self.training = options.recipe, begin, options
        self.corpus_about = made_of(options.corpus_folder)
        identity = {
            "settings": json.dumps(self.recipe.as_dict(), sort_keys=True),
            "start": str(begin.digest),
            "documents": json.dumps(self.corpus_about | {"seconds": None}, sort_keys=True),
        }
        super().__init__(begin.network, self.recipe, options, processes, identity)
        self.vocabulary, self.mask = begin.vocabulary, int(begin.vocabulary.mask or 0)
        self.reader = Reader(self.recipe, corpus, self.vocabulary, self.device)
        self.random = torch.Generator(self.device)
        longest = LENGTH * self.recipe.packed + self.vocabulary.lead - 1
        self.rotary = rotation(self.network, longest, self.device)
        graphs = options.graphs and self.device.type == "cuda" and self.world.size == 1
        self.weighted_loss = self._loss(options, graphs)
        self.replayed = (
            ReplayedStep(self._taken, self.optimizer, self.device, self.log.note) if graphs else None
        )
        self.held_out = emergence.probe(self.recipe, self.vocabulary, self.device) if self.probed else None

    def _loss(self, options: TrainingOptions, graphs: bool) -> Any:
        """The loss, compiled as a whole; or by layers where steps are replayed, which costs them nothing and is done sooner."""
        compiled = self.device.type == "cuda" if options.compile is None else options.compile
        if compiled and graphs:
            layer, head = (torch.compile(part, dynamic=False) for part in (decoder_layer, head_loss))
            return Loss(self.network, self.recipe.objective, layer, BLOCK, head)
        loss = Loss(self.network, self.recipe.objective, block=BLOCK)
        return torch.compile(loss, dynamic=False) if compiled else loss

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
        if causal:
            seen, weight = batch.ids, weights(batch)
        else:
            seen, weight = masked_at(batch, drawn[0], self.mask, drawn[1])
        targets = self.world.total(batch.targets(causal).sum()) / self.world.size
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss: Tensor = self.weighted_loss(seen, batch.ids, weight, batch.real, *self.rotary) / targets
        return loss

    def probe(self) -> dict[str, Any]:
        """The sinks of the held-out probe."""
        return {} if self.held_out is None else emergence.measure(self.network, self.held_out)

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
        made = self.corpus_about
        kept = ["mix", "corpus", "docstrings"]
        kept += ["corpus_share"] if made["corpus"] else []
        kept += ["pictures"] if self.recipe.pictures else []
        return {
            "recipe": self.recipe.as_dict(),
            "parameters": parameters(self.network),
            "starts_from": self.begin.source,
            "start_digest": self.begin.digest,
            "steps": self.recipe.steps,
            "tokens": self.recipe.tokens,
            "documents": made["documents"],
            **{name: made[name] for name in kept if name in made},
            "monitor": {**checked, "count": self.training.final_count},
        }
