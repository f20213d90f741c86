"""From text to token ids, with the trained fixtures' tokenizer."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from draftconv.errors import BadCheckpoint, UsageError
from draftconv.traces.chat_template import ChatTemplate, end_tokens, load_tokenizer, open_chat_template, prompts_hash
from draftconv.traces.prompts import Prompt
from tests.traces.conftest import DATA

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TWO = Prompt("81", "prose", ("Say a.", "Say b."))
IDS = Prompt("9", "", tokens=(3, 1, 4))


@pytest.fixture
def talking(tmp_path: Path) -> Path:
    """The llama fixture with a chat template."""
    target = Path(shutil.copytree(DATA / "targets/llama", tmp_path / "target"))
    config = json.loads((target / "tokenizer_config.json").read_text())
    (target / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return target


def opened(directory: Path, *, chat: bool | None = None) -> ChatTemplate:
    return open_chat_template(directory, [TWO], (0,), chat=chat, trust_remote_code=False)


def test_the_chat_template_is_applied_turn_by_turn(talking: Path) -> None:
    dialogue = opened(talking)
    assert dialogue.chat
    tokenizer = dialogue.tokenizer
    assert tokenizer is not None

    def text(ids: list[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False)

    first = dialogue.render(TWO, [])
    assert text(first) == "[user]Say a.<|endoftext|>[assistant]"
    answer = [*tokenizer.encode(" I say it", add_special_tokens=False), 0]
    second = dialogue.render(TWO, [(first, answer)])
    assert text(second) == (
        "[user]Say a.<|endoftext|>[assistant] I say it<|endoftext|>[user]Say b.<|endoftext|>[assistant]"
    )
    # an answer that was cut at the length has no end token to lose
    assert dialogue.render(TWO, [(first, answer[:-1])]) == second


def test_raw_text_goes_on_where_the_answer_ended(talking: Path) -> None:
    dialogue = opened(talking, chat=False)
    tokenizer = dialogue.tokenizer
    assert tokenizer is not None
    first = dialogue.render(TWO, [])
    assert first == tokenizer.encode("Say a.", add_special_tokens=True)
    second = dialogue.render(TWO, [(first, [5, 6, 0])])
    assert second == [*first, 5, 6, *tokenizer.encode("\n\nSay b.", add_special_tokens=False)]


def test_token_ids_need_no_tokenizer(tmp_path: Path) -> None:
    dialogue = open_chat_template(tmp_path, [IDS], (), chat=None, trust_remote_code=False)
    assert dialogue.render(IDS, []) == [3, 1, 4]
    assert not dialogue.chat
    with pytest.raises(UsageError, match="prompt 81 is text, and there is no tokenizer"):
        dialogue.render(TWO, [])


def test_a_template_is_used_where_there_is_one(talking: Path) -> None:
    assert not opened(DATA / "targets/llama").chat
    assert opened(talking).chat
    with pytest.raises(UsageError, match="--chat: the tokenizer of llama has no chat template"):
        opened(DATA / "targets/llama", chat=True)


def test_a_turn_without_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="prompt e has no tokens"):
        opened(DATA / "targets/llama").render(Prompt("e", "", ("",)), [])


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    shutil.copy(DATA / "targets/llama/config.json", tmp_path / "bare")
    with pytest.raises(BadCheckpoint, match="the tokenizer of bare cannot be read"):
        load_tokenizer(tmp_path / "bare", trust_remote_code=False)


def test_every_end_token_counts() -> None:
    assert end_tokens({}, {}) == ()
    assert end_tokens({"eos_token_id": 2}, {"eos_token_id": [7, 2]}) == (2, 7)
    assert end_tokens({"text_config": {"eos_token_id": 5}, "eos_token_id": None}, {}) == (5,)
    for odd in ("2", [1, None], True, 1.5):
        with pytest.raises(BadCheckpoint, match="not token ids"):
            end_tokens({}, {"eos_token_id": odd})


def test_the_hash_changes_with_whatever_is_asked() -> None:
    plain = prompts_hash([TWO, IDS], [[1, 2], [3, 1, 4]])
    lines = b'["81","prose",["Say a.","Say b."],[1,2]]\n["9","",[],[3,1,4]]\n'
    assert plain == hashlib.sha256(lines).hexdigest()  # traces outlive a release
    others = {
        prompts_hash([IDS, TWO], [[3, 1, 4], [1, 2]]),
        prompts_hash([TWO, IDS], [[1, 9], [3, 1, 4]]),
        prompts_hash([TWO], [[1, 2]]),
        prompts_hash([Prompt("81", "prose", ("Say a.", "Say c.")), IDS], [[1, 2], [3, 1, 4]]),
    }
    assert len({plain, *others}) == 5
