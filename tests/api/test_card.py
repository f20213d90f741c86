"""The model card: exact texts, what the Hub reads in them, licenses, and sources that mean harm."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, close_session, constants

import draftconv
from draftconv import limits
from draftconv.checkpoint import open_checkpoint
from draftconv.cli import cli
from draftconv.drafter import targets
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, parse_engine
from draftconv.engines.target_stops import INT4
from draftconv.quantization.recipes import recipe_names
from tests.checkpoint.stub_hub import REPO, Hub, serving
from tests.traces.recorded import make_trace

DATA = Path(__file__).parents[1] / "data"
CARDS = Path(__file__).parent / "cards"
LLAMA = DATA / "drafters/llama-eagle3.1"
HERE = DATA / "targets/llama"
CARD = """---
license: other
license_name: Modified MIT
license_link: LICENSE
language:
- no
datasets: owner/chats
base_model: owner/target
---
# theirs
"""
KNOWN = Target("tiny", 8, "llama", "llama", 256, 2048, 32768, "owner/target")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target in the shipped table that the trained fixtures fit."""
    monkeypatch.setattr(targets, "known_targets", lambda: {"tiny": KNOWN})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A drafter with a card, a license and a notice."""
    path = tmp_path / "drafter"
    shutil.copytree(LLAMA, path)
    (path / "README.md").write_text(CARD)
    (path / "LICENSE").write_bytes(b"terms \xff\r\n")
    (path / "NOTICE.txt").write_text("a notice")
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The same drafter on the Hub."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    close_session()
    files = {path.name: path.read_bytes() for path in LLAMA.iterdir()}
    with serving(Hub(files | {"README.md": CARD.encode(), "LICENSE": b"terms"})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
    close_session()


def card_of(out: Path) -> str:
    return (out / "README.md").read_text(encoding="utf-8").replace(draftconv.__version__, "VERSION")


def front(out: Path) -> dict[str, object]:
    """The front matter, which the Hub's own client reads without a complaint."""
    text = (out / "README.md").read_text(encoding="utf-8")
    ModelCard(text)
    found: dict[str, object] = yaml.safe_load(text.split("---\n")[1])
    return found


def section(out: Path, title: str) -> str:
    return card_of(out).partition(f"\n## {title}\n")[2].partition("\n## ")[0].strip()


# ── exact cards ────────────────────────────────────────────────────────────────────


def portable(source: Path, out: Path) -> None:
    draftconv.convert(source, out, target="tiny")


def for_training(_: Path, out: Path) -> None:
    draftconv.convert(LLAMA, out, to="torchspec")


def quantized(_: Path, out: Path) -> None:
    draftconv.quantize(f"hf://{REPO}", out, recipe="w4a16", engines="vllm:b200", target="tiny")


def pruned(_: Path, out: Path) -> None:
    text = out.parent / "text.jsonl"
    text.write_text("".join(f"{[*range(512)] * 2 + [number]}\n" for number in range(20)))
    draftconv.prune(LLAMA, out, vocab=512, counts=str(text), target=str(HERE))


def with_table(source: Path, out: Path) -> None:
    target = source.parent / "model"
    shutil.copytree(HERE, target)
    (target / "LICENSE").write_text("other terms")
    (target / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    draftconv.convert(source, out, to="sglang", target=str(target), embed="from-target")


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("made", [portable, for_training, quantized, pruned, with_table])
def test_the_whole_card(made: Callable[[Path, Path], None], source: Path, tmp_path: Path) -> None:
    made(source, tmp_path / "out")
    expected = CARDS / f"{made.__name__}.md"
    assert card_of(tmp_path / "out") == expected.read_text(encoding="utf-8")
    assert front(tmp_path / "out")["library_name"] == "draftconv"
    assert str(tmp_path) not in card_of(tmp_path / "out")


@pytest.mark.parametrize(
    ("recipe", "engine", "says"),
    [
        ("w4a16-gptq", "vllm:b200", "weights rounded by GPTQ"),
        ("fp8-tensor", "trtllm:h200", "static activation scales"),
    ],
)
def test_what_a_trace_was_for_is_told_and_asked_for_again(
    recipe: str, engine: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_trace(tmp_path / "trace", "llama", count=32, length=16)
    how: dict[str, Any] = {"calibrate": tmp_path / "trace", "calibrate_on": "half", "target": str(HERE)}
    draftconv.quantize(LLAMA, tmp_path / "out", recipe=recipe, engines=engine, **how)
    told = section(tmp_path / "out", "Quantization")
    assert f"\n- {says}, by the inputs of 16 requests of held-out, one half of trace `sha256:" in told
    assert ("static" in told) == ("static" in says)
    assert "not run on hardware" in card_of(tmp_path / "out").lower()
    monkeypatch.chdir(tmp_path / "out")
    script = section(tmp_path / "out", "Check it").partition("```sh\n")[2].partition("```")[0]
    assert script == "draftconv verify . --against SOURCE --target TARGET --calibrate TRACE\n"
    places = {"SOURCE": str(LLAMA), "TARGET": str(HERE), "TRACE": str(tmp_path / "trace")}
    with pytest.raises(SystemExit) as ended:
        cli.main([places.get(word, word) for word in shlex.split(script)[1:]])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        cli.main([places.get(word, word) for word in shlex.split(script)[1:-2]])
    assert ended.value.code == 1


def test_what_was_run_is_not_said_to_be_unrun(tmp_path: Path) -> None:
    draftconv.quantize(LLAMA, tmp_path / "out", recipe="w4a16", engines="vllm:cpu", target="tiny")
    assert "not run on hardware" not in card_of(tmp_path / "out").lower()
    draftconv.convert(LLAMA, tmp_path / "floats", target="tiny")
    assert "not run on hardware" not in card_of(tmp_path / "floats").lower()


def test_a_pruned_head_that_is_quantized_is_named_after_the_drafter_that_there_is(tmp_path: Path) -> None:
    pruned(LLAMA, tmp_path / "llama-512-rows")
    draftconv.quantize(
        tmp_path / "llama-512-rows", tmp_path / "out", recipe="w4a16", engines="vllm:b200", target=str(HERE)
    )
    text = card_of(tmp_path / "out")
    assert "llama-512-rows" not in text
    assert "pruned and quantized by draftconv VERSION from the\n`torchspec-native` layout of `llama-eagle3.1`" in text
    assert "- from `llama-eagle3.1`, whose head was pruned first, by recipe `w4a16`" in text
    assert "512 of 2048 rows of the head stay" in section(tmp_path / "out", "Pruned head")
    assert "these weights and a head of fewer rows" in section(tmp_path / "out", "Serve it")
    assert draftconv.verify(tmp_path / "out", LLAMA, target=str(HERE)).passed


# ── how it is started ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine", ENGINES)
def test_the_command_is_that_of_serve(
    engine: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    draftconv.convert(source, out, to=ENGINES[engine].layout, target="tiny")
    script = section(out, "Serve it").partition("```sh\n")[2].partition("```")[0]
    monkeypatch.chdir(out)
    served = draftconv.serve(".", engine=engine, target="tiny")
    command = script.rpartition("EOF\n")[2].replace("\\\n", " ")
    assert shlex.split(command) == list(served.argv)
    for name, text in served.files.items():
        assert script.startswith(f"cat > {name} <<'EOF'\n{text}EOF\n")


def test_what_no_engine_reads_is_named_for_none(tmp_path: Path) -> None:
    draftconv.quantize(LLAMA, tmp_path / "out", recipe="quark-w4a8", target="tiny")
    assert "\n# llama-eagle3.1\n" in card_of(tmp_path / "out")


@pytest.mark.parametrize("recipe", ["w4a16", "fp8", "nvfp4", "w4a8", "fp8-tensor", "mxfp4"])
def test_quantized_weights_have_a_start_too(recipe: str, tmp_path: Path) -> None:
    assert recipe in recipe_names()
    draftconv.quantize(LLAMA, tmp_path / "out", recipe=recipe, target="tiny", calibrate=_trace(recipe, tmp_path))
    found = front(tmp_path / "out")
    dtype = {"w4a16": "int4", "w4a8": "int4", "fp8-tensor": "fp8"}.get(recipe, recipe)
    assert dtype in found["tags"]  # type: ignore[operator]
    assert (found["base_model"], found["base_model_relation"]) == ("owner/target", "finetune")


def _trace(recipe: str, tmp_path: Path) -> Path | None:
    """What static scales are measured on."""
    if recipe not in ("fp8-tensor", "nvfp4", "mxfp4"):
        return None
    make_trace(tmp_path / "trace", "llama", count=2, length=8)
    return tmp_path / "trace"


def test_a_start_that_is_not_known_says_why(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revised = Target("tiny", 8, "llama", "llama", 256, 2048, 32768, "owner/target@v1")
    monkeypatch.setattr(targets, "known_targets", lambda: {"tiny": revised})
    draftconv.convert(source, tmp_path / "out", target="tiny")
    told = section(tmp_path / "out", "Serve it")
    assert "--revision v1" in told
    assert "No start is known: TensorRT-LLM cannot be told revision v1 of owner/target; it would take what" in told
    assert front(tmp_path / "out")["base_model"] == "owner/target"


def test_a_target_that_stops_an_engine_has_no_start_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT-LLM does not read INT4 weights as the published Kimi-K2.5 has them."""
    packed = Target("tiny", 8, "llama", "llama", 256, 2048, 32768, "owner/target", stored=INT4)
    monkeypatch.setattr(targets, "known_targets", lambda: {"tiny": packed})
    draftconv.convert(source, tmp_path / "out", target="tiny")
    told = section(tmp_path / "out", "Serve it")
    assert "No start is known: TensorRT-LLM does not start with tiny" in told
    assert "vllm serve owner/target" in told
    assert "trtllm-serve" not in told


def test_without_a_target_serve_is_named(source: Path, tmp_path: Path) -> None:
    draftconv.convert(source, tmp_path / "out", to="vllm")
    assert "```sh\ndraftconv serve . --for vllm --target TARGET\n```" in section(tmp_path / "out", "Serve it")
    assert "base_model" not in front(tmp_path / "out")


# ── what it was made from ──────────────────────────────────────────────────────────


@pytest.mark.usefixtures("hub")
def test_the_source_on_the_hub_is_the_base_model(tmp_path: Path) -> None:
    draftconv.convert(f"hf://{REPO}", tmp_path / "out", to="vllm", target="tiny")
    found = front(tmp_path / "out")
    assert found["base_model"] == REPO
    assert "base_model_relation" not in found  # the Hub has no word for the same weights in another layout
    assert (tmp_path / "out" / "LICENSE").read_bytes() == b"terms"
    draftconv.quantize(tmp_path / "out", tmp_path / "small", recipe="w4a16", target="tiny")
    assert [front(tmp_path / "small")[key] for key in ("base_model", "base_model_relation", "license")] == [
        REPO, "quantized", "other"
    ]  # fmt: skip
    draftconv.convert(tmp_path / "small", tmp_path / "floats", to="vllm", dequantize=True, target="tiny")
    assert "base_model_relation" not in front(tmp_path / "floats")


def test_license_files_are_part_of_the_output(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    draftconv.convert(source, out, to="vllm", card=False)
    assert (out / "LICENSE").read_bytes() == b"terms \xff\r\n"
    record = json.loads((out / "draftconv.json").read_text())
    assert {"LICENSE", "NOTICE.txt"} <= record["files"].keys()
    assert record["licenses"] == [
        {"source": "drafter", "license": ["other"], "license_name": "Modified MIT", "license_link": "LICENSE",
         "files": ["LICENSE", "NOTICE.txt"], "left_out": []}
    ]  # fmt: skip
    draftconv.convert(source, out, to="vllm", overwrite=True)
    (out / "LICENSE").write_text("mine")
    with pytest.raises(draftconv.DraftconvError, match="LICENSE"):
        draftconv.convert(source, out, to="vllm", overwrite=True)


def test_one_unknown_license_names_none(source: Path, tmp_path: Path) -> None:
    """A license that holds for the drafter alone is not said of the target's table beside it."""
    draftconv.convert(source, tmp_path / "out", to="vllm", target=str(HERE), embed="from-target")
    assert "license" not in front(tmp_path / "out")
    told = section(tmp_path / "out", "License")
    assert "`drafter`: `other` (Modified MIT)" in told
    assert "No license was found beside `llama`: ask" in told


def test_the_same_terms_twice_are_one_file(source: Path, tmp_path: Path) -> None:
    shutil.copytree(HERE, tmp_path / "model")
    shutil.copy(source / "LICENSE", tmp_path / "model" / "LICENSE.txt")
    draftconv.convert(source, tmp_path / "out", to="vllm", target=str(tmp_path / "model"), embed="from-target")
    assert sorted(path.name for path in (tmp_path / "out").glob("LICENSE*")) == ["LICENSE"]


# ── sources that mean harm ─────────────────────────────────────────────────────────

EVIL = "x <img src=x onerror=alert(1)> [y](http://evil.example) `\n# H"


@pytest.mark.parametrize(
    ("card", "fault"),
    [
        ("---\nlicense: {id: mit}\n---\n", "license: a mapping or a list is not an identifier"),
        (f"---\nlicense_name: {json.dumps(EVIL)}\n---\n", "license_name: 'x <img"),
        (
            "---\nlicense: mit\n" + "#" * 10_000_000 + "\n---\n",
            "its front matter has more characters; 65536 is the limit",
        ),
        ("---\nlicense_link: MISSING.md\n---\n", "license_link: no file MISSING.md was taken along"),
        ("---\n[[[\n---\n", "its front matter is not YAML"),
    ],
)  # fmt: skip
def test_a_hostile_card_is_told_and_left_out(card: str, fault: str, source: Path, tmp_path: Path) -> None:
    (source / "README.md").write_text(card)
    conversion = draftconv.convert(source, tmp_path / "out", to="vllm")
    assert any(f"Note: not taken over from drafter: README.md: {fault}" in str(block) for block in conversion.blocks())
    assert "license" not in front(tmp_path / "out")
    text = card_of(tmp_path / "out")
    assert "<img" not in text
    assert "\n# H" not in text
    assert fault.partition("'")[0] in text.replace("\\", "")


def test_license_files_that_are_not_taken(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (source / "LICENSE").unlink()
    (source / "LICENSE").symlink_to(tmp_path / "secret")
    (source / "LICENSE.long").write_bytes(b" " * (limits.LICENSE.value + 1))
    for number in range(17):
        (source / f"NOTICE-{number:02}").write_text(str(number))
    for name in ("LICENSE.bin", "LICENSE.json", "LICENSE x", "licensed.py"):
        (source / name).write_text("no terms")
    draftconv.convert(source, tmp_path / "out", to="vllm")
    left = json.loads((tmp_path / "out" / "draftconv.json").read_text())["licenses"][0]["left_out"]
    assert left == [
        "LICENSE: LICENSE in drafter is a link that leads out of the directory",
        "LICENSE.long: it has 1000001 bytes; 1000000 is the limit",
        "NOTICE-14 and what follows: 16 license files is the limit",
        "README.md: license_link: no file LICENSE was taken along",
    ]
    taken = {path.name for path in (tmp_path / "out").iterdir()}
    assert taken == {"README.md", "config.json", "draftconv.json", "model.safetensors"} | {
        f"NOTICE-{number:02}" for number in range(14)
    }


def test_inspect_reads_no_texts(source: Path) -> None:
    (source / "README.md").unlink()
    (source / "README.md").symlink_to("/etc/passwd")
    assert open_checkpoint(source).texts.keys() == {"README.md", "LICENSE", "NOTICE.txt"}


def test_engines_are_tagged_as_on_the_hub(source: Path, tmp_path: Path) -> None:
    draftconv.convert(source, tmp_path / "out")
    assert front(tmp_path / "out")["tags"] == ["eagle3", "speculative-decoding", "vllm", "sglang", "tensorrt-llm"]
    assert all(parse_engine(str(tag)).name for tag in ("vllm", "sglang", "tensorrt-llm"))
