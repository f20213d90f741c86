"""Targets: a name of the shipped table, a directory, or only a number of layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftconv.drafter.targets import Target, find_target, known_targets
from draftconv.errors import BadCheckpoint, UsageError
from tests import tiny


def test_nothing_given() -> None:
    assert find_target(None, None) is None


def test_a_path_is_as_good_as_its_text() -> None:
    directory = Path(__file__).parents[1] / "data" / "targets" / "llama"
    assert find_target(directory, None) == find_target(str(directory), None)


def test_only_layers() -> None:
    found = find_target(None, 36)
    assert found == Target("a target with 36 layers", 36)
    with pytest.raises(UsageError, match="config only"):
        found.open()
    for layers in (0, -1):
        with pytest.raises(UsageError, match=f"--target-layers {layers}"):
            find_target(None, layers)


@pytest.mark.parametrize("name", ["kimi-k2.5", "Kimi-K2.5"])
def test_a_known_name(name: str) -> None:
    """Also as the model is spelled elsewhere."""
    found = find_target(name, 61)
    assert found is not None
    assert (found.name, found.layers, found.family) == ("kimi-k2.5", 61, "deepseek")
    assert (found.hidden, found.vocab) == (7168, 163840)
    assert found.repo == "moonshotai/Kimi-K2.5"


def test_the_shipped_table_is_complete() -> None:
    for name, target in known_targets().items():
        assert target.name == name == name.lower()
        assert target.layers >= 6
        assert target.repo.count("/") == 1
        assert None not in (target.hidden, target.vocab, target.max_positions, target.family)


def test_a_directory(tmp_path: Path) -> None:
    path = tiny.write_target(tmp_path / "t")
    found = find_target(str(path), None)
    assert found is not None
    assert (found.layers, found.family, found.hidden, found.vocab, found.max_positions, found.path) == (
        8, "llama", 64, tiny.VOCAB, 32768, path)  # fmt: skip
    assert set(found.open().tensors) == {"model.embed_tokens.weight", "lm_head.weight"}


def test_a_multimodal_directory_keeps_its_sizes_inside(tmp_path: Path) -> None:
    inner = tiny.target_config(layers=61, model_type="kimi_k2")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": inner, "auto_map": {}}))
    found = find_target(str(tmp_path), None)
    assert found is not None
    assert (found.layers, found.family, found.hidden, found.remote_code) == (61, "deepseek", 64, True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "strange", "text_config": inner}))
    found = find_target(str(tmp_path), None)
    assert found is not None
    assert found.family == "deepseek"


def test_two_options_that_disagree(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 8 layers, --target-layers says 9"):
        find_target(str(tiny.write_target(tmp_path / "t")), 9)


def test_unknown_names_suggest_the_closest() -> None:
    with pytest.raises(UsageError) as caught:
        find_target("kimi-k2,5", None)
    assert "did you mean kimi-k2.5?" in caught.value.cure


@pytest.mark.parametrize("text", ["", "[]", "{", '{"num_hidden_layers": "8"}', '{"num_hidden_layers": 0}', "{}"])
def test_unreadable_configs(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadCheckpoint):
        find_target(str(tmp_path), None)


def test_a_directory_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"config\.json"):
        find_target(str(tmp_path), None)
