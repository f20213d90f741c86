"""Stand-ins for packages that SGLang imports and does not call on a CPU: its compiled kernels, other vendors' ones."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ABSENT = ("aiter", "sgl_kernel", "torchvision", "vllm")
"""Packages of which importing is enough."""

MISSED = frozenset({"sgl_kernel.scalar_type"})
"""Modules that SGLang has a stand-in of its own for, whose values can be compared."""


class Nothing:
    """Whatever an absent package is asked for: callable, subscriptable, a decorator, a base class."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *args: Any, **keywords: object) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not keywords else Nothing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __getitem__(self, key: object) -> Any:
        return Nothing()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return (object,)


class AbsentModule(ModuleType):
    """A module of an absent package, or the package itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Nothing()


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last on the path, so that a package that is installed is never replaced."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = frozenset(packages)

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        known = fullname.partition(".")[0] in self.packages and fullname not in MISSED
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = AbsentModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in() -> None:
    """Let the absent packages be imported from here on.

    transformers looks for optional packages while it is imported, so it has to be there already.
    """
    sys.meta_path.append(AbsentFinder([name for name in ABSENT if importlib.util.find_spec(name) is None]))
