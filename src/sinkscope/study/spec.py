"""A study as data: which models, tasks, decodings, policies, samples, seeds and captures.

    name = "mine"
    modules = ["my_policies"]
    [[models]]
    source = "organism/scratch"
    [[evaluate]]
    task = "word_problems"
    policies = ["none", "top:1", "random(top:1)"]
    samples = 32

`read` takes the name of a built-in study or a TOML file; `to_toml` writes what `from_data` reads. Nothing here touches a model.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from sinkscope.checks import whole
from sinkscope.errors import InputError, SinkscopeError, nearest
from sinkscope.files import fit
from sinkscope.sink_rule import EPSILON

BUILTIN = Path(__file__).parent / "builtin"
SCHEME = "scheme"
"""The decoding that a task's scheme has for the model's family."""
CAUSAL, DIFFUSION = "causal", "diffusion"
"""The family of causal models, and a word for all others."""

OF_THE_CALL = ("data", "modules", "evidence")
NOT_IN_RECORDS = ("budget", "about", *OF_THE_CALL)
"""Fields that may differ between two calls on one folder: each record's own settings hold what matters of them."""

BLOCKS = ("evaluate", "trace", "replay", "inspect")
"""The kinds of blocks of a study."""

MOST_DOCUMENTS = 100_000
"""Generated tasks have no end: a number without bounds would be generated for ever."""

Samples = int | Literal["auto", "all"]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class StudyModel:
    """A model of a study.

    Attributes:
        name: its name in tables; empty: its source.
        twin: the name of the study's causal model that it is compared with; empty: the first one.
        group: models of the same group are replicates: the same training with other seeds (table `replicates`).
        optional: left out, with its blocks, where it is not on this machine (`facts.present`).
    """

    source: str
    revision: str | None = None
    dtype: str = "auto"
    name: str = ""
    twin: str = ""
    group: str = ""
    optional: bool = False

    def __post_init__(self) -> None:
        _text("source of a model", self.source)
        if not self.name:
            object.__setattr__(self, "name", self.source)


@dataclass(frozen=True)
class Grid:
    """Models × decodings × policies on one task.

    Attributes:
        task: a name, or name:scheme; a table {family = "name:scheme"} where schemes differ by family.
        policies: their text forms (policies are taken too); "none" is no policy. Controls, random(…), are run with
            `controls` seeds each.
        reuse: text forms of reuse rules (approximate steps), or names of published settings; "none": every step is exact. Random
            ones are run with `controls` seeds. In [[replay]] each is compared with the exact run. Not together with policies.
        decodings: names from the study's `decodings`, or "scheme".
        models: names of the study's models; empty: all.
        families: of them only those of these families, because others refuse some of the policies; "diffusion": every family
            but the causal one; empty: all.
        samples: documents per cell; "auto": as many as the budget allows; "all" that the task has.
        seeds: of the decoding; several only where it draws.
        batches: take the documents in whole batches of this size with equally long prompts, which are answered together and
            so much faster on a CPU; 0: the first documents of the task. See `documents.in_batches`.
        drawn: places of the documents that were drawn from those of the evidence when the study started (`study.draw`), written
            by the study itself into its study.toml; empty: the documents follow from the rules above.
    """

    task: str | Mapping[str, str]
    policies: tuple[str, ...] = ("none",)
    decodings: tuple[str, ...] = (SCHEME,)
    models: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    samples: Samples = "auto"
    seeds: tuple[int, ...] = (0,)
    controls: int = 1
    batches: int = 0
    reuse: tuple[str, ...] = ("none",)
    drawn: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("policies", "reuse"):
            texts = tuple("none" if one is None else str(one) for one in getattr(self, name))
            object.__setattr__(self, name, texts)
        for name in ("policies", "decodings", "reuse"):
            if not getattr(self, name):
                raise InputError(f"{name} is empty; leave it out, or name at least one")
        if set(self.reuse) != {"none"} and set(self.policies) != {"none"}:
            raise InputError("a policy and reuse cannot act together; give them blocks of their own")
        if self.samples not in ("auto", "all"):
            whole("samples", self.samples, 1)
        whole("controls", self.controls, 1)
        whole("batches", self.batches, 0)
        for place in self.drawn:
            whole("drawn", place, 0)
        last = max((self.samples if isinstance(self.samples, int) else 0, *self.drawn))
        if last > MOST_DOCUMENTS:
            raise InputError(
                f"a study takes its documents from a task's first {MOST_DOCUMENTS:,}, got {last}"
            )
        if not self.seeds:
            raise InputError("seeds is empty; give at least one, such as [0]")
        for seed in self.seeds:
            whole("seeds", seed, 0)

    @property
    def tasks(self) -> list[str]:
        """The names of the task, one for each family where they differ."""
        return [self.task] if isinstance(self.task, str) else list(self.task.values())

    def takes(self, family: str) -> bool:
        """Whether models of a family are in the block."""
        return (
            not self.families or family in self.families or (family != CAUSAL and DIFFUSION in self.families)
        )

    def task_for(self, family: str) -> str:
        """The task's name for models of a family."""
        if isinstance(self.task, str):
            return self.task
        if family not in self.task:
            raise InputError(
                f"the study has no task for models of the family {family}; {nearest(family, self.task)}"
            )
        return self.task[family]


@dataclass(frozen=True)
class TraceGrid(Grid):
    """Generations with attention recorded.

    Attributes:
        name: of these traces in tables and figures.
        capture: options of ss.Capture.
        maps: exemplars that get full attention maps in a second pass, every `maps_every` steps; see `documents.exemplars`.
        keep: False removes a recording once its statistics are made of it, for studies of many models.
        epsilon, rule: what is a sink in the statistics and claims, as in ss.detect.
    """

    name: str = "traces"
    capture: Options = field(default_factory=dict)
    maps: int = 0
    maps_every: int = 8
    keep: bool = True
    epsilon: float = EPSILON
    rule: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.keep and (self.maps or self.policies != ("none",)):
            raise InputError(
                f"[[trace]] {self.name}: recordings with maps or under policies are read again later; leave keep = false out"
            )
        if (self.rule, self.epsilon) != ("auto", EPSILON):
            from sinkscope.sinks.judging import check_rule  # what reads arrays is not needed to name a study

            check_rule(self.rule, self.epsilon)
        whole("maps", self.maps, 0)
        whole("maps_every", self.maps_every, 1)


@dataclass(frozen=True)
class InspectGrid(Grid):
    """Generations without a policy whose inside is measured: what their sinks hold (sinkscope.inspection).

    Attributes:
        looks: steps of each generation that are looked at, evenly spread.
    """

    looks: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("looks", self.looks, 1)
        if self.policies != ("none",):
            raise InputError(
                f"[[inspect]] looks at runs without a policy, got {', '.join(self.policies)}; leave policies out"
            )
        if self.reuse != ("none",):
            raise InputError("[[inspect]] computes steps anew, exactly; leave reuse out")


@dataclass(frozen=True)
class Budget:
    """The limits of samples = "auto".

    Attributes:
        seconds: of computing on this machine, for all cells together.
        least: documents per cell; most: likewise.
    """

    seconds: float = 200.0
    least: int = 16
    most: int = 256

    def __post_init__(self) -> None:
        whole("least", self.least, 2)
        whole("most", self.most, self.least)
        if not isinstance(self.seconds, (int, float)) or not self.seconds > 0:
            raise InputError(f"the budget's seconds should be above 0, got {self.seconds!r}")


@dataclass(frozen=True)
class Study:
    """A whole study.

    Attributes:
        decodings: name → family → options of that family's decoding.
        data: task → JSON-lines file in the original format; tasks that are not named here are fetched or generated.
        modules: Python modules to import first, here and in every worker: they register policies, tasks, decodings, families.
        evidence: folders of earlier studies on the same models, or their files (`study.evidence`); the organisms have their own.
        draw: the seed that draws the study's documents from those of the evidence, where it has any.
    """

    name: str
    models: tuple[StudyModel, ...]
    evaluate: tuple[Grid, ...] = ()
    trace: tuple[TraceGrid, ...] = ()
    replay: tuple[Grid, ...] = ()
    inspect: tuple[InspectGrid, ...] = ()
    decodings: Mapping[str, Mapping[str, Options]] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    data: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    draw: int = 0
    about: str = ""

    def __post_init__(self) -> None:
        _text("name of a study", self.name)
        whole("draw", self.draw, 0)
        for module in self.modules:
            _text("name of a module", module)
        if not self.grids:
            raise InputError(
                f"study {self.name} does nothing; give it [[evaluate]], [[trace]], [[replay]] or [[inspect]]"
            )
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise InputError(f"study {self.name} has two models of the same name; give them different names")
        for model in self.models:
            if model.twin and (model.twin not in names or model.twin == model.name):
                others = [name for name in names if name != model.name]
                raise InputError(
                    f"the twin of {model.name} should be another model of study {self.name}, got {model.twin!r}; "
                    f"{nearest(model.twin, others)}"
                )
        for grid in self.grids:
            for name in grid.models:
                if name not in names:
                    raise InputError(f"study {self.name} has no model {name!r}; {nearest(name, names)}")
            for name in grid.decodings:
                if name != SCHEME and name not in self.decodings:
                    raise InputError(
                        f"study {self.name} has no decoding {name!r}; {nearest(name, [*self.decodings, SCHEME])}"
                    )

    @property
    def grids(self) -> tuple[Grid, ...]:
        """All blocks."""
        return tuple(grid for kind in BLOCKS for grid in getattr(self, kind))

    def models_of(self, grid: Grid) -> list[StudyModel]:
        """The models of a block."""
        return [model for model in self.models if not grid.models or model.name in grid.models]


def builtin_names() -> list[str]:
    """The studies that come with the package."""
    return sorted(path.stem for path in BUILTIN.glob("*.toml"))


def read(name: str | Path) -> Study:
    """A built-in study by name, or one from a TOML file; its modules are imported and its names checked."""
    return from_data(read_data(name), str(name))


def changed(
    name: str | Path,
    models: Sequence[str] = (),
    task: str | None = None,
    samples: int | None = None,
    dtype: str | None = None,
    data: Mapping[str, str] | None = None,
    runs: Mapping[str, str] | None = None,
    epsilon: float | None = None,
    rule: str | None = None,
) -> Study:
    """A built-in study or one from a TOML file, with other models, another task, number of documents, dtype or data files.

    Args:
        runs: further models, name → folder. epsilon, rule: what is a sink in its traces.
    """
    given = read_data(name)
    for block in given.get("trace", []):
        block |= {key: value for key, value in (("epsilon", epsilon), ("rule", rule)) if value is not None}
    named = [{"source": source, "name": label} for label, source in (runs or {}).items()]
    if models or named:
        given["models"] = [*models, *named]
        models = (*models, *(runs or {}))
    blocks = [block for kind in BLOCKS for block in given.get(kind, [])]
    # Models that no block names take the blocks that name others, where all blocks do: else nothing would be left.
    named_by_blocks = [name for block in blocks for name in block.get("models", ())]
    strangers = [name for name in models if name not in named_by_blocks]
    strangers = strangers if all(block.get("models") for block in blocks) else []
    for kind in BLOCKS:
        for block in given.get(kind, []):
            if models and block.get("models"):
                block["models"] = [known for known in (*block["models"], *strangers) if known in models]
            if task is not None:
                block["task"] = task
            if samples is not None and kind == "evaluate":
                block["samples"] = samples
        given[kind] = [block for block in given.get(kind, []) if not models or block.get("models") != []]
    study = from_data(given, str(name))
    if not study.models:
        raise InputError(
            f"study {study.name} is for any one model: name it with --model, such as --model organism/scratch, or give the "
            "folder of a training sweep with --runs"
        )
    if dtype is not None:
        cast = tuple(dataclasses.replace(model, dtype=dtype) for model in study.models)
        study = dataclasses.replace(study, models=cast)
    return dataclasses.replace(study, data={**study.data, **(data or {})})


def read_data(name: str | Path) -> dict[str, Any]:
    """The TOML data of a study, before anything is checked."""
    path = Path(name)
    if str(name) in builtin_names():
        path = BUILTIN / f"{name}.toml"
    elif not path.is_file():
        raise InputError(
            f"there is no study {str(name)!r}; {nearest(str(name), builtin_names())} (or a .toml file)"
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise InputError(f"{path} is not a TOML file that can be read: {error}") from error


Made = TypeVar("Made")


def from_data(data: Mapping[str, Any], where: str = "the study", *, names: bool = True) -> Study:
    """A study from TOML or JSON data; unknown fields are explained.

    `names`: import the study's modules and check the names of tasks, policies and decodings. Without it nothing is
    imported: for reading the folder of a study that somebody else made.
    """
    given = dict(data)
    made: dict[str, Any] = {
        name: tuple(
            _make(kind, item, f"{where}, {name}") for item in _tables(name, given.pop(name, []), where)
        )
        for name, kind in zip(
            ("models", *BLOCKS), (StudyModel, Grid, TraceGrid, Grid, InspectGrid), strict=True
        )
    }
    budget = _make(Budget, given.pop("budget", {}), f"{where}, budget")
    study = _make(Study, {**given, **made, "budget": budget}, where)
    if names:
        check_names(study)
    return study


def _tables(name: str, items: Any, where: str) -> list[Any]:
    if name == "models" and isinstance(items, list):
        items = [{"source": item} if isinstance(item, str) else item for item in items]
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise InputError(f"{where}: {name} should be a list of tables, written as [[{name}]]")
    return items


def _make(kind: type[Made], options: Mapping[str, Any], where: str) -> Made:
    """A dataclass from a table; lists become tuples, unknown names are explained."""
    known = {item.name for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    try:
        for name in fit(Mapping[str, Any], options):
            if name not in known:
                raise InputError(f"there is no {name!r}; {nearest(name, known)}")
        made: Made = fit(kind, options)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return made


def to_data(study: Study) -> dict[str, Any]:
    """The study as JSON data, everything written out."""
    data: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(study)))
    return data


def to_toml(study: Study) -> str:
    """The study as TOML text that `from_data` reads back; None, which TOML does not have, is the default and left out."""
    import tomli_w

    def known(data: Any) -> Any:
        if isinstance(data, dict):
            return {name: known(value) for name, value in data.items() if value is not None}
        return [known(value) for value in data] if isinstance(data, list) else data

    return tomli_w.dumps(known(to_data(study)))


def with_samples(study: Study, samples: int) -> Study:
    """The study with "auto" replaced by a number."""
    changed: dict[str, Any] = {
        kind: tuple(
            dataclasses.replace(grid, samples=samples) if grid.samples == "auto" else grid
            for grid in getattr(study, kind)
        )
        for kind in BLOCKS
    }
    return dataclasses.replace(study, **changed)


def has_auto(study: Study) -> bool:
    """True when a number of documents is left to a measurement of speed."""
    return any(grid.samples == "auto" for grid in study.grids)


def _text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InputError(f"the {what} should be a text, got {value!r}")


# ---- names and modules of a study --------------------------------------------------------------------


def check_names(study: Study) -> None:
    """Import the study's modules, and refuse tasks, policies, reuse rules, decodings and options that nobody has registered."""
    from sinkscope.decoding import decoding_from_options
    from sinkscope.models.load import FAMILIES
    from sinkscope.policies import parse_policy
    from sinkscope.reuse import parse_reuse
    from sinkscope.tasks import registry
    from sinkscope.trace.capture import Capture

    import_modules(study.modules)
    families = [*FAMILIES, DIFFUSION]
    for grid in study.grids:
        for family in grid.families:
            if family not in families:
                raise InputError(f"the study names an unknown family {family!r}: {nearest(family, families)}")
        for task in grid.tasks:
            base = str(task).partition(":")[0]
            if base not in registry.names():
                raise InputError(
                    f"the study names an unknown task {base!r}: {nearest(base, registry.names())}"
                )
        for policy in grid.policies:
            parse_policy(policy)
        for rule in grid.reuse:
            parse_reuse(rule)
    for traced in study.trace:
        known = {item.name for item in dataclasses.fields(Capture)}
        for name in traced.capture:
            if name not in known:
                raise InputError(f"capture has no option {name!r}; {nearest(name, known)}")
        Capture(**traced.capture)
    for name, by_family in study.decodings.items():
        for family, options in by_family.items():
            decoding_from_options(family, options, f"decoding {name!r}")


def import_modules(modules: Sequence[str]) -> None:
    """Import the modules that a study names."""
    for name in modules:
        try:
            importlib.import_module(name)
        except SinkscopeError:
            raise
        except Exception as error:  # a stranger's module may raise anything
            raise InputError(
                f"the module {name!r} that the study names cannot be imported ({type(error).__name__}: {error}); install it, "
                "or put its folder on PYTHONPATH, on every machine that runs the study"
            ) from error
