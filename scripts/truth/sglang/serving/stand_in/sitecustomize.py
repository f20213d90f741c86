"""Found on PYTHONPATH by every process of an SGLang server of the tests. TEST ONLY: no part of draftconv.

A few things stand between SGLang 0.5.23 and drafting on a CPU without its compiled kernels; the kernels lie beside
this file, the rest is amended here, each where the module has been read, and nothing else.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Linux: end when the process that started this one ends, however it does: no test leaves a server behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _has_amx(context: Any) -> None:
    """`intel_amx` is the one attention backend that drafts on a CPU, and is left where the CPU has no AMX.

    Source: srt/arg_groups/overrides.py, `_attention_backend_platform_fallbacks`. The override is SGLang's own and
    is asked there; what packs weights for AMX asks the CPU itself, and is answered no.
    """
    context.override_platform(has_amx=True).__enter__()


def _any_rope(factory: Any) -> None:
    """The factory for CPUs makes deepseek_yarn alone; the general one makes every kind, with the same classes.

    Source: srt/layers/rotary_embedding/factory.py, `get_rope_cpu`, which leaves the device to its caller.
    """

    def get_rope_cpu(*args: Any) -> Any:
        *shared, _device = args
        return factory.get_rope(*shared)

    factory.get_rope_cpu = get_rope_cpu


def _no_cuda(drafter: Any) -> None:
    """The MLA drafter waits for CUDA when it takes over the target's embedding, on whatever device it is.

    Source: srt/models/kimi_k25_eagle3.py, `set_embed`.
    """
    drafter.torch.cuda.synchronize = drafter.torch.cuda.empty_cache = lambda *_: None


def _images(transformers: Any) -> None:
    """torchvision has no build for the CPU build of torch here; SGLang imports it for models that see images.

    transformers looks for it first, finds none, and remembers that.
    """
    transformers.is_torchvision_available()
    sys.meta_path.append(Imageless())


AMENDED: Mapping[str, Callable[[Any], None]] = {
    "transformers.utils.import_utils": _images,
    "sglang.srt.runtime_context": _has_amx,
    "sglang.srt.layers.rotary_embedding.factory": _any_rope,
    "sglang.srt.models.kimi_k25_eagle3": _no_cuda,
}
"""Module → what is changed in it once it has been read."""


class Imageless(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """torchvision where none is installed: names to import, nothing behind them."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        ours = name.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def exec_module(self, module: ModuleType) -> None:
        from unittest.mock import MagicMock

        module.__getattr__ = lambda name: MagicMock(name=f"torchvision: {name}")  # type: ignore[method-assign]


class Amending(importlib.abc.MetaPathFinder):
    """Finds the modules of `AMENDED` as they are found anyway, and changes them behind their own code."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in AMENDED else None
        if spec is None or spec.loader is None:
            return None
        read = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            read(module)
            AMENDED[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


die_with_parent()
sys.meta_path.insert(0, Amending())
