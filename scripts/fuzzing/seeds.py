"""Good inputs, made of the trained fixtures by draftconv itself when they are first asked for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
DRAFTERS = ("llama-eagle3", "llama-eagle3-reduced", "llama-eagle3.1", "mla-eagle3", "mla-eagle3.1")
TARGETS = ("llama", "mla")

MADE: Mapping[str, tuple[str, ...]] = {
    "vllm": ("convert", "{llama-eagle3.1}", "{}", "--to", "vllm", "--target", "{llama}"),
    "portable": ("convert", "{llama-eagle3-reduced}", "{}", "--target", "{llama}"),
    "sglang-mla": ("convert", "{mla-eagle3.1}", "{}", "--to", "sglang", "--target", "{mla}"),
    "sharded": ("convert", "{llama-eagle3}", "{}", "--target", "{llama}", "--shard-size", "1MB"),
    "w4a16": ("quantize", "{llama-eagle3.1}", "{}", "--recipe", "w4a16", "--for", "vllm", "--target", "{llama}"),
    "fp8": ("quantize", "{llama-eagle3}", "{}", "--recipe", "fp8", "--for", "sglang", "--target", "{llama}"),
    "quark": ("quantize", "{llama-eagle3}", "{}", "--recipe", "quark-w4a8", "--target", "{llama}"),
    "trace": ("trace", "--target", "{llama}", "--prompts", str(DATA / "prompts.json"), "--out", "{}", "--limit", "2",
              "--max-tokens", "6", "--ignore-eos", "--dtype", "float32", "--boundaries", "2,4,5"),
}  # fmt: skip
"""Seed → the command that makes it; `{}` is its directory, `{NAME}` another seed's."""


_PLACE = re.compile(r"\{([\w.-]*)\}")


class SeedError(Exception):
    """A good input could not be made: nothing can be said of broken ones."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """The directories of good inputs below `root`, each made once.

    `read` keeps small files in memory: thousands of inputs start from them.
    """

    root: Path
    _texts: dict[Path, bytes] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """A seed's directory.

        Raises:
            SeedError: draftconv could not make it.
        """
        path = self.root / name
        if not path.exists():
            maker = _COPIED.get(name) or _BUILT.get(name)
            if maker:
                maker(self, path)
            else:
                self._run([self.named(argument, path) for argument in MADE[name]])
        return path

    def named(self, argument: str, made: Path) -> str:
        """An argument of a command with its placeholders filled in."""
        return _PLACE.sub(lambda match: str(self.path(match[1]) if match[1] else made), argument)

    def read(self, name: str, file: str) -> bytes:
        """A file of a seed."""
        path = self.path(name) / file
        if path not in self._texts:
            self._texts[path] = path.read_bytes()
        return self._texts[path]

    def files(self, name: str) -> list[str]:
        """The names of a seed's files, those of directories below it with them."""
        path = self.path(name)
        return sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())

    def _run(self, argv: list[str]) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "draftconv", *argv]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
        if done.returncode:
            raise SeedError(f"draftconv {' '.join(argv)}: exit code {done.returncode}\n{done.stderr}")


def _copy(source: Path) -> Callable[[Seeds, Path], None]:
    def copied(_: Seeds, path: Path) -> None:
        shutil.copytree(source, path)

    return copied


def _pickled(seeds: Seeds, path: Path) -> None:
    """The same drafter as torch.save writes it."""
    import torch
    from safetensors.torch import load_file

    source = seeds.path("llama-eagle3-reduced")
    path.mkdir()
    shutil.copy(source / "config.json", path)
    torch.save(load_file(source / "model.safetensors"), path / "pytorch_model.bin")


def _engine_answers(_: Seeds, path: Path) -> None:
    """What stub servers of the tests say, by engine, method and path."""
    sys.path.insert(0, str(ROOT))
    from tests.engines.stub import Stub

    for engine in ("vllm", "sglang", "trtllm"):
        stub = Stub(engine)
        asked = {"prompt": PROMPT, "max_tokens": LENGTH, "input_ids": PROMPT}
        body = asked | {"sampling_params": {"max_new_tokens": LENGTH}}
        for number, asked_path in enumerate(ASKED):
            answer = stub.post(asked_path, body) if number < POSTED else stub.get(asked_path)
            if answer is not None:
                method = "POST" if number < POSTED else "GET"
                (place := path / engine).mkdir(parents=True, exist_ok=True)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                (place / f"{method}{asked_path.replace('/', ' ')}").write_bytes(data)


PROMPT = [1, 2, 3, 4]
LENGTH = 16
"""Tokens of every text, as many as a probe has: one answer fits both."""
ASKED = ("/v1/completions", "/generate", "/v1/models", "/version", "/metrics", "/health", "/server_info")
POSTED = 2

_COPIED = {name: _copy(DATA / "drafters" / name) for name in DRAFTERS}
_COPIED |= {name: _copy(DATA / "targets" / name) for name in TARGETS}
_BUILT = {"bin": _pickled, "engines": _engine_answers}
