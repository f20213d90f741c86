"""Which tokens stay in every head: by the tokenizer's own files, the configs and the chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jinja2 import TemplateError

from draftconv.errors import BadCheckpoint
from draftconv.traces.special_tokens import SpecialTokens, added_by, added_tokens, template_tokens


def write(directory: Path, **documents: object) -> Path:
    for name, document in documents.items():
        text = document if isinstance(document, str) else json.dumps(document)
        (directory / f"{name}.json").write_text(text)
    return directory


def test_every_file_is_asked(tmp_path: Path) -> None:
    write(
        tmp_path,
        tokenizer={"added_tokens": [{"id": 3, "special": True}, {"id": 4, "special": False}, {"id": "x"}, 7]},
        tokenizer_config={"added_tokens_decoder": {"10": {"content": "<a>"}, "x": {}, "9" * 5000: {}}},
        config={"eos_token_id": [20, 21], "bos_token_id": 22, "text_config": {"pad_token_id": 23}},
        generation_config={"eos_token_id": 24},
    )
    assert added_tokens(tmp_path) == {3, 4, 10, 20, 21, 22, 23, 24}
    assert added_by(tmp_path / "tokenizer.json") == {3, 4}


@pytest.mark.parametrize("document", [{}, {"added_tokens": {}}, {"added_tokens": None}])
def test_a_tokenizer_may_add_none(document: object, tmp_path: Path) -> None:
    assert added_tokens(write(tmp_path, tokenizer=document, tokenizer_config={}, config={})) == frozenset()


@pytest.mark.parametrize(
    ("name", "text"), [("tokenizer", "[]"), ("tokenizer_config", "{"), ("config", '{"a": 1, "a": 2}')]
)
def test_what_is_no_object_is_told(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=f"{name}.json"):
        added_tokens(write(tmp_path, **{name: text}))


def test_a_tokenizer_that_leads_out_of_its_directory_is_not_read(tmp_path: Path) -> None:
    (inside := tmp_path / "target").mkdir()
    (inside / "tokenizer.json").symlink_to(write(tmp_path, secret={"added_tokens": [{"id": 1}]}) / "secret.json")
    with pytest.raises(BadCheckpoint, match="leads out of the directory"):
        added_tokens(inside)


class Template:
    """A tokenizer whose template writes 1 before a role and 2 behind what is said, as far as it takes conversations."""

    def __init__(self, *refused: str, template: str | None = "template") -> None:
        self.refused, self.chat_template = refused, template

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise NotImplementedError

    decode = encode

    def apply_chat_template(self, conversation: list[dict[str, str]], **how: bool) -> list[int]:
        assert how == {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        if {message["role"] for message in conversation} & {*self.refused}:
            raise TemplateError("no such role")
        roles = {"system": 3, "user": 4, "assistant": 5}
        said = [[1, roles[message["role"]], 100 + ord(message["content"]), 2] for message in conversation]
        return [*(token for part in said for token in part), 1, 5]


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (Template(), {1, 2, 3, 4, 5}),
        (Template("system"), {1, 2, 4, 5}),
        (Template("system", "assistant"), {1, 2, 4, 5}),
        (Template("system", "assistant", "user"), set()),
        (Template(template=None), set()),
    ],
)
def test_a_template_writes_what_two_conversations_have_in_common(tokenizer: Template, expected: set[int]) -> None:
    assert template_tokens(tokenizer) == expected  # type: ignore[arg-type]


def test_both_kinds_stay() -> None:
    assert SpecialTokens(frozenset({1}), frozenset({1, 2})).ids == {1, 2}
