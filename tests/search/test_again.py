"""The commands that make a certified drafter again, and what verify is told."""

from __future__ import annotations

from draftconv.conversion.options import ConvertOptions, QuantizeOptions
from draftconv.conversion.pruning.options import PruneOptions
from draftconv.search.again import Again

PRUNING = PruneOptions(vocab=64, counts=("a.jsonl", "code=3:b.jsonl"), trace="trace", layout="torchspec")
QUANTIZING = QuantizeOptions(
    recipe="recipe.yaml", engines=("vllm:b200",), calibrate="trace", calibrate_on="half", card=False
)


def test_a_quantization_is_one_command() -> None:
    made = Again("drafter", "", None, QUANTIZING, "llama")
    assert made.commands == (
        (
            "draftconv", "quantize", "drafter", "again", "--recipe", "recipe.yaml", "--for", "vllm:b200",
            "--calibrate", "trace", "--calibrate-on", "half", "--target", "llama", "--no-card",
        ),
    )  # fmt: skip
    assert made.proof.calibrate == "trace"
    assert made.proof.target is None


def test_a_pruning_comes_first_and_alone_knows_how_the_source_is_read() -> None:
    made = Again("drafter", "drafter-64-rows", PRUNING, ConvertOptions(to="vllm", target="target"), "llama")
    assert made.commands == (
        (
            "draftconv", "prune", "drafter", "drafter-64-rows", "--vocab", "64", "--counts", "a.jsonl",
            "--counts", "code=3:b.jsonl", "--trace", "trace", "--from", "torchspec",
        ),
        ("draftconv", "convert", "drafter-64-rows", "again", "--to", "vllm", "--target", "target"),
    )  # fmt: skip
    assert made.proof.calibrate is None
    assert made.proof.layout == ("torchspec",)
