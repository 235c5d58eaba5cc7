"""One shard: some answers of one cell, from the model to records on disk. The unit of every executor, and idempotent.

Run it again after a kill, with other bounds, on another machine: what is there is left as it is, the rest is done.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InputError, SinkscopeError
from sinkscope.study.cell import Cell, Weights, differences, identified, items_of, settings_of, task_of
from sinkscope.study.lease import LOST, Lease, LeaseHeldError
from sinkscope.study.store import Store
from sinkscope.tasks.records import Generation, RunFolder
from sinkscope.tasks.task import Task, fingerprint

if TYPE_CHECKING:
    from sinkscope.generation.run import Run
    from sinkscope.models.model import Model
    from sinkscope.policies.policy import Policy
    from sinkscope.tasks.answer import Item

Tell = Callable[[int, int], None]
"""Called with how many answers of the shard are there, and how many of them are right."""


@dataclass(frozen=True)
class Shard:
    """The answers number `start` to `stop` of a cell. `work`: about how much there is to do, in any unit."""

    cell: Cell
    start: int
    stop: int
    work: float = field(default=1.0, compare=False)

    @property
    def name(self) -> str:
        """Unique in a study."""
        return f"{self.cell.id}/{self.start:06d}-{self.stop:06d}"

    @property
    def size(self) -> int:
        """How many answers."""
        return self.stop - self.start


def cut(cells: Sequence[Cell], store: Store, size: int) -> list[Shard]:
    """The shards that still have something to do, about `size` answers each, evenly cut."""
    found = []
    for cell in cells:
        if cell.answers == 0:
            continue
        missing = cell.answers - len(store.done_keys(cell))
        if missing <= 0:
            continue
        parts = max(1, round(cell.answers / size))
        edges = [round(i * cell.answers / parts) for i in range(parts + 1)]
        found += [Shard(cell, a, b) for a, b in itertools.pairwise(edges) if b > a]
    return found


def run_shard(
    root: Path, shard: Shard, model: Model, tell: Tell | None = None, batch_size: Any = "auto"
) -> None:
    """Does what is missing of a shard.

    Raises InputError when the model, task or documents here are not those of the cell.
    """
    cell, store = shard.cell, Store(root)
    task = task_of(cell)
    check_identity(cell, model, task)
    tell = tell or (lambda done, right: None)
    try:
        folder = store.shard_folder(cell.id, shard.start, shard.stop)
        with (
            _waited(folder.with_name(f"{folder.name}.lease")),
            RunFolder.write(folder, settings_of(cell)) as run,
        ):
            elsewhere = _elsewhere(store, cell, run)
            wanted = [
                item for item in items_of(cell, task)[shard.start : shard.stop] if item.key not in elsewhere
            ]
            if cell.kind == "evaluate":
                _evaluate(cell, model, task, wanted, run, tell, batch_size)
            else:
                _one_by_one(cell, store, model, task, wanted, run, tell)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise InputError(
                f"no room to write in {root} ({error.strerror}); what is there is safe: make room and run the same command again"
            ) from error
        raise


@contextmanager
def _waited(path: Path) -> Iterator[None]:
    """The shard's lease; a worker that was lost may take a moment to let go of it."""
    until = time.monotonic() + 2 * LOST
    while True:
        try:
            with Lease(path):
                yield
                return
        except LeaseHeldError as error:
            if time.monotonic() > until:
                raise InputError(f"{error}, which does not let go: wait for it, or stop it") from error
            time.sleep(0.2)


def check_identity(cell: Cell, model: Model, task: Task) -> None:
    """Refuses to work on a cell with another model, task or documents than it was planned with."""
    dtype = str(model.dtype).removeprefix("torch.")
    here = identified(cell, Weights(model.family, dtype, model.revision or model.digest), task)
    found = list(differences(cell.identity, here.identity))
    if found:
        raise InputError(f"{cell.title} was planned with something else than is here: {'; '.join(found[:3])}")


def _elsewhere(store: Store, cell: Cell, run: RunFolder) -> set[tuple[str, int]]:
    """What other shards of the cell have, from a time when they were cut differently."""
    found: set[tuple[str, int]] = set()
    for folder in store.shard_folders(cell.id):
        if folder == run.path:
            continue
        other = RunFolder.read(folder)
        rows = {(row.document, row.seed): row for row in other.generations}
        if cell.kind == "evaluate":
            found |= rows.keys() & {(grade.document, grade.seed) for grade in other.grades}
        elif cell.kind == "replay":
            found |= rows.keys()
        else:
            found |= {
                key for key, row in rows.items() if store.trace_file(cell.id, row.index, row.seed).is_file()
            }
    return found


def _evaluate(
    cell: Cell, model: Model, task: Task, wanted: list[Item], run: RunFolder, tell: Tell, batch_size: Any
) -> None:
    from sinkscope.tasks.answer import answer

    if wanted:
        answer(
            model, task, wanted, cell.parsed_decoding(), _policy(cell), run, batch_size,
            progress=lambda done, right, total: tell(done, right),
        )  # fmt: skip


def _one_by_one(
    cell: Cell, store: Store, model: Model, task: Task, wanted: list[Item], run: RunFolder, tell: Tell
) -> None:
    """Traces, maps and replays: one document at a time."""
    for done, item in enumerate(wanted, 1):
        lost = cell.kind != "replay" and not store.trace_file(cell.id, item.index, item.seed).is_file()
        if item.key not in run.generations or lost:
            work = _replayed if cell.kind == "replay" else _traced
            row = work(cell, store, model, task, item)
            if item.key in run.generations:  # its file was lost; the record comes anew
                run.generations.replace(
                    [one for one in run.generations if (one.document, one.seed) != item.key]
                )
            run.generations.append([row])
        tell(done, 0)


def _policy(cell: Cell) -> Policy | None:
    from sinkscope.policies import parse_policy

    return parse_policy(cell.policy)


def _generate(
    cell: Cell, model: Model, task: Task, item: Item, policy: Policy | None, **options: Any
) -> tuple[Run, str]:
    import torch

    from sinkscope.generation.generate import generate
    from sinkscope.tasks.prompting import encode_prompt

    prompt = encode_prompt(model, task.prompt(item.document), task.scheme)
    ids = torch.tensor([prompt.ids])
    return generate(model, ids, cell.parsed_decoding(), policy, seed=[item.stream], **options), prompt.text


def _traced(cell: Cell, store: Store, model: Model, task: Task, item: Item) -> Generation:
    """A recorded generation; its file and its analysis are complete before the record says so."""
    import shutil

    from sinkscope.study.analysis import analyse
    from sinkscope.trace.capture import Capture
    from sinkscope.trace.storage import partial_path

    path = store.trace_file(cell.id, item.index, item.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial_path(path), ignore_errors=True)  # left by a kill
    path.unlink(missing_ok=True)
    options = json.loads(cell.capture)
    run, text = _generate(cell, model, task, item, _policy(cell), capture=Capture(**options), out=path)
    more: dict[str, Any] = {"trace": path.name, "bytes": path.stat().st_size}
    if cell.kind == "trace":
        more |= analyse(run.trace, store.analysis_file(cell.id, item.index, item.seed))
    return _row(cell, model, task, item, run, text, more)


def _replayed(cell: Cell, store: Store, model: Model, task: Task, item: Item) -> Generation:
    """A generation without the policy, and what the policy would have changed at each of its steps."""
    from sinkscope.generation.replay import replay

    policy = _policy(cell)
    if policy is None:
        raise InputError("a replay compares a policy with none; name policies other than none")
    run, text = _generate(cell, model, task, item, None)
    found = replay(model, run, policy).summary()
    more = {name: None if math.isnan(value) else round(value, 6) for name, value in found.items()}
    return _row(cell, model, task, item, run, text, more)


def _row(
    cell: Cell, model: Model, task: Task, item: Item, run: Run, text: str, more: dict[str, Any]
) -> Generation:
    from sinkscope.tasks.prompting import decode_answer

    guided = 2 if getattr(run.decoding, "cfg", 0) > 0 else 1
    share = None if run.hidden_share is None else float(run.hidden_share[0])
    return Generation(
        document=item.document.id,
        index=item.index,
        seed=item.seed,
        prompt=text,
        output=decode_answer(model, run.sequences[0, run.prompt :].tolist(), task.scheme),
        steps=run.forwards[0] // guided,
        forwards=run.forwards[0],
        hidden=None if share is None or math.isnan(share) else round(share, 5),
        more={
            "fingerprint": fingerprint(item.document), "stream": item.stream, "prompt_tokens": run.prompt,
            "ties": int(run.ties[:, 0].sum()), **more,
        },
    )  # fmt: skip


class ShardFailedError(SinkscopeError):
    """A shard that could not be done, with the reason that a worker gave."""
