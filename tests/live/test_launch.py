"""Engines as processes: started, waited for, and gone afterwards with everything that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draftconv.engines.http import Http
from draftconv.engines.request_output import RequestOutput
from draftconv.errors import EngineError, Void
from draftconv.live import process
from draftconv.live.capabilities import live_of
from draftconv.live.forced_acceptance import refuse_forced, refuse_other_texts, refuse_switches
from draftconv.live.launch import Launch, address, free_port, launched
from draftconv.live.measuring_command import measuring
from draftconv.reference.accept_length import Counts

SERVER = """
import http.server, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("child").write_text(str(child.pid))
print("serving", pathlib.Path("serve.yaml").read_text(), flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""


def server(code: str = SERVER, **changes: float) -> Launch:
    patience = changes.get("patience", 30.0)
    return Launch(("python", "-c", code), {"serve.yaml": "a: 1\n"}, patience=patience, python=Path(sys.executable))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state != "Z"


def until(condition: object, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if callable(condition) and condition():
            return True
        time.sleep(0.05)
    return False


def test_a_server_is_there_and_then_gone_with_its_children(tmp_path: Path) -> None:
    port = free_port()
    with launched(server(), port, tmp_path / "arm"):
        assert Http(address(port)).answers("/health")
        child = int((tmp_path / "arm" / "child").read_text())
        assert alive(child)
    assert until(lambda: not alive(child))
    assert not Http(address(port)).answers("/health")
    assert "serving a: 1" in (tmp_path / "arm" / "server.log").read_text()


def test_it_is_gone_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(Void), launched(server(), free_port(), tmp_path):
        raise Void("a measurement")
    assert until(lambda: not alive(int((tmp_path / "child").read_text())))


def test_one_that_does_not_listen_to_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER
    with launched(server(deaf), free_port(), tmp_path):
        pass
    assert until(lambda: not alive(int((tmp_path / "child").read_text())))


OURS = """
import signal, sys, time
from pathlib import Path
if ignored := int(sys.argv[1]):
    signal.signal(ignored, signal.SIG_IGN)
sys.path.insert(0, {root!r})
from tests.live.test_launch import server
from draftconv.live.launch import free_port, launched
with launched(server(), free_port(), Path({place!r})):
    print("ready", flush=True)
    time.sleep(600)
"""


@contextmanager
def us(place: Path, ignored: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A program with a server in `place` that is ready; one signal may be ignored from its start, as nohup does."""
    ours = OURS.format(root=str(Path(__file__).parents[2]), place=str(place))
    argv = [sys.executable, "-c", ours, str(int(ignored))]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_it_is_gone_when_we_are_stopped(tmp_path: Path, number: int) -> None:
    with us(tmp_path) as process:
        process.send_signal(number)
        assert process.wait(20) != 0
    assert until(lambda: not alive(int((tmp_path / "child").read_text())))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_caller_ignores_stops_nothing(tmp_path: Path, number: int) -> None:
    """nohup, or a background job of a shell: the run goes on, and can still be ended with its server."""
    with us(tmp_path, ignored=number) as process:
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        child = int((tmp_path / "child").read_text())
        assert alive(child)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) != 0
    assert until(lambda: not alive(child))


def test_a_server_that_ends_by_itself_says_why(tmp_path: Path) -> None:
    broken = server("import sys; print('\\nout of memory\\n', file=sys.stderr); sys.exit(3)")
    with (
        pytest.raises(EngineError, match="ended with status 3") as caught,
        launched(broken, free_port(), tmp_path),
    ):
        pass
    assert caught.value.why == f"out of memory; see {tmp_path}/server.log"
    assert caught.value.cure.endswith(f"--port {caught.value.cure.rsplit()[-1]}")  # a command that can be pasted whole
    assert "characters)" not in caught.value.cure


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("ValidationError: 1 validation error\n  Value error, max_model_len is too large\n    For more visit x",
         "Value error, max_model_len is too large"),
        ("(EngineCore) ValueError: no room for the KV cache\nRuntimeError: Engine core initialization failed. "
         "See root cause above. Failed core proc(s): {}\n", "(EngineCore) ValueError: no room for the KV cache"),
        ("WARNING errors like `OSError: [Errno 24]`\nINFO still loading\n", "INFO still loading"),
    ],
)  # fmt: skip
def test_the_line_of_a_log_that_tells(log: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(log)
    assert process.tail(path) == f"{told}; see {path}"


def test_a_server_that_is_never_ready(tmp_path: Path) -> None:
    slow = server("import time; time.sleep(600)", patience=0.3)
    with pytest.raises(EngineError, match="not ready after"), launched(slow, free_port(), tmp_path):
        pass


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    missing = Launch(("trtllm-serve", "llama"), python=tmp_path / "python")
    with pytest.raises(EngineError, match="cannot be started") as caught, launched(missing, 1, tmp_path):
        pass
    assert "--engine-python" in caught.value.cure


# ── commands ───────────────────────────────────────────────────────────────────────


def test_programs_come_from_the_engines_environment() -> None:
    python = Path("/env/bin/python3")
    assert Launch(("python", "-m", "x"), python=python).located() == ("/env/bin/python3", "-m", "x")
    assert Launch(("vllm", "serve"), python=python).located() == ("/env/bin/vllm", "serve")
    assert Launch(("vllm", "serve")).located() == ("vllm", "serve")


def test_what_measuring_adds() -> None:
    def made(name: str, *argv: str, **files: str) -> Launch:
        return measuring(argv, files, live_of(name), ("--seed", "1"), patience=1.0, python=None)

    counting = ("--per-request-spec-decode-metrics", "summary", "--no-enable-prefix-caching", "--seed", "1")
    assert made("vllm", "vllm", "serve", "llama").argv == ("vllm", "serve", "llama", *counting)
    assert made("sglang", "python").argv == ("python", "--disable-radix-cache", "--seed", "1")
    assert made("trtllm", "trtllm-serve", **{"serve.yaml": "a: 1\n"}).files == {
        "serve.yaml": "a: 1\nkv_cache_config:\n  enable_block_reuse: false\n"
    }


# ── switches ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "environment", "told"),
    [
        ((), {"SGLANG_SIMULATE_ACC_LEN": "2.5"}, "SGLANG_SIMULATE_ACC_LEN"),
        ((), {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "2"}, "FORCE_NUM_ACCEPTED"),
        (('{"rejection_sample_method": "synthetic"}',), {}, "synthetic would decide what is accepted: it accepts at"),
        (('{"rejection_sample_method": "block"}',), {}, "together"),
        (("--speculative-config.rejection_sample_method", "fly"), {}, "would not have written"),
        (('{"synthetic_acceptance_length": 2.5}',), {}, "synthetic_acceptance"),
        (("--speculative-accept-threshold-single", "0.5"), {}, "accept-threshold-single 0.5"),
        (("--speculative-accept-threshold-acc=0.9",), {}, "accept-threshold-acc=0.9"),
        (("--speculative-use-block-verification",), {}, "together"),
        (("  use_relaxed_acceptance_for_thinking: true\n",), {}, "use_relaxed_acceptance"),
    ],
)
def test_a_switch_that_makes_acceptance_up(words: tuple[str, ...], environment: dict[str, str], told: str) -> None:
    with pytest.raises(Void, match=told):
        refuse_switches(words, environment)


def test_switches_that_are_off() -> None:
    refuse_switches(
        (
            *("--model", "/models/synthetic-llama", "--seed", "1", "--speculative-accept-threshold-acc", "1.0"),
            *('{"rejection_sample_method": "standard"}', "use_relaxed_acceptance_for_thinking: false\n"),
            "--speculative-accept-threshold-single=1",
        ),
        {"SGLANG_SIMULATE_ACC_LEN": "-1", "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "0"},
    )


def test_equal_acceptance_in_every_step() -> None:
    with pytest.raises(Void, match="exactly 2 tokens in each of 150 steps"):
        refuse_forced("out", [RequestOutput((1, 2), Counts((0, 0, 150, 0)))])
    for histogram in ((150, 0, 0, 0), (0, 2, 150, 0), (0, 0, 50, 0), (0, 0, 0, 0)):
        refuse_forced("out", [RequestOutput((1, 2), Counts(histogram))])


def test_equal_acceptance_in_every_step_but_the_one_that_is_cut() -> None:
    """TensorRT-LLM's counts end with the text."""
    cut = [RequestOutput((1, 2, 3), Counts((0, 1, 0, 15)))] * 10
    with pytest.raises(Void, match="exactly 3 tokens"):
        refuse_forced("out", cut)
    refuse_forced("out", [*cut, RequestOutput((1, 2), Counts((1, 0, 0, 15)))])


def test_one_token_in_place_of_every_draft() -> None:
    texts = [RequestOutput((first, 100, 100, 100), Counts((0, 2, 30, 0))) for first in range(9)]
    with pytest.raises(Void, match="nothing but token 100"):
        refuse_forced("out", texts)
    refuse_forced("out", [*texts, RequestOutput((1, 100, 7, 100), Counts((0, 2, 30, 0)))])


def test_texts_that_part_at_once() -> None:
    """As acceptance by chance makes them, where each token is that of a draft nobody checked."""
    ours = [RequestOutput(tuple(range(n, n + 40)), Counts((0, 0, 9, 4))) for n in range(8)]
    parted = [RequestOutput((*answer.tokens[:5], 0, *answer.tokens[6:]), answer.counts) for answer in ours]
    later = [RequestOutput((*answer.tokens[:8], 0, *answer.tokens[9:]), answer.counts) for answer in ours]
    with pytest.raises(Void, match="5 of 8 texts of out differ"):
        refuse_other_texts("out", ours, [*parted[:5], *ours[5:]])
    refuse_other_texts("out", ours, [*parted[:4], *ours[4:]])
    refuse_other_texts("out", ours, later)
