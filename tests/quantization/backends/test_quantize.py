"""`draftconv quantize --backend`: the packages as producers, as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from draftconv.api.verify import verify
from draftconv.cli import cli
from tests.quantization.backends.real import needs
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded, recorded

__all__ = ["recorded"]

DRAFTERS = ("llama-eagle3-reduced", "mla-eagle3.1")

MINE = """\
about: ModelOpt's rule per group
weights: {dtype: int4, granularity: group, group: 128, scale_rule: max/7, scale_dtype: F32}
exclude: [embed, lm_head, fc, norms, kv_b, a_projections]
"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def target(drafter: str) -> Path:
    return DATA / "targets" / drafter.partition("-")[0]


def quantize(drafter: str, out: Path, *words: object) -> str:
    given = ["quantize", DATA / "drafters" / drafter, out, *words, "--target", target(drafter), "--format", "json"]
    done = CliRunner().invoke(cli, [str(word) for word in given], prog_name="draftconv")
    assert done.exit_code == 0, done.output
    return done.stdout


def tensors(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


def same_files(one: Path, other: Path) -> bool:
    """Every file but those that say who rounded."""
    names = {path.name for path in one.iterdir()} - {"draftconv.json", "README.md"}
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


class TestQuark:
    pytestmark = needs("quark")

    @pytest.mark.parametrize("drafter", DRAFTERS)
    def test_the_published_scheme(self, drafter: str, tmp_path: Path) -> None:
        quantize(drafter, tmp_path / "native", "--recipe", "quark-w4a8")
        told = json.loads(quantize(drafter, tmp_path / "quark", "--recipe", "quark-w4a8", "--backend", "quark"))
        assert same_files(tmp_path / "native", tmp_path / "quark")
        assert told["backend"]["package"].startswith("amd-quark 0.13")
        record = json.loads((tmp_path / "quark" / "draftconv.json").read_text())
        whys = [change["why"] for change in record["changes"] if "quantized by" in change["why"]]
        assert whys and all(f"rounded by {told['backend']['package']}" in why for why in whys)
        assert verify(tmp_path / "quark", DATA / "drafters" / drafter, target=target(drafter)).passed

    def test_another_rule_would_be_noticed(self, tmp_path: Path) -> None:
        quantize(DRAFTERS[0], tmp_path / "quark", "--recipe", "quark-w4a8", "--backend", "quark")
        quantize(DRAFTERS[0], tmp_path / "mse", "--recipe", "w4a16", "--no-card")
        assert tensors(tmp_path / "quark") != tensors(tmp_path / "mse")


class TestModelOpt:
    pytestmark = needs("modelopt")

    @pytest.mark.parametrize("drafter", DRAFTERS)
    def test_fp8(self, drafter: str, recorded: Recorded, tmp_path: Path) -> None:
        """Per tensor with calibrated activations, and per channel."""
        trace = recorded(drafter.partition("-")[0], count=2, length=8)
        for recipe, *words in (("fp8-tensor", "--calibrate", trace), ("fp8",)):
            given = ("--recipe", recipe, *words)
            quantize(drafter, tmp_path / f"{recipe}-native", *given)
            quantize(drafter, tmp_path / f"{recipe}-modelopt", *given, "--backend", "modelopt")
            assert same_files(tmp_path / f"{recipe}-native", tmp_path / f"{recipe}-modelopt")

    @pytest.mark.parametrize("drafter", DRAFTERS)
    def test_a_recipe_of_one_s_own(self, drafter: str, tmp_path: Path) -> None:
        recipe = tmp_path / "mine.yaml"
        recipe.write_text(MINE)
        quantize(drafter, tmp_path / "native", "--recipe", recipe, "--for", "trtllm:h200")
        told = json.loads(
            quantize(drafter, tmp_path / "out", "--recipe", recipe, "--for", "trtllm:h200", "--backend", "modelopt")
        )
        assert same_files(tmp_path / "native", tmp_path / "out")
        assert told["backend"]["package"].startswith("nvidia-modelopt 0.47")
        assert told["backend"]["notes"] == []
