"""Every repair: refused without, healthy with it, declared and verified; impossible ones are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftconv.api.convert import convert
from draftconv.api.inspect import inspect
from draftconv.api.verify import verify
from draftconv.errors import Refused, UsageError
from tests import tiny
from tests.layouts.spelled import document, on_disk, stored
from tests.tiny import Tensor


def repaired(spelled: tiny.Spelled, tmp_path: Path, *codes: str, to: str = "vllm") -> dict[str, Tensor]:
    """Refused without the repair, healthy with it, declared, and verified."""
    path = spelled.write(tmp_path / "source")
    bare = [code.partition("=")[0] for code in codes]
    problems = {problem.code: problem.severity for problem in inspect(path).problems}
    assert set(bare) <= problems.keys()
    if any(problems[code] == "error" for code in bare):
        with pytest.raises(Refused):
            convert(path, tmp_path / "out", to=to)
        assert not (tmp_path / "out").exists()
    convert(path, tmp_path / "out", to=to, repairs=codes)
    after = {problem.code for problem in inspect(tmp_path / "out", deep=True).problems}
    assert not after & set(bare)
    assert not [p for p in inspect(tmp_path / "out", deep=True).problems if p.severity == "error"]
    found = verify(tmp_path / "out", path, repairs=[code for code in codes if "=" in code])
    assert found.passed, found
    return on_disk(tmp_path / "out")


@pytest.mark.parametrize("to", ["vllm", "torchspec"])
def test_repair_absolute_d2t(to: str, tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", "torchspec-native")
    healthy = dict(spelled.tensors)
    spelled.put("d2t", tiny.integers(tiny.ASCENDING))
    found = repaired(spelled, tmp_path, "d2t-absolute", to=to)
    assert found["d2t"] == healthy["d2t"]
    assert found["lm_head.weight"] == healthy["lm_head.weight"]
    assert found.get("t2d", healthy["t2d"]) == healthy["t2d"]


def test_repair_absolute_d2t_in_frequency_order(tmp_path: Path) -> None:
    spelled = tiny.spell("frequency", "modelopt-layers")
    healthy = dict(spelled.tensors)
    spelled.put("d2t", tiny.integers(tiny.FREQUENCY))
    assert repaired(spelled, tmp_path, "d2t-absolute") == {
        name.replace("layers.0.", "midlayer."): tensor for name, tensor in healthy.items()
    }


def test_repair_t2d(tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", "torchspec-native")
    healthy = spelled.tensors["t2d"]
    mask = bytearray(healthy.data)
    mask[3] = 1
    spelled.put("t2d", Tensor("BOOL", healthy.shape, bytes(mask)))
    assert repaired(spelled, tmp_path, "d2t-t2d-mismatch", to="torchspec")["t2d"] == healthy


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_repair_float_d2t(dtype: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    spelled = tiny.spell("reduced", "torchspec-native")
    healthy = spelled.tensors["d2t"]
    floats = torch.tensor(healthy.numpy()).to(tiny.TORCH[dtype])
    spelled.put("d2t", Tensor(dtype, healthy.shape, floats.view(torch.uint8).numpy().tobytes()))
    assert repaired(spelled, tmp_path, "d2t-dtype")["d2t"] == healthy


def test_rounded_offsets_are_not_repaired(tmp_path: Path) -> None:
    """Offsets above 256 in BF16, no t2d to confirm them: whole numbers, but nobody knows whether the right ones."""
    torch = pytest.importorskip("torch")
    ids = (0, 1, 600, 601, 602)
    base = tiny.VARIANTS["llama"]
    facts = replace(base.facts, vocab=700, draft_vocab=len(ids), vocab_order="ascending")
    spelled = tiny.spell(replace(base, facts=facts, ids=ids), "modelopt-layers")
    floats = torch.tensor(spelled.tensors["d2t"].numpy()).to(torch.bfloat16)
    spelled.put("d2t", Tensor("BF16", (len(ids),), floats.view(torch.uint8).numpy().tobytes()))
    with pytest.raises(Refused):
        convert(spelled.write(tmp_path / "source"), tmp_path / "out", to="vllm", repairs=("d2t-dtype",))  # fmt: skip


def pruned_by_offset() -> tuple[tiny.Spelled, tiny.Spelled]:
    """TorchSpec's bug: rows of the full head taken at d2t instead of arange + d2t."""
    full, pruned = tiny.spell("llama", "torchspec-native"), tiny.spell("reduced", "torchspec-native")
    offsets = [int(offset) for offset in pruned.tensors["d2t"].numpy()]
    head = full.tensors["lm_head.weight"]
    size = len(head.data) // head.shape[0]
    data = b"".join(head.data[o * size : (o + 1) * size] for o in offsets)
    pruned.put("lm_head.weight", Tensor(head.dtype, (len(offsets), head.shape[1]), data))
    return full, pruned


def test_repair_a_head_pruned_by_offset(tmp_path: Path) -> None:
    full, pruned = pruned_by_offset()
    whole = full.write(tmp_path / "unpruned")
    found = repaired(pruned, tmp_path, f"head-pruned-by-offset={whole}")
    head = full.tensors["lm_head.weight"]
    size = len(head.data) // head.shape[0]
    assert found["lm_head.weight"].data == b"".join(head.data[i * size : (i + 1) * size] for i in tiny.ASCENDING)
    assert str(tmp_path) not in (tmp_path / "out" / "draftconv.json").read_text()


def test_a_head_is_not_rebuilt_from_another_drafter(tmp_path: Path) -> None:
    _, pruned = pruned_by_offset()
    path = pruned.write(tmp_path / "source")
    other = tiny.spell(replace(tiny.VARIANTS["llama"], seed=9), "torchspec-native").write(tmp_path / "other")
    for spec, error in (("", UsageError), (f"={other}", Refused), (f"={path}", Refused)):
        with pytest.raises(error):
            convert(path, tmp_path / "out", to="vllm", repairs=(f"head-pruned-by-offset{spec}",))  # fmt: skip


@pytest.mark.parametrize(("variant", "flag"), [("fc-norm", "fc_norm"), ("norm-before-fc", "norm_before_fc")])
def test_repair_a_missing_norm_flag(variant: str, flag: str, tmp_path: Path) -> None:
    spelled = tiny.spell(variant, "speculators")
    spelled.config[flag] = False
    repaired(spelled, tmp_path, "norm-without-flag")
    assert document(tmp_path / "out", "config.json")[flag] is True


def test_repair_unexpected_tensors(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    wanted = stored(spelled, "vllm")
    spelled.tensors["midlayer.surprise.weight"] = tiny.floats("surprise", (4,), "BF16")
    assert repaired(spelled, tmp_path, "tensor-unexpected") == wanted
    dropped = {row["what"] for row in document(tmp_path / "out", "draftconv.json")["changes"]}
    assert "midlayer.surprise.weight" in dropped


def test_repair_an_injected_rope(tmp_path: Path) -> None:
    spelled = tiny.spell("plain-rope", "modelopt-midlayer")
    spelled.config["rope_scaling"] = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}
    repaired(spelled, tmp_path, "rope-injected")
    assert "rope_scaling" not in document(tmp_path / "out", "config.json")


def test_repair_the_base_that_was_trained(tmp_path: Path) -> None:
    """AngelSlim's training class turns by 10000 whatever its config says."""
    spelled = tiny.spell("llama", "angelslim")
    assert spelled.config["rope_theta"] == 50000.0
    repaired(spelled, tmp_path, "rope-base-untrained")
    config = document(tmp_path / "out", "config.json")
    assert (config["rope_theta"], config["rope_parameters"]["rope_theta"]) == (10000.0, 10000.0)


def test_a_repaired_problem_is_not_told_again(tmp_path: Path) -> None:
    path = tiny.spell("llama", "angelslim").write(tmp_path / "source")
    plain = convert(path, tmp_path / "plain", to="vllm")
    mended = convert(path, tmp_path / "mended", to="vllm", repairs=("rope-base-untrained",))
    told = [{problem.code for problem in conversion.warnings} for conversion in (plain, mended)]
    assert ["rope-base-untrained" in codes for codes in told] == [True, False]


@pytest.mark.parametrize("to", ["vllm", "specforge"])
def test_repair_a_double_norm(to: str, tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "modelopt-layers")
    found = repaired(spelled, tmp_path, "double-norm", to=to)
    prefix = "midlayer."
    outer = spelled.tensors["layers.0.input_layernorm.weight"].numpy().astype(np.float64)
    inner = spelled.tensors["layers.0.hidden_norm.weight"].numpy().astype(np.float64)
    folded = outer * inner / np.sqrt((outer**2).mean())
    got = found[f"{prefix}hidden_norm.weight"].numpy()
    assert np.abs(got - folded).max() <= np.abs(folded).max() * 2**-8
    assert found[f"{prefix}input_layernorm.weight"] == spelled.tensors["layers.0.input_layernorm.weight"]


def test_two_repairs_at_once(tmp_path: Path) -> None:
    spelled = tiny.spell("frequency", "modelopt-layers")
    spelled.put("d2t", tiny.integers(tiny.FREQUENCY))
    repaired(spelled, tmp_path, "d2t-absolute", "double-norm", to="specforge")
