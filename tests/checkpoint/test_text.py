import pytest

from draftconv.checkpoint.text import code, is_plain_name, parse_object, plain, safe, show, show_some
from draftconv.errors import BadCheckpoint


def test_show_cuts_long_names() -> None:
    assert show("a" * 120) == "a" * 120
    assert show("a" * 121) == "a" * 120 + "… (121 characters)"


def test_what_could_drive_a_terminal_is_escaped() -> None:
    assert safe("drä fter\x1b[2J\n\u202e") == "drä fter\\x1b[2J\\n\\u202e"


def test_text_in_markdown_keeps_its_backticks_and_a_code_span_loses_them() -> None:
    assert plain("read in `reorder`\n|*") == "read in \\`reorder\\`?\\|\\*"
    assert code("read in `reorder`\n|*") == "read in ?reorder??|*"


def test_show_some_counts_the_rest() -> None:
    assert show_some(["a", "b"]) == "a, b"
    assert show_some("abcde") == "a, b, c and 2 more"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\xff{}", "not UTF-8"),
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "a JSON list, not an object"),
        (b"null", "a JSON NoneType, not an object"),
        (b'{"a":1,"a":2}', "the key a twice"),
        (b'{"b":{"a":1,"c":0,"a":2}}', "the key a twice"),
        (b'{"a":"\\ud800"}', "not UTF-8"),
        (b'{"a":' + b"[" * 200_000 + b"}", "nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
    ],
)
def test_parse_object_refuses(data: bytes, fault: str) -> None:
    with pytest.raises(BadCheckpoint, match=fault) as caught:
        parse_object(data, "config.json")
    assert caught.value.what.startswith("config.json")


def test_repeated_keys_are_found_in_linear_time() -> None:
    many = ",".join(f'"{i}":0' for i in range(100_000))
    with pytest.raises(BadCheckpoint, match="the key 99999 twice"):
        parse_object(f'{{{many},"99999":1}}'.encode(), "x")


def test_constants_only_where_allowed() -> None:
    assert parse_object(b'{"a":Infinity}', "x")["a"] == float("inf")
    with pytest.raises(BadCheckpoint, match="holds NaN"):
        parse_object(b'{"a":NaN}', "x", constants=False)


def test_pairs_of_surrogates_are_text() -> None:
    assert parse_object(b'{"a":"\\ud83d\\ude00"}', "x") == {"a": "\U0001f600"}


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("model.safetensors", True),
        (".hidden", True),
        ("", False),
        (".", False),
        ("..", False),
        ("a/b", False),
        ("/etc/passwd", False),
        ("..\\x", False),
        ("a\0b", False),
        ("a" * 256, False),
    ],
)
def test_plain_names(name: str, plain: bool) -> None:
    assert is_plain_name(name) is plain
