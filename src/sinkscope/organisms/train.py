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
from sinkscope.organisms.layout import save
from sinkscope.organisms.loop import Loop, LoopOptions, finished, prepare
from sinkscope.organisms.network import Loss, corrupt, parameters, rotation, weights
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
        check_count: held-out questions per task in an accuracy check; the last one has `final_count`.
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
        compiled = self.device.type == "cuda" if options.compile is None else options.compile
        loss = Loss(self.network, self.recipe.objective, block=BLOCK)
        self.weighted_loss: Any = torch.compile(loss, dynamic=False) if compiled else loss
        self.held_out = emergence.probe(self.recipe, self.vocabulary, self.device) if self.probed else None

    def losses(self, step: int) -> Iterator[Tensor]:
        """Cross-entropy per target of the whole batch, times the number of processes."""
        batch = self.reader.batch(step, self.world.rank, self.world.size)
        if self.recipe.causal:
            seen, weight = batch.ids, weights(batch)
        else:
            self.random.manual_seed((self.recipe.seed * 1_000_003 + step) * 64 + self.world.rank)
            seen, weight = corrupt(batch, self.mask, self.random)
        targets = self.world.total(batch.targets(self.recipe.causal).sum()) / self.world.size
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss: Tensor = self.weighted_loss(seen, batch.ids, weight, batch.real, *self.rotary) / targets
        yield loss

    def probe(self) -> dict[str, Any]:
        """The sinks of the held-out probe."""
        return {} if self.held_out is None else emergence.measure(self.network, self.held_out)

    def check(self, final: bool) -> dict[str, Any]:
        """Held-out accuracy by task."""
        count = self.training.final_count if final else self.training.check_count
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
