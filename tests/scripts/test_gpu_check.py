"""scripts/gpu-check: what it asks for, said in one line."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.programs import shebang

ROOT = Path(__file__).parents[2]


def test_a_python_without_torch_is_refused_in_a_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"{shebang()}raise ModuleNotFoundError('No module named torch')\n")
    python.chmod(0o755)
    environment = {"DRAFTCONV_PYTHON": str(python), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([ROOT / "scripts/gpu-check"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"{python} cannot run it (ModuleNotFoundError: No module named torch): DRAFTCONV_PYTHON names another Python\n"
    )
