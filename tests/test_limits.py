"""The table of limits: at each limit something is read, and soon; one beyond it is refused, in words, and soon."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

import draftconv
from draftconv import limits
from draftconv.checkpoint import open_checkpoint
from draftconv.checkpoint.headers import read_header
from draftconv.checkpoint.hub import hub_directory
from draftconv.checkpoint.hub_file import HubFile
from draftconv.checkpoint.staging import refuse_occupied
from draftconv.checkpoint.text import parse_object, show
from draftconv.checkpoint.torchbin import read_torch
from draftconv.conversion.licenses import find_terms
from draftconv.conversion.provenance import output_digest, read_provenance
from draftconv.display import shortened
from draftconv.drafter.config import Config
from draftconv.drafter.yaml_file import parse_yaml
from draftconv.engines.http import Http
from draftconv.engines.quantized_modules import built, declaration, method
from draftconv.engines.rules import EngineSpec
from draftconv.errors import BadReport, DraftconvError
from draftconv.limits import LIMITS, Limit
from draftconv.live.machine import _run
from draftconv.live.run_directory import ArmDirectory
from draftconv.quantization.recipes import find_recipe
from draftconv.replay.two_targets import vocabulary_of
from draftconv.report import read_report
from draftconv.traces.prompts import load_prompts
from draftconv.traces.text_places import TextPlace, read_place
from draftconv.traces.trace import open_trace
from tests.checkpoint.made import MemoryFile
from tests.served import served
from tests.tiny import VARIANTS

DRAFTER = Path(__file__).parent / "data/drafters/llama-eagle3-reduced"
SOON = 6.0
"""Seconds of the processor; a slow machine under load takes several times as many of the clock."""


def inspect(path: Path, target_layers: int | None = None) -> object:
    """What is read of a drafter, and every engine's verdict."""
    return draftconv.inspect(path, engines=("vllm", "sglang", "trtllm"), target_layers=target_layers)


# ── files ──────────────────────────────────────────────────────────────────────────


def drafter(room: Path, **config: object) -> Path:
    """The fixture with other keys in its config.json."""
    path = shutil.copytree(DRAFTER, room / "drafter", dirs_exist_ok=True)
    written = json.loads((DRAFTER / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(written | config))
    return path


def header(entries: Mapping[str, object], length: int = 0) -> MemoryFile:
    raw = json.dumps(entries).encode()
    raw += b" " * (length - len(raw))
    return MemoryFile(struct.pack("<Q", len(raw)) + raw)


def tensors(count: int, name: str = "t{}") -> dict[str, object]:
    """Empty ones: a header is all that there is."""
    return {name.format(i): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(count)}


def with_tensors(room: Path, count: int) -> Path:
    path = drafter(room)
    raw = (DRAFTER / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    entries = json.loads(raw[8 : 8 + length])
    end = max(entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__")
    own = len([name for name in entries if name != "__metadata__"])
    entries |= {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [end, end]} for i in range(count - own)}
    head = json.dumps(entries).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + raw[8 + length :])
    return path


def archive(room: Path, pickle: int = 4, directory: int = 0) -> MemoryFile:
    """A torch archive whose pickle, or whose directory with the members' comments, has so many bytes."""
    path, used, number = room / "x.bin", 46 + len("archive/data.pkl"), 0
    data = b"\x80\x02}" + b"r\0\0\0\0" * (pickle % 2) + b"q\0" * ((pickle - 4 - 5 * (pickle % 2)) // 2) + b"."
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", data)
        while used < directory:
            info = zipfile.ZipInfo(f"archive/{number:09}")
            own = 46 + len(info.filename)
            left = directory - used - own
            info.comment = b" " * (left if left <= 60_000 else 50_000)
            file.writestr(info, b"")
            used, number = used + own + len(info.comment), number + 1
    return MemoryFile(path.read_bytes(), "x.bin")


def recorded(room: Path, steps: int) -> object:
    """A record that was made in so many steps, sealed as draftconv does."""
    path = drafter(room)
    step: dict[str, object] = {"source": {"config": {}}, "changes": [], "lm_head_order": None}
    record: dict[str, object] = {"format": 1, **step, "earlier": [step] * (steps - 1)}
    opened = open_checkpoint(path)
    record["output"] = output_digest(opened.tensors, opened.config, record)
    (path / "draftconv.json").write_text(json.dumps(record))
    found = read_provenance(open_checkpoint(path))
    assert found is not None
    return found


def quantized(ignore: list[str]) -> object:
    """What vLLM builds quantized by such a list."""
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ignore,
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}}}  # fmt: skip
    spec = EngineSpec("vllm", "0")
    assert method(declaration(spec, config, {})) is not None
    return built(spec, config, {}, VARIANTS["llama"].facts, 8)


def tried(pattern: str) -> None:
    """A pattern that is too much is no error: the modules count as unknown."""
    outcomes = {module.outcome for module in quantized([f"re:{pattern}"]).values()}  # type: ignore[attr-defined]
    if "unknown" in outcomes:
        raise DraftconvError("not tried; N is the limit", why="it could take for ever", cure="write names")


def steps(count: int) -> list[str]:
    """Regular expressions that may take about so many steps, and no fewer."""
    from draftconv.engines.module_names import modules
    from draftconv.engines.quantized_modules import _worst_steps

    names = [module.name for module in modules(EngineSpec("vllm", "0"), VARIANTS["llama"].facts, 8)]
    entry = "re:.*.*.*.*Z"
    one = _worst_steps({"ignore": [entry]}, names)
    return [entry] * (count // one + (count > limits.REGEX_STEPS.value))


def yaml_nested(count: int) -> str:
    return "".join(f"{' ' * i}a:\n" for i in range(count - 1)) + f"{' ' * count}a: 1\n"


def yaml_aliases(count: int) -> str:
    """So many values, most of them behind aliases; the two mappings, a list and their keys count too."""
    return "a: &a [" + "x, " * 99 + "]\nb: [" + "*a, " * 98 + "]\nc: [" + "x, " * (count - 9906) + "]\n"


def request(room: Path, size: int) -> Path:
    document = json.dumps({"format": "draftconv-trace", "version": 1}).encode()
    (room / "trace.json").write_bytes(document + b" " * (size - len(document)))
    return room


def aux(room: Path, count: int) -> object:
    ids = list(range(count))
    return inspect(drafter(room, eagle_aux_hidden_state_layer_ids=ids))


def map_of(room: Path, count: int) -> object:
    """A drafter whose t2d has so many tokens."""
    path = drafter(room, vocab_size=count)
    raw = (DRAFTER / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    entries, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    start, stop = entries["t2d"]["data_offsets"]
    mask = data[start:stop].ljust(count, b"\0")
    later = [entry for entry in entries.values() if "data_offsets" in entry and entry["data_offsets"][0] >= stop]
    for entry in later:
        entry["data_offsets"] = [offset + len(mask) - (stop - start) for offset in entry["data_offsets"]]
    entries["t2d"] |= {"shape": [count], "data_offsets": [start, start + len(mask)]}
    head = json.dumps(entries).encode()
    whole = struct.pack("<Q", len(head)) + head + data[:start] + mask + data[stop:]
    (path / "model.safetensors").write_bytes(whole)
    return inspect(path)


def written(room: Path, name: str, text: str | bytes) -> Path:
    (path := room / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def long_text(room: Path, count: int) -> Path:
    """A text and a hole, which takes no room on the disk."""
    path = written(room, "long.jsonl", '"text"\n')
    os.truncate(path, count)
    return path


def named(room: Path, count: int) -> object:
    """An output whose working directory has a name of so many bytes."""
    return refuse_occupied(room / ("x" * (count - len("..draftconv"))))


def shown(text: str) -> None:
    if "…" in text:
        raise DraftconvError(f"{len(text)}; N is the limit", why="it is cut", cure="as it should be")


def terms(room: Path, **texts: str) -> None:
    """What lies beside a source; what is not taken along is told and is no error."""
    path = drafter(room)
    for name, text in texts.items():
        written(path, name, text)
    (source,) = find_terms(open_checkpoint(path), ())
    if source.faults:
        raise DraftconvError("; ".join(source.faults), why="it stays behind", cure="put them elsewhere")


def yaml_file(room: Path, size: int) -> object:
    text = Path(__file__).parents[1].joinpath("recipes/w4a16.yaml").read_text()
    line = "# " + "x" * 97 + "\n"
    padded = text + line * ((size - len(text.encode())) // len(line))
    return find_recipe(str(written(room, "own.yaml", padded + "#" * (size - len(padded.encode())))))


USES: Mapping[str, Callable[[Path, int], object]] = {
    "HEADER": lambda _, n: read_header(header(tensors(1), n)),
    "CONFIG": lambda room, n: open_checkpoint(written(
        drafter(room), "config.json", b"{" + b" " * (n - 2) + b"}").parent),
    "INDEX": lambda room, n: open_checkpoint(written(
        drafter(room), "model.safetensors.index.json",
        (index := json.dumps({"weight_map": dict.fromkeys(open_checkpoint(DRAFTER).tensors, "model.safetensors")}))
        + " " * (n - len(index))).parent),
    "PICKLE": lambda room, n: read_torch(archive(room, pickle=n)),
    "ZIP_DIRECTORY": lambda room, n: read_torch(archive(room, directory=n)),
    "TENSORS": lambda room, n: open_checkpoint(
        written(drafter(room), "model.safetensors", header(tensors(n)).data).parent),
    "TENSOR_NAME": lambda _, n: read_header(header(tensors(1, "x" * n))),
    "RANK": lambda _, n: read_header(header({"t": {"dtype": "F32", "shape": [0] * n, "data_offsets": [0, 0]}})),
    "JSON_LEVELS": lambda _, n: parse_object(b'{"a":' * n + b"1" + b"}" * n, "config.json"),
    "FRONT_MATTER": lambda room, n: terms(room, **{"README.md": "---\n#".ljust(n - 4, "x") + "\n---"}),
    "LICENSE": lambda room, n: terms(room, LICENSE=" " * n),
    "LICENSES": lambda room, n: terms(room, **{f"LICENSE-{i}": str(i) for i in range(n)}),
    "FILE_NAME": named,
    "DRAFTER_TENSORS": lambda room, n: inspect(with_tensors(room, n)),
    "DRAFTER_LAYERS": lambda room, n: inspect(drafter(room, num_hidden_layers=n)),
    "TARGET_LAYERS": lambda room, n: inspect(drafter(room), n),
    "CAPTURED": aux,
    "VOCABULARY": map_of,
    "SIZE": lambda room, n: inspect(drafter(room, intermediate_size=n)),
    "ROPE_NUMBER": lambda room, n: inspect(drafter(room, rope_theta=n)),
    "NUMBERS": lambda _, n: Config({"ids": [1] * n}).integers("ids"),
    "NAMES": lambda _, n: quantized([f"name.{i}" for i in range(n)]),
    "REGEX": lambda _, n: tried("x" * n),
    "REGEX_REPEATS": lambda _, n: tried(".*" * n + "Z"),
    "REGEX_STEPS": lambda _, n: quantized(steps(n)),
    "HISTORY": recorded,
    "SHOWN": lambda _, n: shown(show("x" * n)),
    "CELL": lambda _, n: shown(shortened("x" * n)),
    "YAML": yaml_file,
    "YAML_LEVELS": lambda _, n: parse_yaml(yaml_nested(n), "own.yaml"),
    "YAML_NODES": lambda _, n: parse_yaml(yaml_aliases(n), "own.yaml"),
    "PROMPT": lambda room, n: load_prompts(str(written(room, "p.txt", "x" * n))),
    "PROMPTS": lambda room, n: load_prompts(str(written(room, "p.json", b'["x"]' + b" " * (n - 5)))),
    "TEXT": lambda room, n: next(read_place(TextPlace(str(long_text(room, n))))),
    "TOKENIZER": lambda room, n: vocabulary_of(written(room, "tokenizer.json", b"{}" + b" " * (n - 2))),
    "TRACE": lambda room, n: opened_trace(request(room, n)),
    "REPORT": lambda room, n: opened_report(written(room, "report.json", b"{}" + b" " * (n - 2)).parent),
    "RUN": lambda room, n: ArmDirectory(written(room, "arm.json", b"{}" + b" " * (n - 2)).parent, 3).terms(),
    "ANSWERS": lambda room, n: ArmDirectory(written(room, "answers.jsonl", answers(n)).parent, 3),
}  # fmt: skip
"""Limit → something that meets it with so much."""


def opened_trace(room: Path) -> None:
    """It is no whole trace; that is told once it has been read."""
    with pytest.raises(DraftconvError, match=r"limit|has no"):
        open_trace(room)
    try:
        open_trace(room)
    except DraftconvError as error:
        if "limit" in error.what:
            raise


def opened_report(room: Path) -> None:
    """It is no whole report; that is told once it has been read."""
    with pytest.raises(BadReport) as caught:
        read_report(room)
    if "limit" in caught.value.what:
        raise caught.value


def answers(size: int) -> bytes:
    line = json.dumps({"id": "a", "prompt": "p", "tokens": [1], "histogram": [0, 0, 0, 1]}).encode()
    return line.ljust(size - 1) + b"\n"


SMALL = {"TENSORS": 20_000, "ANSWERS": 20_000_000}
"""What takes more than a moment at its limit is tried with a smaller one."""


@pytest.mark.parametrize("name", USES)
def test_a_limit_holds_and_what_is_at_it_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = LIMITS[name]
    if name in SMALL:
        row = replace(row, value=SMALL[name])
        monkeypatch.setattr(limits, name, row)
    began = time.process_time()
    USES[name](tmp_path, row.value)
    at = time.process_time() - began
    with pytest.raises(DraftconvError, match="is the limit") as caught:
        USES[name](tmp_path, row.value + 1)
    assert time.process_time() - began < 2 * SOON, at
    assert caught.value.why
    assert caught.value.cure
    assert "\n" not in caught.value.what


# ── time, and servers ──────────────────────────────────────────────────────────────

SHA = "0" * 40


@contextmanager
def dripping(data: bytes, pause: float, status: bytes = b"HTTP/1.1 200 OK") -> Iterator[str]:
    """A server that sends its answer in four pieces."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            head = status + b"\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data)
            pieces = [head, *(data[i::1][: len(data) // 4 + 1] for i in range(0, len(data), len(data) // 4 + 1))]
            try:
                for piece in pieces:
                    self.wfile.write(piece)
                    time.sleep(pause)
            except OSError:
                pass

        def log_message(self, *_: object) -> None:
            pass

    with served(Handler) as url:
        yield url


@contextmanager
def hub(room: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> Iterator[None]:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(room / "none"))
    close_session()
    yield
    close_session()


LISTING = json.dumps({"id": "a/b", "sha": SHA, "siblings": [{"rfilename": "config.json", "size": 2}]}).encode()


def listed(room: Path, monkeypatch: pytest.MonkeyPatch, pause: float) -> object:
    with dripping(LISTING, pause) as url, hub(room, monkeypatch, url):
        return hub_directory("a/b")


def ranged(room: Path, monkeypatch: pytest.MonkeyPatch, pause: float) -> object:
    with dripping(b"x" * 100, pause) as url, hub(room, monkeypatch, url):
        return HubFile("x", f"{url}/x", 100, url, None).read(0, 100)


def asked(_: Path, __: pytest.MonkeyPatch, pause: float) -> object:
    with dripping(b'{"a": 1}', pause) as url:
        return Http(url, timeout=min(limits.ENGINE_ANSWER.value, 30), attempts=1).get("/v1/models")


def told(_: Path, __: pytest.MonkeyPatch, pause: float) -> object:
    try:
        return _run(
            ["python", "-c", f"import time; time.sleep({pause})"], os.environ, Path(shutil.which("python3") or "")
        )
    except subprocess.TimeoutExpired as error:
        raise DraftconvError("it is late") from error


TIMES: Mapping[str, tuple[Callable[[Path, pytest.MonkeyPatch, float], object], float]] = {
    "HUB_IDLE": (listed, 3.0),
    "HUB_ANSWER": (ranged, 0.5),
    "ENGINE_IDLE": (asked, 3.0),
    "ENGINE_ANSWER": (asked, 0.5),
    "MACHINE": (told, 3.0),
}
"""Limit → what waits for an answer in four pieces, and a pause between them that is too long when the limit is one
second."""

ELSEWHERE = {
    "HUB_LISTING": "checkpoint/test_hub.py",
    "HUB_REDIRECTS": "checkpoint/test_hub.py",
    "HUB_SKIP": "checkpoint/test_hub.py",
    "ENGINE_BYTES": "engines/test_http.py",
    "ENGINE_FILE": "engines/tracing/test_states.py",
    "COUNTERS": "engines/test_clients.py",
}
"""Limits whose tests need what only their room has."""


@pytest.mark.parametrize("name", TIMES)
def test_a_deadline_holds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, late = TIMES[name]
    monkeypatch.setattr(limits, name, replace(LIMITS[name], value=1))
    ask(tmp_path, monkeypatch, 0.01)
    began = time.monotonic()
    with pytest.raises(DraftconvError):
        ask(tmp_path, monkeypatch, late)
    assert time.monotonic() - began < 10


def test_every_row_is_tested() -> None:
    assert {*USES, *TIMES, *ELSEWHERE} == {*LIMITS}
    for name, file in ELSEWHERE.items():
        assert f"limits.{name}" in (Path(__file__).parent / file).read_text(encoding="utf-8"), name


def test_rows_are_used_and_told() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in Path(draftconv.__file__).parent.rglob("*.py"))
    page = (Path(__file__).parents[1] / "docs/limits.md").read_text(encoding="utf-8")
    for name, row in LIMITS.items():
        assert re.search(rf"limits\.{name}\b", code), f"nobody asks {name}"
        assert f"`{name}`" in page
        assert row.value > 0
        assert not {row.why[-1], row.cure[-1]} & {"."}


def test_what_is_beyond_a_limit_is_told_in_full() -> None:
    row = Limit(3, "bytes", "a file", "it is held in memory", "make it smaller")
    row.check(3, "x has 3 bytes")
    with pytest.raises(DraftconvError) as caught:
        row.check(4, "x has 4 bytes")
    assert caught.value.args == ("x has 4 bytes; 3 is the limit\nit is held in memory\nmake it smaller",)
