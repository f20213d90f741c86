"""The config of an output: a recorded one comes back as it was, but for what is never written."""

from __future__ import annotations

from pathlib import Path

from draftconv.api.convert import convert
from tests import tiny
from tests.layouts.spelled import document


def test_code_does_not_come_back_with_a_recorded_config(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native")
    clean = dict(spelled.config)
    code = {"auto_map": {"AutoModel": "modeling_eagle.Eagle"}}
    spelled.config |= {**code, "of_the_trainer": [code, {"kept": 1}]}
    convert(spelled.write(tmp_path / "source"), tmp_path / "there", to="vllm")
    convert(tmp_path / "there", tmp_path / "back", to="torchspec")
    found = document(tmp_path / "back", "config.json")
    assert found == {**clean, "of_the_trainer": [{}, {"kept": 1}]}
