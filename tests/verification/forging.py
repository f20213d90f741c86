"""What an attacker does, or an accident: an output is changed, and its record is made to fit again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from draftconv.checkpoint import open_checkpoint
from draftconv.checkpoint.hashing import tensor_hash
from draftconv.conversion.provenance import output_digest, read_provenance
from draftconv.layouts.reader import read_drafter
from tests import tiny
from tests.tiny import Tensor


def sealed(out: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
    """Change the record, hash everything anew, and give it the digest that makes it belong."""
    path = out / "draftconv.json"
    record = json.loads(path.read_text())
    change(record)
    drafter = read_drafter(open_checkpoint(out))
    every = {**drafter.tensors, **drafter.qparams}
    record["made"] |= {change["what"]: tensor_hash(every[change["what"]])
                       for change in record["changes"] if change["what"] in every}  # fmt: skip
    for name, digest in record["files"].items():
        digest["size"] = (out / name).stat().st_size
        digest["sha256"] = None
    checkpoint = open_checkpoint(out)
    record["output"] = output_digest(checkpoint.tensors, checkpoint.config, record)
    path.write_text(json.dumps(record))
    assert read_provenance(open_checkpoint(out)) is not None


def declared(kind: str, what: str, why: str = "mended") -> Callable[[dict[str, Any]], None]:
    """The record with one more change."""
    return lambda record: record["changes"].append({"kind": kind, "what": what, "why": why})


def edited(out: Path, change: Callable[[dict[str, Any]], object], name: str = "config.json") -> None:
    config = json.loads((out / name).read_text())
    change(config)
    (out / name).write_text(json.dumps(config, indent=2))


def rewritten(out: Path, tensors: dict[str, Tensor]) -> None:
    """The same directory with other tensors, by the safetensors library."""
    with safe_open(out / "model.safetensors", "np") as opened:
        metadata = opened.metadata()
    save_file({name: tiny.to_torch(tensor) for name, tensor in tensors.items()}, out / "model.safetensors", metadata)


def zeroed(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    was = tensors[name]
    return tensors | {name: Tensor(was.dtype, was.shape, bytes(len(was.data)))}
