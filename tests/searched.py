"""A trace to search on, whose halves have more than the 30 prompts that certify anything, and text of its target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from draftconv.traces.trace import open_trace
from tests.traces.recorded import make_trace

REPEATED = 20
"""Times that what the target wrote stands in the text: a thousand rows ask for 30,000 tokens."""


def make_halves(out: Path, name: str = "llama") -> Path:
    """The 32 held-out prompts twice."""
    make_trace(out, name, count=32, length=32)
    document = json.loads((out / "trace.json").read_text())
    for number, row in enumerate([*document["requests"]]):
        file = f"{number + 32:06}.safetensors"
        shutil.copy(out / "requests" / row["file"], out / "requests" / file)
        again = {"id": f"{row['id']} again", "cluster": f"{row['cluster']} again", "file": file}
        document["requests"].append(row | again)
    (out / "trace.json").write_text(json.dumps(document))
    return out


@pytest.fixture(scope="session")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a trace, made once and never changed."""
    return make_halves(tmp_path_factory.mktemp("searched") / "trace")


@pytest.fixture(scope="session")
def written_text(halves: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What its target wrote, as token ids."""
    trace = open_trace(halves)
    texts = [trace.read(entry, ()).tokens_N.tolist() for entry in trace.entries[:32]]
    path = tmp_path_factory.mktemp("text") / "written.jsonl"
    lines = (json.dumps([*ids, number]) for number in range(REPEATED) for ids in texts)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
