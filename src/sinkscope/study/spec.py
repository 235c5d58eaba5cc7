"""A study as data: which models, tasks, decodings, policies, samples, seeds and captures.

    name = "mine"
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
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from sinkscope.errors import InputError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUILTIN = Path(__file__).parent / "builtin"
SCHEME = "scheme"
"""The decoding that a task's scheme has for the model's family."""

Samples = int | Literal["auto", "all"]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class StudyModel:
    """A model of a study. `name` is what tables call it."""

    source: str
    revision: str | None = None
    dtype: str = "auto"
    name: str = ""

    def __post_init__(self) -> None:
        _text("source of a model", self.source)
        if not self.name:
            object.__setattr__(self, "name", self.source)


@dataclass(frozen=True)
class Grid:
    """Models × decodings × policies on one task.

    Attributes:
        task: a name, or name:scheme; a table {family = "name:scheme"} where schemes differ by family.
        decodings: names from the study's `decodings`, or "scheme".
        policies: text forms; "none" is no policy. Controls, random(…), are run with `controls` seeds each.
        models: names of the study's models; empty: all.
        samples: documents per cell; "auto": as many as the budget allows; "all" that the task has.
        seeds: of the decoding; several only where it draws.
        batches: take the documents in whole batches of so many with equally long prompts, which are answered together and so
            much faster on a CPU; 0: simply the first documents. See `plan.in_batches`.
    """

    task: str | Mapping[str, str]
    policies: tuple[str, ...] = ("none",)
    decodings: tuple[str, ...] = (SCHEME,)
    models: tuple[str, ...] = ()
    samples: Samples = "auto"
    seeds: tuple[int, ...] = (0,)
    controls: int = 1
    batches: int = 0

    def __post_init__(self) -> None:
        from sinkscope.policies import parse_policy
        from sinkscope.tasks import registry

        for task in [self.task] if isinstance(self.task, str) else self.task.values():
            base = str(task).partition(":")[0]
            if base not in registry.TASKS:
                raise InputError(f"the study names an unknown task {base!r}: {nearest(base, registry.TASKS)}")
        for policy in self.policies:
            parse_policy(policy)
        for name in ("policies", "decodings"):
            if not getattr(self, name):
                raise InputError(f"{name} is empty; leave it out, or name at least one")
        if self.samples not in ("auto", "all"):
            _whole("samples", self.samples, 1)
        _whole("controls", self.controls, 1)
        _whole("batches", self.batches, 0)
        if not self.seeds:
            raise InputError("seeds is empty; give at least one, such as [0]")
        for seed in self.seeds:
            _whole("seeds", seed, 0)

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
        name: what tables and figures call them.
        capture: options of ss.Capture.
        maps: full maps of this many exemplars in a second pass, every `maps_every` steps; see `exemplars`.
    """

    name: str = "traces"
    capture: Options = field(default_factory=dict)
    maps: int = 0
    maps_every: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        _capture(self.capture)
        _whole("maps", self.maps, 0)
        _whole("maps_every", self.maps_every, 1)


@dataclass(frozen=True)
class Budget:
    """What samples = "auto" may take on this machine.

    Attributes:
        seconds: of computing, for all cells together; least, most: documents per cell.
    """

    seconds: float = 200.0
    least: int = 16
    most: int = 256

    def __post_init__(self) -> None:
        _whole("least", self.least, 2)
        _whole("most", self.most, self.least)
        if not isinstance(self.seconds, (int, float)) or not self.seconds > 0:
            raise InputError(f"the budget's seconds should be above 0, got {self.seconds!r}")


@dataclass(frozen=True)
class Study:
    """A whole study.

    Attributes:
        decodings: name → family → options of that family's decoding.
        data: task → JSON-lines file in the original format; tasks that are not named here are fetched or generated.
    """

    name: str
    models: tuple[StudyModel, ...]
    evaluate: tuple[Grid, ...] = ()
    trace: tuple[TraceGrid, ...] = ()
    replay: tuple[Grid, ...] = ()
    decodings: Mapping[str, Mapping[str, Options]] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    data: Mapping[str, str] = field(default_factory=dict)
    about: str = ""

    def __post_init__(self) -> None:
        _text("name of a study", self.name)
        if not (self.evaluate or self.trace or self.replay):
            raise InputError(f"study {self.name} does nothing; give it [[evaluate]], [[trace]] or [[replay]]")
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise InputError(f"study {self.name} has two models of the same name; give them different names")
        for grid in self.grids:
            for name in grid.models:
                if name not in names:
                    raise InputError(f"study {self.name} has no model {name!r}; {nearest(name, names)}")
            for name in grid.decodings:
                if name != SCHEME and name not in self.decodings:
                    raise InputError(
                        f"study {self.name} has no decoding {name!r}; {nearest(name, [*self.decodings, SCHEME])}"
                    )
        for name, families in self.decodings.items():
            for family, options in families.items():
                decoding_of(family, options, name)

    @property
    def grids(self) -> tuple[Grid, ...]:
        """All blocks."""
        return (*self.evaluate, *self.trace, *self.replay)

    def models_of(self, grid: Grid) -> list[StudyModel]:
        """The models that a block is about."""
        return [model for model in self.models if not grid.models or model.name in grid.models]


def decoding_of(family: str, options: Options, name: str = "") -> Any:
    """The decoding of a family with these options; unknown families and options are explained."""
    from sinkscope.decoding import SamplingDecoding, default_decoding

    if family not in ("llada", "dream", "mmada", "causal"):
        raise InputError(
            f"decoding {name!r}: {family!r} is no family; {nearest(family, ('llada', 'dream', 'mmada', 'causal'))}"
        )
    kind: Any = type(default_decoding(family))
    if family == "causal" and ("temperature" in options or "top_p" in options):
        kind = SamplingDecoding
    known = {item.name for item in dataclasses.fields(kind)}
    for option in options:
        if option not in known:
            raise InputError(
                f"decoding {name!r}: {family} has no option {option!r}; {nearest(option, known)}"
            )
    return kind(**options)


def builtin_names() -> list[str]:
    """The studies that come with the package."""
    return sorted(path.stem for path in BUILTIN.glob("*.toml"))


def read(name: str | Path) -> Study:
    """A built-in study by name, or one from a TOML file."""
    return from_data(read_data(name), str(name))


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} is not a TOML file that can be read: {error}") from error


Made = TypeVar("Made")


def from_data(data: Mapping[str, Any], where: str = "the study") -> Study:
    """A study from TOML or JSON data; unknown names are explained."""
    given = dict(data)
    blocks: dict[str, Any] = {
        "models": (StudyModel, given.pop("models", [])),
        "evaluate": (Grid, given.pop("evaluate", [])),
        "trace": (TraceGrid, given.pop("trace", [])),
        "replay": (Grid, given.pop("replay", [])),
    }
    made = {
        name: tuple(_make(kind, item, f"{where}, {name}") for item in _tables(name, items, where))
        for name, (kind, items) in blocks.items()
    }
    budget = _make(Budget, given.pop("budget", {}), f"{where}, budget")
    return _make(Study, {**given, **made, "budget": budget}, where)


def _tables(name: str, items: Any, where: str) -> list[Any]:
    if name == "models":
        items = [{"source": item} if isinstance(item, str) else item for item in items]
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise InputError(f"{where}: {name} should be a list of tables, written as [[{name}]]")
    return items


def _make(kind: type[Made], options: Mapping[str, Any], where: str) -> Made:
    """A dataclass from a table; lists become tuples, unknown names are explained."""
    known = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise InputError(f"{where}: there is no {name!r}; {nearest(name, known)}")
    for name, item in known.items():
        needed = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if needed and name not in options:
            raise InputError(f"{where}: {name} is missing")
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return kind(**lists)


def to_data(study: Study) -> dict[str, Any]:
    """The study as JSON data, everything written out."""
    data: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(study)))
    return data


def to_toml(study: Study) -> str:
    """The study as TOML text that `from_data` reads back."""
    return _toml(to_data(study)) + "\n"


def _toml(data: Mapping[str, Any], path: str = "") -> str:
    plain, tables = [], []
    for name, value in data.items():
        where = f"{path}.{_key(name)}" if path else _key(name)
        if value is None:
            continue
        if (
            isinstance(value, Mapping)
            and path != ""
            and not any(isinstance(v, Mapping) for v in value.values())
        ):
            plain.append(f"{_key(name)} = {_inline(value)}")
        elif isinstance(value, Mapping):
            tables.append(f"\n[{where}]\n{_toml(value, where)}")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            tables += [f"\n[[{where}]]\n{_toml(item, where)}" for item in value]
        else:
            plain.append(f"{_key(name)} = {_inline(value)}")
    return "\n".join([*plain, *tables])


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(name)} = {_inline(one)}" for name, one in value.items() if one is not None)
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(_inline(one) for one in value)}]"
    return json.dumps(value)  # texts, numbers and truth values are written alike in both


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)


def _capture(options: Options) -> None:
    from sinkscope.trace.capture import Capture

    known = {item.name for item in dataclasses.fields(Capture)}
    for name in options:
        if name not in known:
            raise InputError(f"capture has no option {name!r}; {nearest(name, known)}")
    Capture(**options)


def _text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InputError(f"the {what} should be a text, got {value!r}")


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} should be a whole number of at least {least}, got {value!r}")
