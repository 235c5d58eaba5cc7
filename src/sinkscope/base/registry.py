"""Registries: policies, decodings, families and tasks by name, ours and those of other packages.

Each package of sinkscope that can be extended has one `Registry`. A file of the package adds to it by being there. A stranger's
distribution adds to it through an entry point of the registry's group, or at run time with `ss.register(thing)`; nothing in
sinkscope asks for its type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from threading import RLock
from typing import Generic, TypeVar

from sinkscope.base.errors import InputError, SinkscopeError, nearest

Thing = TypeVar("Thing")

FOLDERS = ("sinkscope.reuse",)
"""Our folders that plug in: the rest of the package reaches them through registries alone (`base.extras`, `study.plugged`)."""


class Registry(Mapping[str, Thing], Generic[Thing]):
    """Things of one kind by name. Modules of the package and entry points are imported when a name is first looked up.

    Args:
        kind: the word for one of them in messages, such as "policy".
        group: the entry-point group, such as "sinkscope.policies".
        check: raises InputError when something cannot be registered, and returns its name.
        package: the package of ours whose modules register things, in the order of their names; None: none does.
        module: the module in each of our `FOLDERS` that registers things; None: none does.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        check: Callable[[object], str],
        package: str | None = None,
        module: str | None = None,
    ) -> None:
        self.kind, self.group, self.package, self.module, self._check = kind, group, package, module, check
        self._things: dict[str, Thing] = {}
        self._loaded, self._lock = False, RLock()

    def add(self, thing: Thing) -> Thing:
        """Register a thing under its own name, and return it, so that this can be used as a decorator."""
        name = self._check(thing)
        if self._things.get(name, thing) is not thing:
            raise InputError(f"there is already a {self.kind} called {name!r}: {self._things[name]!r}")
        self._things[name] = thing
        return thing

    def find(self, name: str) -> Thing:
        """The thing called `name`, or an InputError that names the nearest known ones."""
        if name not in self:
            raise InputError(f"{self.kind} {name!r} is not known; {nearest(name, self)}")
        return self[name]

    def __getitem__(self, name: str) -> Thing:
        if name not in self._things:
            self._load()
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._things)

    def __len__(self) -> int:
        self._load()
        return len(self._things)

    def _load(self) -> None:
        with self._lock:  # another thread waits until all are there
            if self._loaded:
                return
            self._loaded = True
            if self.package is not None:
                for module in iter_modules(import_module(self.package).__path__):
                    import_module(f"{self.package}.{module.name}")
                # In the order of the files, whichever of them was imported first; what was registered from outside comes last.
                self._things = dict(sorted(self._things.items(), key=self._by_file))
            for folder in FOLDERS if self.module else ():
                import_module(f"{folder}.{self.module}")
            for point in entry_points(group=self.group):
                self._add_point(point)

    def _by_file(self, entry: tuple[str, Thing]) -> tuple[bool, str]:
        name, thing = entry
        file = thing.__module__ if isinstance(thing, type) else name
        return not thing.__module__.startswith(f"{self.package}."), file

    def _add_point(self, point: EntryPoint) -> None:
        try:
            self.add(point.load())
        except SinkscopeError:
            raise
        except Exception as error:  # a stranger's package may raise anything when it is imported
            raise InputError(
                f"the {self.kind} {point.name!r} of {point.value} cannot be loaded ({error}); mend or uninstall it"
            ) from error
