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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sinkscope.base.checks import one_of, whole
from sinkscope.base.errors import InputError, SinkscopeError, nearest
from sinkscope.base.extras import EXTRAS
from sinkscope.base.files import fit, read_toml
from sinkscope.base.sink_rule import EPSILON

BUILTIN = Path(__file__).parent / "builtin"
SCHEME = "scheme"
"""The decoding that a task's scheme has for the model's family."""
CAUSAL, DIFFUSION = "causal", "diffusion"
"""The family of causal models, and a word for all others."""

SECTIONS = ("evaluate", "trace", "replay", "inspect")
"""The kinds of sections of a study: [[evaluate]], …"""

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
        optional: left out, with its sections, where it is not on this machine (`facts.present`).
    """

    source: str
    revision: str | None = None
    dtype: str = "auto"
    name: str = ""
    twin: str = ""
    group: str = ""
    optional: bool = False

    def __post_init__(self) -> None:
        if not self.source:
            raise InputError("a model of the study has no source; give a name, a folder or a hub id")
        if not self.name:
            object.__setattr__(self, "name", self.source)


@dataclass(frozen=True)
class Grid:
    """Models × decodings × policies on one task.

    Attributes:
        task: a name, or name:scheme; a table {family = "name:scheme"} where schemes differ by family.
        policies: their text forms; "none" is no policy. Controls, random(…), are run with `controls` seeds each.
        extras: kind of extra (`sinkscope.base.extras`) → text forms, which a study file has under the kind's name; "none": none
            acts. Random ones are run with `controls` seeds. In [[replay]] each is compared with the run without it. Not together
            with policies.
        decodings: names from the study's `decodings`, or "scheme".
        models: names of the study's models; empty: all.
        families: of them only those of these families, because others refuse some of the policies; "diffusion": every family
            but the causal one; empty: all.
        samples: documents per cell; "auto": as many as the budget allows; "all" that the task has.
        seeds: of the decoding; several only where it draws.
        floor: of the accuracy without a policy beyond guessing, which is looked at first: a model under it is not asked under
            any other.
        fixed: another --task leaves this section as it is.
        batches: take the documents in whole batches of this size with equally long prompts, which are answered together and
            so much faster on a CPU; 0: the first documents of the task. See `documents.in_batches`.
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
    floor: float = 0.0
    fixed: bool = False
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        listed = {"policies": self.policies, "decodings": self.decodings, "seeds": self.seeds, **self.extras}
        for name in (name for name, each in listed.items() if not each):
            raise InputError(f"{name} is empty; leave it out, or name at least one")
        extras = {name: texts for name, texts in self.extras.items() if set(texts) != {"none"}}
        object.__setattr__(self, "extras", extras)
        if extras and set(self.policies) != {"none"}:
            raise InputError(f"a policy and {next(iter(extras))} cannot act together; give them sections of their own")
        if self.samples not in ("auto", "all"):
            whole("samples", self.samples, 1)
        whole("controls", self.controls, 1)
        whole("batches", self.batches, 0)
        if not 0 <= self.floor < 1 or (self.floor and "none" not in self.policies):
            raise InputError(
                f"floor should be an accuracy from 0 to 1, in a section with the policy none, got {self.floor!r}"
            )
        if isinstance(self.samples, int) and self.samples > MOST_DOCUMENTS:
            raise InputError(f"a study takes its documents from a task's first {MOST_DOCUMENTS:,}, got {self.samples}")
        for seed in self.seeds:
            whole("seeds", seed, 0)

    @property
    def tasks(self) -> list[str]:
        """The names of the task, one for each family where they differ."""
        return [self.task] if isinstance(self.task, str) else list(self.task.values())

    def takes(self, family: str) -> bool:
        return not self.families or family in self.families or (family != CAUSAL and DIFFUSION in self.families)

    def task_for(self, family: str) -> str:
        if isinstance(self.task, str):
            return self.task
        if family not in self.task:
            raise InputError(f"the study has no task for models of the family {family}; {nearest(family, self.task)}")
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
        if self.sinks:
            from sinkscope.sinks.judging import check_rule  # what reads arrays is not needed to name a study

            check_rule(self.rule, self.epsilon)
        whole("maps", self.maps, 0)
        whole("maps_every", self.maps_every, 1)

    @property
    def sinks(self) -> dict[str, Any]:
        """What is a sink, as arguments of ss.detect; empty: as usual."""
        usual = (self.rule, self.epsilon) == ("auto", EPSILON)
        return {} if usual else {"epsilon": self.epsilon, "rule": self.rule}


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
        for name in self.extras:
            raise InputError(f"[[inspect]] computes steps anew, exactly; leave {name} out")


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
        decodings: name → family → options of that family's decoding; "diffusion": of every other family but the causal one.
        data: task → JSON-lines file in the original format; tasks that are not named here are fetched or generated.
        modules: Python modules to import first, here and in every worker: they register policies, tasks, decodings, families.
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
    about: str = ""

    def __post_init__(self) -> None:
        if not self.grids:
            raise InputError(
                f"study {self.name} does nothing; give it [[evaluate]], [[trace]], [[replay]] or [[inspect]]"
            )
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise InputError(f"study {self.name} has two models of the same name; give them different names")
        for model in self.models:
            others = [name for name in names if name != model.name]
            if model.twin and model.twin not in others:
                raise InputError(
                    f"the twin of {model.name} should be another model of study {self.name}, got {model.twin!r}; "
                    f"{nearest(model.twin, others)}"
                )
        for what, choices in (("model", names), ("decoding", [*self.decodings, SCHEME])):
            for name in (name for grid in self.grids for name in getattr(grid, f"{what}s")):
                if name not in choices:
                    raise InputError(f"study {self.name} has no {what} {name!r}; {nearest(name, choices)}")

    @property
    def sections(self) -> list[tuple[Any, Grid]]:
        return [(kind, grid) for kind in SECTIONS for grid in getattr(self, kind)]

    @property
    def grids(self) -> list[Grid]:
        return [grid for _, grid in self.sections]

    def models_of(self, grid: Grid) -> list[StudyModel]:
        return [model for model in self.models if not grid.models or model.name in grid.models]


def builtin() -> dict[str, Path]:
    """Name → file of the studies that come with the package, and with plug-ins."""
    from sinkscope.study.plugged import PLUGINS

    folders = [plugin.studies for plugin in PLUGINS.values() if plugin.studies is not None]
    files = {path.stem: path for folder in (*folders, BUILTIN) for path in folder.glob("*.toml")}
    return dict(sorted(files.items()))


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
    study = read(name)
    other = tuple(map(StudyModel, models)) + tuple(
        StudyModel(source, name=label) for label, source in (runs or {}).items()
    )
    names = [model.name for model in other]
    # Models that no section names take the sections that name others, where all do: else nothing would be left.
    asked = {name for grid in study.grids for name in grid.models}
    strangers = [name for name in names if name not in asked] if all(grid.models for grid in study.grids) else []
    whole_tasks = {(kind, name) for kind, grid in study.sections if grid.fixed for name in grid.tasks}
    options: dict[str, dict[str, Any]] = {"evaluate": {"samples": samples}, "trace": {"epsilon": epsilon, "rule": rule}}
    asked_of = other or study.models
    if not asked_of:
        raise InputError(
            f"study {study.name} is for any one model: name it with --model, such as --model organism/scratch, or give the "
            "folder of a training sweep with --runs"
        )

    def change(kind: str, grid: Grid) -> Grid | None:
        new: dict[str, Any] = {key: value for key, value in options.get(kind, {}).items() if value is not None}
        if other and grid.models:
            new["models"] = tuple(one for one in (*grid.models, *strangers) if one in names)
        if task is not None and not grid.fixed:
            new |= _put(kind, task)
        # A section without any of the models, or one whose new task another section asks whatever is changed, says nothing more.
        useless = new.get("models") == () or (kind, new.get("task")) in whole_tasks
        return None if useless else dataclasses.replace(grid, **new)

    if dtype is not None:
        asked_of = tuple(dataclasses.replace(model, dtype=dtype) for model in asked_of)
    study = each_section(study, change, models=asked_of, data={**study.data, **(data or {})})
    check_names(study)
    return study


def _put(kind: str, task: str) -> dict[str, Any]:
    """Another task for a section. One that is read has a decoding of its own, and only texts can be continued in traces."""
    from sinkscope.tasks import registry
    from sinkscope.tasks.reading import ReadTask

    # Some tasks have a wording for each family; whether one is read is the same in all.
    if not isinstance(registry.get(task, "causal"), ReadTask):
        return {"task": task}
    taken = kind == "evaluate" or registry.base_and_scheme(task)[0] == "text"
    return {"task": task, "decodings": (SCHEME,)} if taken else {}


def read_data(name: str | Path) -> dict[str, Any]:
    """The TOML data of a study, before anything is checked."""
    path = builtin().get(str(name), Path(name))
    if not path.is_file():
        raise InputError(f"there is no study {str(name)!r}; {nearest(str(name), builtin())} (or a .toml file)")
    return read_toml(path)


def from_data(data: Mapping[str, Any], where: str = "the study", *, names: bool = True) -> Study:
    """A study from TOML or JSON data; unknown fields are explained.

    `names`: import the study's modules and check the names of tasks, policies and decodings. Without it nothing is
    imported: for reading the folder of a study that somebody else made.
    """
    models = data.get("models", [])
    if isinstance(models, list):  # a source alone is a model
        data = {**data, "models": [{"source": one} if isinstance(one, str) else one for one in models]}
    sections = {kind: data[kind] for kind in SECTIONS if isinstance(data.get(kind), list)}
    data = {**data, **{kind: [_extras_apart(section) for section in each] for kind, each in sections.items()}}
    try:
        study: Study = fit(Study, data, strict=True)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if names:
        check_names(study)
    return study


def _extras_apart(section: Any) -> Any:
    """A section with what stands under the name of a kind of extra in its field `extras`."""
    if not isinstance(section, Mapping) or "extras" in section:
        return section  # they are apart already; what is wrong with it is said when it is read
    extras = {name: section[name] for name in EXTRAS if name in section}
    return {**{name: value for name, value in section.items() if name not in extras}, "extras": extras}


def to_toml(study: Study) -> str:
    """The study as TOML text that `from_data` reads back, all but None written out, which TOML does not have and is a default."""
    import tomli_w

    data = dataclasses.asdict(
        study, dict_factory=lambda pairs: {key: value for key, value in pairs if value is not None}
    )
    for section in (section for kind in SECTIONS for section in data[kind]):
        section |= section.pop("extras")
    return tomli_w.dumps(data)


def with_samples(study: Study, samples: int) -> Study:
    """The study with "auto" replaced by a number."""

    def counted(_: str, grid: Grid) -> Grid:
        return dataclasses.replace(grid, samples=samples) if grid.samples == "auto" else grid

    return each_section(study, counted)


def each_section(study: Study, change: Callable[[str, Grid], Grid | None], **changes: Any) -> Study:
    """The study with each section (its kind, itself) changed, None takes one out, and other fields at the same time."""
    new: Any = {
        kind: tuple(section for grid in getattr(study, kind) if (section := change(kind, grid)) is not None)
        for kind in SECTIONS
    }
    return dataclasses.replace(study, **new, **changes)


def has_auto(study: Study) -> bool:
    """True when a number of documents is left to a measurement of speed."""
    return any(grid.samples == "auto" for grid in study.grids)


# ---- names and modules of a study --------------------------------------------------------------------


def check_names(study: Study) -> None:
    """Import the study's modules, and refuse tasks, policies, extras, decodings and options that nobody has registered."""
    from sinkscope.decoding import decoding_from_options
    from sinkscope.models.load import FAMILIES
    from sinkscope.policies import parse_policy
    from sinkscope.tasks import registry
    from sinkscope.trace.capture import Capture

    # First, because modules register names that are looked up below.
    import_modules(study.modules)
    families, tasks = [*FAMILIES, DIFFUSION], registry.names()
    for grid in study.grids:
        for family in grid.families:
            one_of("family", family, families)
        for task in map(str, grid.tasks):
            if not registry.is_file(task):
                one_of("task", registry.base_and_scheme(task)[0], tasks)
        for text in grid.policies:
            parse_policy(text)
        for kind, texts in grid.extras.items():
            for text in texts:
                EXTRAS.find(kind).read(text)
    for name in study.data:
        one_of("data: task", name, tasks)
    for traced in study.trace:
        fit(Capture, traced.capture, "capture", strict=True)
    for name, by_family in study.decodings.items():
        for family, options in by_family.items():
            any_of_them = "llada" if family == DIFFUSION else family
            decoding_from_options(any_of_them, options, f"decoding {name!r}")


def import_modules(modules: Sequence[str]) -> None:
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
