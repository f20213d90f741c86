"""python -m truth.sglang.serving PYTHON: prints a program for `--engine-python`, SGLang's server on a CPU."""

import sys
from pathlib import Path

from truth.sglang.serving import launcher

if len(sys.argv) != 2:
    sys.exit(__doc__)
print(launcher(Path(sys.argv[1]).absolute()), end="")
