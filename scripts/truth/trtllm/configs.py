"""Questions about collected config.json files: what they say beside sizes, on drafters that are there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from truth.drafts import DATA, Directory, Makers, read, target_of
from truth.trtllm.compare import Question
from truth.trtllm.questions import view
from truth.vllm.reader import READER

BASES = ("llama-eagle3", "mla-eagle3")


def collected(folder: Path, work: Path) -> Iterator[Question]:
    """Every file below a folder, over the config of a drafter of either kind; its sizes stay the drafter's."""
    makers = Makers(work, READER)
    for base in BASES:
        path = makers.converted(DATA / "drafters" / base, base, "trtllm")
        facts, directory = read(path, base).facts, Directory.open(path)
        for file in sorted(folder.rglob("*.json")):
            config = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(config, dict):
                kept = {key: value for key, value in config.items() if type(value) is not int}
                name = f"{base} under {file.relative_to(folder)}"
                yield Question(name, view(directory.set(**kept)), facts, target_of(base))
