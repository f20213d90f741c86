"""Try an installed draftconv as someone who has just typed `pip install draftconv`: no checkout, no torch.

    python -I scripts/try_wheel.py tests/data

Runs in the environment that the wheel was installed into, with nothing but what the wheel brought, and stops at the
first command that does not do what it should.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Step:
    """A command line after `draftconv`, its exit code, and words that stdout or stderr has."""

    line: str
    code: int
    words: str


STEPS = (
    Step("--version", 0, "draftconv, version"),
    Step("inspect drafter --target target", 0, "EAGLE-3.1"),
    Step("convert drafter out --to vllm --target target", 0, "draftconv verify out"),
    Step("verify out --against drafter --target target", 0, "pass"),
    Step("diff drafter out", 1, "Different: 1 fact"),
    Step("serve out --for vllm --target target", 0, "vllm serve"),
    Step("recipes", 0, "w4a16"),
    Step("recipes w4a16", 0, "w4a16"),
    Step("push out OWNER/NAME --dry-run", 2, "HF_HUB_OFFLINE is set"),
    Step("inspect nothing-here", 2, "Error:"),
    Step("quantize drafter small --recipe w4a16 --for vllm:b200 --target target", 2, "draftconv[torch]"),
    Step("trace --target target --out trace", 2, "draftconv[torch]"),
)


def main() -> int:
    if importlib.util.find_spec("torch"):
        print("Error: torch is installed here, so nothing is learned about doing without", file=sys.stderr)
        return 1
    (data,) = (Path(path).resolve() for path in sys.argv[1:])
    program = Path(sys.executable).with_name("draftconv")
    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(data / "drafters" / "llama-eagle3.1", Path(directory, "drafter"))
        shutil.copytree(data / "targets" / "llama", Path(directory, "target"))
        for step in STEPS:
            done = subprocess.run(
                [program, *step.line.split()],
                cwd=directory,
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != step.code or step.words not in done.stdout + done.stderr:
                print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
                print(
                    f"Error: draftconv {step.line}: exit code {done.returncode} instead of {step.code}, "
                    f"or no word of {step.words!r}",
                    file=sys.stderr,
                )
                return 1
    print(f"try_wheel: Python {sys.version.split()[0]}: {len(STEPS)} commands did what they should")
    return 0


if __name__ == "__main__":
    sys.exit(main())
