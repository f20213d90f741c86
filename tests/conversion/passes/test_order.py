"""The list of passes is whole, in the order that bytes depend on, and a pass with nothing to do does nothing."""

from __future__ import annotations

import pkgutil

import pytest

from draftconv.api.convert import ConvertOptions
from draftconv.conversion import passes
from draftconv.conversion.changed_drafter import writer_of
from draftconv.conversion.passes import PASSES
from draftconv.conversion.passes.base import Context, Pass
from draftconv.conversion.weight_plan import WeightPlan
from draftconv.conversion.working_drafter import start
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.layouts import layout
from tests import opening
from tests.api.conftest import Source

ORDER = (
    "dequantize", "repair", "prune", "rope", "limits", "embedding", "vocabulary", "biases", "dtype", "positions",
    "repack", "quantize",
)  # fmt: skip


def context(drafter: Drafter, **options: object) -> Context:
    chosen = ConvertOptions(**{"to": "portable", **options})  # type: ignore[arg-type]
    writer = writer_of(layout(str(chosen.to)), str(chosen.to))
    return Context(None, writer, chosen, check_drafter(drafter, None), WeightPlan(), None)


def test_every_pass_is_in_the_list_once_and_in_its_place() -> None:
    assert tuple(each.name for each in PASSES) == ORDER
    modules = {module.name for module in pkgutil.iter_modules(passes.__path__)} - {"base"}
    assert modules == set(ORDER)
    assert [each.run.__module__.rpartition(".")[2] for each in PASSES] == list(ORDER)


@pytest.mark.parametrize("each", PASSES, ids=lambda each: each.name)
def test_a_pass_with_nothing_to_do_returns_the_work_as_it_is(each: Pass, source: Source) -> None:
    drafter = opening.read(source("torchspec-native", "llama"))
    work = start(drafter)
    assert each.run(work, context(drafter, to="vllm")) is work


@pytest.mark.parametrize(
    ("name", "variant", "options"),
    [
        ("repair", "llama", {"repairs": ("double-norm",)}),
        ("embedding", "reduced", {"to": "modelopt"}),
        ("vocabulary", "frequency", {"to": "specforge"}),
        ("biases", "qkv-bias", {"to": "vllm"}),
        ("dtype", "llama", {"dtype": "float32"}),
        ("positions", "llama", {"max_positions": 77}),
    ],
)
def test_a_pass_declares_what_it_changes(name: str, variant: str, options: dict[str, object], source: Source) -> None:
    """The test above could not fail with a list of passes that never do anything."""
    drafter = opening.read(source("torchspec-native" if name == "embedding" else "modelopt-layers", variant))
    (run,) = (each.run for each in PASSES if each.name == name)
    work = start(drafter)
    changed = run(work, context(drafter, **options))
    assert len(changed.changes) > len(work.changes)
