"""Asks both readings everything and writes the table that the documentation shows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from truth.table import Truth, disagreements, save
from truth.trtllm.compare import answers
from truth.trtllm.page import ENGINE, TABLE
from truth.trtllm.questions import everything


def main() -> int:
    with tempfile.TemporaryDirectory() as work:
        rows = tuple(answers(everything(Path(work))))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    TABLE.parent.mkdir(exist_ok=True)
    save(Truth(ENGINE, commit.stdout.strip(), datetime.now(UTC).date().isoformat(), rows), TABLE)
    for line in disagreements(rows):
        print(line)
    return 1 if disagreements(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
