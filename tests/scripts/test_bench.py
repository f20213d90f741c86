"""scripts/bench: the figures come from the processes themselves, and a missed target shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bench
import pytest

from tests.programs import shebang

SCRIPTS = Path(__file__).parents[2] / "scripts"

# Stands in for draftconv: copies the weights, and can be told to misbehave.
STAND_IN = """{shebang}
import shutil, sys, time
from pathlib import Path
{misbehaviour}
if sys.argv[1] == "convert":
    Path(sys.argv[3]).mkdir()
    shutil.copy(Path(sys.argv[2], "model.safetensors"), sys.argv[3])
"""


def run_bench(tmp_path: Path, *arguments: str, misbehaviour: str = "") -> subprocess.CompletedProcess[str]:
    """Run the benchmark of the stand-in, in a process of its own: a large parent would be measured too."""
    program = tmp_path / "program" / "draftconv"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(shebang=shebang(), misbehaviour=misbehaviour))
    program.chmod(0o755)
    start = "import sys, pathlib, bench; sys.exit(bench.main(sys.argv[2:], pathlib.Path(sys.argv[1])))"
    work = ["convert", "--quick", "--runs", "2", "--dir", str(tmp_path / "work")]
    return subprocess.run(
        [sys.executable, "-c", start, program, *work, *arguments],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        check=False,
    )


def verdicts(report: str) -> dict[str, str]:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in report.splitlines() if "|" in line]
    return {row[0]: row[3] for row in rows}


def test_report_names_every_figure_and_goes_to_the_file(tmp_path: Path) -> None:
    done = run_bench(tmp_path, "--write", str(tmp_path / "docs" / "benchmarks.md"))
    report = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert done.stdout == report
    assert set(verdicts(report)) >= {
        "durable copy (`cp`, then fsync)",
        "`draftconv convert --to vllm`",
        "convert : durable copy, medians",
        "convert : durable copy, round by round",
        "peak memory of `convert`",
        "`draftconv --help`",
        "`draftconv inspect`",
        "`inspect` imports torch",
    }
    assert verdicts(report)["peak memory of `convert`"] == "yes"
    assert verdicts(report)["`inspect` imports torch"] == "yes"
    assert str(tmp_path) not in report
    assert list((tmp_path / "work").iterdir()) == []


def test_keep_leaves_the_drafter_and_nothing_else(tmp_path: Path) -> None:
    run_bench(tmp_path, "--keep")
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["tiny-eagle3"]


@pytest.mark.parametrize(
    ("misbehaviour", "row"),
    [
        ("block = bytearray(300_000_000)", "peak memory of `convert`"),
        ("time.sleep(0.2) if sys.argv[1] == '--help' else None", "`draftconv --help`"),
        ("time.sleep(0.5) if sys.argv[1] == 'inspect' else None", "`draftconv inspect`"),
        ("sys.path.insert(0, str(Path(__file__).parents[1])); import torch", "`inspect` imports torch"),
    ],
    ids=["memory", "help", "inspect", "torch"],
)
def test_a_missed_target_shows(tmp_path: Path, misbehaviour: str, row: str) -> None:
    (tmp_path / "torch.py").touch()
    done = run_bench(tmp_path, misbehaviour=misbehaviour)
    assert done.returncode == 1
    assert verdicts(done.stdout)[row] == "**no**"


def test_a_failing_program_is_an_error_that_shows_what_it_said(tmp_path: Path) -> None:
    done = run_bench(tmp_path, misbehaviour="sys.exit('no such layout')")
    assert done.returncode == 2
    assert "no such layout" in done.stderr
    assert list((tmp_path / "work").iterdir()) == []


def test_a_part_written_alone_leaves_the_others() -> None:
    both = bench.document("", {"Parity": "| b |\n", "Conversion": "| a |\n"})
    assert both.index("## Conversion\n\n| a |") < both.index("## Parity\n\n| b |")
    again = bench.document(both, {"Parity": "| c |\n"})
    assert again == both.replace("| b |", "| c |")
    assert bench.document(again, {"Conversion": "| a |\n"}) == again


def test_what_no_part_writes_goes() -> None:
    old = "# Benchmarks\n\nold text\n\n## Elsewhere\n\nold\n"
    assert "old" not in bench.document(old, {"Conversion": "| a |\n"}).lower()


def test_all_parts_are_measured_unless_one_is_named() -> None:
    assert bench.parse([]).part == "all"
    assert bench.parse(["parity", "--threads", "1"]).part == "parity"
