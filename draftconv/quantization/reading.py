"""The quantized weights of an opened drafter: which format they are in, and what belongs to which module.

config.json is believed where it speaks of a format that the tensors are in. Where it does not,
or the tensors say otherwise, every format is asked to load one module, and what fits is taken
and told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from draftconv.checkpoint import FLOATS, TensorRef, show_some
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.tensors import expected
from draftconv.errors import Refused
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.formats import formats
from draftconv.quantization.formats.base import Declared, Format, Weight
from draftconv.quantization.weights import load

Parts = Mapping[str, TensorRef]


@dataclass(frozen=True, slots=True)
class Stored:
    """The quantized weights of a drafter, not yet read.

    Attributes:
        modules: canonical module (`layers.0.mlp.down_proj`) → its tensors by suffix. `shapes`: [O, I] of each.
        dtype: of the weights that they stand for, as safetensors spells it.
    """

    format: Format
    declared: Declared
    modules: Mapping[str, Parts]
    shapes: Mapping[str, tuple[int, int]]
    dtype: str

    def load(self, module: str) -> Weight:
        """One weight in memory.

        Raises:
            BadCheckpoint: its tensors do not fit each other or what is declared.
        """
        return load(self.modules[module], self.format, self.declared, self.dtype)


def find_stored(drafter: Drafter) -> Stored:
    """How the weights of a quantized drafter are stored.

    Raises:
        Refused: no format that draftconv reads fits what config.json declares, or the variant is not known.
        BadCheckpoint: config.json contradicts itself.
    """
    modules = dict(quantized_modules(drafter))
    checkpoint = drafter.checkpoint
    for form in formats().values():
        declared = form.read(checkpoint.config, checkpoint.sidecars)
        if declared is not None:
            return Stored(form, declared, modules, _shapes(drafter, modules), _dtype(drafter))
    raise Refused(
        f"draftconv cannot read weights that are {drafter.facts.quantization}",
        why=f"the tensors of one module are {show_some(sorted(next(iter(modules.values()), {})), 6)}",
        cure=f"formats that it reads: {', '.join(formats())}",
    )


def quantized_modules(drafter: Drafter) -> Iterator[tuple[str, Parts]]:
    """Modules that have anything but a plain float weight, each with all its tensors but the bias."""
    every = {**drafter.tensors, **drafter.companions}
    modules: dict[str, dict[str, TensorRef]] = {}
    for name, ref in every.items():
        module, _, suffix = name.rpartition(".")
        modules.setdefault(module, {})[suffix] = ref
    for module, parts in modules.items():
        kept = {suffix: ref for suffix, ref in parts.items() if suffix != "bias"}
        if module and (set(kept) - {"weight"} or kept["weight"].dtype not in FLOATS):
            yield module, kept


def _shapes(drafter: Drafter, modules: Iterable[str]) -> dict[str, tuple[int, int]]:
    wanted = expected(drafter.facts)
    shapes = {}
    for module in modules:
        outputs, inputs = wanted[f"{module}{WEIGHT}"].shape
        shapes[module] = (outputs, inputs)
    return shapes


def _dtype(drafter: Drafter) -> str:
    """The dtype that the quantized weights had: that of the layer norms beside them."""
    norms = [ref.dtype for name, ref in drafter.tensors.items() if name.startswith("layers.") and "norm" in name]
    floats = [dtype for dtype in norms if dtype in FLOATS]
    return floats[0] if floats else "BF16"
