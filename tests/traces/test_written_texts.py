"""What a target writes, out of every log and data set in which it may be kept."""

from __future__ import annotations

import pytest

from draftconv.errors import BadPrompts
from draftconv.traces.written_texts import WrittenText, written_text

ASKED = {"role": "user", "content": "What?"}
SAID = {"role": "assistant", "content": "This."}
ANSWER = {"choices": [{"index": 0, "message": SAID}]}


def read(entry: object) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    found = written_text(entry, "file:1")
    return None if found is None else (found.texts, found.tokens)


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("a text", (("a text",), ())),
        ({"text": "a text", "meta": {"url": "x"}}, (("a text",), ())),
        ([1, 2, 3], ((), (1, 2, 3))),
        ({"token_ids": [5]}, ((), (5,))),
        ({"messages": [ASKED, SAID]}, (("This.",), ())),
        ({"messages": [{"role": "system", "content": "Hm."}, ASKED, SAID, ASKED, SAID]}, (("This.", "This."), ())),
        ({"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}, (("A",), ())),
        ({"messages": [ASKED], **ANSWER}, (("This.",), ())),
        ({"messages": [ASKED, SAID, ASKED], **ANSWER}, (("This.",), ())),  # what was said before is another line's
        ({"request": {"messages": [ASKED]}, "response": ANSWER}, (("This.",), ())),
        ({"custom_id": "1", "response": {"status_code": 200, "body": ANSWER}}, (("This.",), ())),
        ({"body": {"messages": [ASKED, SAID]}}, (("This.",), ())),
        ({"choices": [{"text": "completed"}], "prompt": "a"}, (("completed",), ())),
        ({"choices": [{"text": "completed", "token_ids": [7, 8]}]}, ((), (7, 8))),
        ({"messages": [ASKED, {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"},
                                                               {"type": "text", "text": "b"}]}]}, (("ab",), ())),
        ({"choices": [{"message": {"role": "assistant", "reasoning_content": "hm", "content": "so"}}]},
         (("hm", "so"), ())),
        ({"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [
            {"type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}]}}]},
         (("look", '{"at": 1}'), ())),
        ({"messages": [ASKED]}, None),
        ({"messages": [{"role": {}, "content": "a"}, {"role": ["user"], "content": "b"}, SAID]}, (("This.",), ())),
        ({"messages": [{"role": "assistant", "content": 7}, {"role": "assistant"}]}, None),
        ({"choices": [{"message": 7}, {"message": {"tool_calls": [7, {"function": 7}], "content": "a"}}]},
         (("a",), ())),
        ({"messages": [ASKED, {"role": "assistant", "content": ""}]}, None),
        ({"choices": []}, None),
    ],
)  # fmt: skip
def test_only_what_the_target_writes_is_taken(entry: object, found: object) -> None:
    assert read(entry) == found


def test_lines_of_one_conversation_have_one_key() -> None:
    """Each request of a conversation repeats what was said before: half of them would judge the other half."""

    def key(entry: object) -> bytes:
        found = written_text(entry, "file:1")
        assert isinstance(found, WrittenText)
        return found.key

    first = {"messages": [{"role": "system", "content": "Be brief."}, ASKED], **ANSWER}
    second = {"messages": [{"role": "system", "content": "Be brief."}, ASKED, SAID, {"role": "user", "content": "So?"}],
              "choices": [{"message": {"role": "assistant", "content": "So."}}]}  # fmt: skip
    other = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}], **ANSWER}
    assert key(first) == key(second) != key(other)
    assert key("a") == key({"text": "a"}) != key("b")
    assert key([1, 2]) != key([2, 1])


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (None, "is null, not a text"),
        (7, "is a JSON int, not a text"),
        ({}, "has no keys"),
        ({"prompt": "a"}, "has only prompt"),
        ({"text": "a", "token_ids": [1]}, "has token_ids and text"),
        ({"text": ["a"]}, "text is a JSON list, not text"),
        ({"token_ids": "1 2"}, "token_ids is not a list of token ids"),
        ([1, True], "is not a list of token ids"),
        ([1, -1], "is not a list of token ids"),
        ([1, 2.0], "is not a list of token ids"),
        ([1 << 40], "is not a list of token ids"),
        ({"messages": "a"}, "holds a JSON str in place of a list of objects"),
        ({"messages": ["a"]}, "holds a JSON list in place of a list of objects"),
        ({"choices": {"message": SAID}}, "in place of a list of objects"),
        ({"text": "\ud800"}, "half of a surrogate pair"),
        ({"messages": [ASKED, {"role": "assistant", "content": "\ud800"}]}, "half of a surrogate pair"),
    ],
)
def test_what_is_none_of_them_is_named(entry: object, fault: str) -> None:
    with pytest.raises(BadPrompts) as caught:
        written_text(entry, "file:1")
    assert caught.value.what.startswith("file:1")
    assert fault in caught.value.what
