"""Files that can be read in several ways: a drafter for each pair of producers who spell alike and mean otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from draftconv.drafter.targets import Target
from draftconv.layouts import MARK
from tests import tiny
from tests.opening import read
from tests.tiny import IDS, Spelled, replace, spell

LLAMA = Target("t", tiny.LAYERS, "llama", hidden=64, vocab=tiny.VOCAB)
DEEPSEEK = replace(LLAMA, family="deepseek")

USUAL, LATER, EARLIER = "boundaries 2, 4, 5", "boundaries 3, 5, 6", "boundaries 1, 3, 4"
DEFAULT = "boundaries the default triple (2, L//2, L-3)"
PRE, POST = " and pre-norm feedback", " and post-norm feedback"

Edit = Callable[[Spelled], object]


def unmarked(spelled: Spelled) -> None:
    """As after a hand has been over config.json: TorchSpec's marks are gone."""
    spelled.config.pop("_torchspec_version", None)
    spelled.metadata = {"format": "pt"}


def top(*ids: int, **keys: Any) -> Edit:
    """Layer ids at the top level only, as vLLM reads them."""

    def edit(spelled: Spelled) -> None:
        spelled.config |= {IDS: list(ids), **keys}
        spelled.config.get("eagle_config", {}).pop(IDS, None)

    return edit


def nested(*ids: int, **keys: Any) -> Edit:
    """Layer ids in eagle_config, as most producers write them."""

    def edit(spelled: Spelled) -> None:
        section = {**spelled.config.get("eagle_config", {}), IDS: list(ids)}
        spelled.config |= {"eagle_config": section, **keys}

    return edit


def section(**keys: Any) -> Edit:
    """Keys of eagle_config."""

    def edit(spelled: Spelled) -> None:
        spelled.config["eagle_config"] = {**spelled.config.get("eagle_config", {}), **keys}

    return edit


def keys(**values: Any) -> Edit:
    return lambda spelled: spelled.config.update(values)


def without(*names: str) -> Edit:
    return lambda spelled: spelled.remove(*names)


@dataclass(frozen=True)
class Pair:
    """One drafter that two producers could have written.

    Attributes:
        wrote: whose file it was, before the edits. `detected`: whose it is taken for.
        means: option → what it would mean, the detected reading first.
    """

    name: str
    variant: str
    wrote: str
    edits: tuple[Edit, ...]
    detected: str
    means: dict[str, str]
    target: Target | None = None
    ids: bool = True

    def write(self, path: Path) -> Path:
        spelled = spell(self.variant, self.wrote, ids=self.ids)
        for edit in self.edits:
            edit(spelled)
        return spelled.write(path)


PAIRS = (
    Pair("SpecForge's and one that was corrected for vLLM", "reduced", "torchspec-native",
         (unmarked, nested(2, 4, 5, norm_output=True)), "specforge-hf",
         {"--from specforge": LATER + PRE, "--aux-convention before": USUAL + PRE, "--from vllm": USUAL + POST}, LLAMA),
    Pair("the same with its ids at the top level", "reduced", "torchspec-native",
         (unmarked, top(2, 4, 5, norm_output=True)), "specforge-hf",
         {"--from specforge": LATER + PRE, "--aux-convention before": USUAL + PRE, "--from vllm": USUAL + POST}, LLAMA),
    Pair("SpecForge's 3.1 and TorchSpec's", "reduced", "torchspec-native",
         (unmarked, keys(norm_output=True)), "specforge-hf",
         {"--from specforge": DEFAULT + PRE, "--from vllm": DEFAULT + POST}, ids=False),
    Pair("SpecForge's norm_output and one that TensorRT-LLM reads too", "reduced", "torchspec-native",
         (unmarked, keys(norm_output=True), section(return_hidden_post_norm=True)), "specforge-hf",
         {"--from specforge": USUAL + PRE, "--from torchspec": USUAL + POST}),
    Pair("SpecForge's without the final norm and one that spells out every flag", "reduced", "torchspec-native",
         (unmarked, keys(norm_output=False)), "specforge-hf",
         {"--from specforge": f"{USUAL}{PRE}, trained without the final norm", "--from torchspec": USUAL + PRE}),
    Pair("SpecForge's with its maps taken out for vLLM", "llama", "torchspec-native",
         (unmarked, keys(norm_output=True)), "generic",
         {"--from generic": DEFAULT + POST, "--from specforge": DEFAULT + PRE}, ids=False),
    Pair("SpecForge's for SGLang and SafeAILab's under another class", "reduced-plain-rope", "safeailab",
         (keys(architectures=["LlamaForCausalLMEagle3"]),), "specforge-sglang",
         {"--from specforge-sglang": LATER + PRE, "--aux-convention before": USUAL + PRE}, LLAMA),
    Pair("SafeAILab's and TorchSpec's under another class", "reduced-plain-rope", "safeailab",
         (nested(1, 3, 4),), "safeailab",
         {"--from safeailab": EARLIER + PRE, "--aux-convention after": USUAL + PRE}),
    Pair("AngelSlim's and one that vLLM has renamed", "reduced", "angelslim",
         (top(2, 4, 5),), "angelslim",
         {"--from angelslim": LATER + PRE, "--aux-convention before": USUAL + PRE}),
    Pair("ModelOpt's and TorchSpec's MLA export without its embedding", "mla", "torchspec-vllm",
         (unmarked, without("embed_tokens.weight")), "modelopt-layers",
         {"--from modelopt": LATER + PRE, "--aux-convention before": USUAL + PRE}),
    Pair("ModelOpt's and TorchSpec's with other layers", "mla", "torchspec-vllm",
         (unmarked, without("embed_tokens.weight"), nested(3, 5, 7)), "modelopt-layers",
         {"--from modelopt": "boundaries 4, 6, 8" + PRE, "--aux-convention before": "boundaries 3, 5, 7" + PRE}),
    Pair("ModelOpt's older files and ones that were corrected for vLLM", "llama", "modelopt-midlayer",
         (nested(2, 4, 5),), "modelopt-midlayer",
         {"--from modelopt-midlayer": LATER + PRE, "--aux-convention before": USUAL + PRE}),
    Pair("ModelOpt's Megatron files and ones that were corrected for vLLM", "llama", "modelopt-megatron",
         (nested(2, 4, 5),), "modelopt-megatron",
         {"--from modelopt-megatron": LATER + PRE, "--aux-convention before": USUAL + PRE}),
    Pair("Quark's and speculators' without their nesting", "3.1", "quark-native",
         (top(2, 4, 5),), "quark-native",
         {"--from quark-native": LATER + POST, "--aux-convention before": USUAL + POST}),
    Pair("Quark's own layers and those of a drafter for vLLM", "3.1", "quark-native",
         (top(2, 5, 7),), "quark-native",
         {"--from quark-native": "boundaries 3, 6, 8" + POST, "--aux-convention before": "boundaries 2, 5, 7" + POST}),
    Pair("TorchSpec's export and the one of Quark's recipe", "llama", "torchspec-vllm",
         (top(2, 4, 5),), "torchspec-vllm",
         {"--from torchspec-vllm": LATER + PRE, "--aux-convention before": USUAL + PRE}),
    Pair("speculators' and one with a trainer's ids", "llama", "speculators",
         (top(1, 3, 4),), "speculators",
         {"--from speculators": EARLIER + PRE, "--aux-convention after": USUAL + PRE}),
    Pair("Automodel's and one with an engine's ids", "llama", "automodel",
         (nested(2, 4, 5),), "automodel",
         {"--from automodel": LATER + PRE, "--aux-convention before": USUAL + PRE}, LLAMA),
)  # fmt: skip


def by_name(pair: Pair) -> str:
    return pair.name


@pytest.mark.parametrize("pair", PAIRS, ids=by_name)
def test_every_reading_that_fits_is_told(pair: Pair, tmp_path: Path) -> None:
    drafter = read(pair.write(tmp_path / "x"), target=pair.target)
    assert drafter.detection.layout == pair.detected
    assert {" ".join(reading.option): reading.means for reading in drafter.readings} == pair.means
    assert next(" ".join(reading.option) for reading in drafter.readings) == next(iter(pair.means))
    (problem,) = [problem for problem in drafter.problems if problem.code == "reading-doubtful"]
    assert problem.detail == "; ".join(f"{option}: {means}" for option, means in pair.means.items())


@pytest.mark.parametrize("pair", PAIRS, ids=by_name)
def test_each_option_reads_the_file_as_it_was_told(pair: Pair, tmp_path: Path) -> None:
    path = pair.write(tmp_path / "x")
    doubt = read(path, target=pair.target)
    for reading in doubt.readings:
        option, value = reading.option
        found = read(path, value, target=pair.target) if option == "--from" else _turned(path, value, pair.target)
        assert (found.facts.boundaries, found.facts.feedback) == (reading.boundaries, reading.feedback)
        off = any(problem.code == "final-norm-off" for problem in found.problems)
        assert off is not reading.final_norm
        if option == "--from":
            assert found.readings == ()
        else:  # what is left, if anything, is no longer about layers
            assert {each.boundaries for each in found.readings} <= {reading.boundaries}


def _turned(path: Path, value: str, target: Target | None) -> Any:
    return read(path, aux="before" if value == "before" else "after", target=target)


def test_a_convention_alone_leaves_the_other_doubt(tmp_path: Path) -> None:
    """`--aux-convention` settles the layers of the first pair, not what norm_output means."""
    path = PAIRS[0].write(tmp_path / "x")
    found = read(path, aux="before", target=LLAMA)
    assert [str(reading) for reading in found.readings] == [
        f"--from specforge: {USUAL}{PRE}", f"--from vllm: {USUAL}{POST}"
    ]  # fmt: skip


# ── what settles it ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layout", sorted(tiny.FIRST))
@pytest.mark.parametrize("target", [None, LLAMA, DEEPSEEK], ids=["no-target", "llama", "deepseek"])
def test_a_producers_own_file_has_one_reading(layout: str, target: Target | None, tmp_path: Path) -> None:
    for name, variant in tiny.PAIRS:
        if name == layout:
            drafter = read(spell(variant, layout).write(tmp_path / variant), target=target)
            unknown = any(problem.code == "aux-unknown" for problem in drafter.problems)
            assert bool(drafter.readings) is (tiny.doubtful(layout, variant) and not unknown), variant


def test_a_mark_settles_odd_layers(tmp_path: Path) -> None:
    spelled = spell("last-boundary", "torchspec-native")
    assert read(spelled.write(tmp_path / "marked")).readings == ()
    unmarked(spelled)
    spelled.config["eagle_config"]["use_last_layernorm"] = True
    assert len(read(spelled.remove("embed_tokens.weight").write(tmp_path / "lost")).readings) == 2


def test_what_draftconv_wrote_is_not_doubted(tmp_path: Path) -> None:
    spelled = spell("llama", "torchspec-native")
    spelled.config |= {MARK: "torchspec-native"}
    nested(2, 4, 5)(spelled)
    drafter = read(spelled.write(tmp_path / "x"))
    assert (drafter.facts.boundaries, drafter.readings) == ((3, 5, 6), ())


def test_the_usual_triple_settles_layers_of_an_unknown_target(tmp_path: Path) -> None:
    """[1, 3, 4] is the triple of 8 layers after the layer, and of no target before it; [1, 4, 5] is of none."""
    spelled = spell("llama", "modelopt-layers")
    nested(1, 3, 4)(spelled)
    assert read(spelled.write(tmp_path / "usual")).readings == ()
    nested(1, 4, 5)(spelled)
    assert [reading.boundaries for reading in read(spelled.write(tmp_path / "odd")).readings] == [(2, 5, 6), (1, 4, 5)]


def test_the_repeated_triple_of_a_few_layers_is_nobodys(tmp_path: Path) -> None:
    """Of 5 layers it is (2, 2, 2), and 2 is among many boundaries."""
    two = tiny.Variant("two", replace(tiny.BASE, aux=2, boundaries=(2, 5)))
    drafter = read(spell(two, "modelopt-layers").write(tmp_path / "x"))
    assert [reading.boundaries for reading in drafter.readings] == [(2, 5), (1, 4)]


def test_a_target_decides_whose_triple_it_is(tmp_path: Path) -> None:
    """[1, 3, 4] would be usual of 8 layers; of 9 it is odd in either numbering."""
    spelled = spell("llama", "modelopt-layers").write(tmp_path / "x")
    assert read(spelled, target=LLAMA).readings == ()
    assert len(read(spelled, target=replace(LLAMA, layers=9)).readings) == 2


def test_more_states_than_three_are_usual_when_the_triple_is_among_them(tmp_path: Path) -> None:
    drafter = read(spell("four-aux", "modelopt-layers").write(tmp_path / "x"))
    assert (drafter.facts.boundaries, drafter.readings) == ((2, 4, 5, 7), ())


@pytest.mark.parametrize(
    ("said", "boundaries"),
    [("vllm", (2, 4, 5)), ("portable", (2, 4, 5)), ("torchspec", (6, 7, 8)), ("sglang", (6, 7, 8))],
)
def test_a_person_chooses_between_contradictory_ids(said: str, boundaries: tuple[int, ...], tmp_path: Path) -> None:
    """Each layout's own place decides; without a word neither is believed."""
    spelled = spell("llama", "torchspec-native")
    nested(5, 6, 7)(spelled)
    spelled.config[IDS] = [2, 4, 5]
    path = spelled.write(tmp_path / "x")
    assert [problem.code for problem in read(path).problems] == ["aux-contradiction"]
    found = read(path, said, target=LLAMA)
    assert (found.facts.boundaries, found.problems) == (boundaries, ())
