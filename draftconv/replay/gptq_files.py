"""What GPTQ has computed so far, in files: a run that was stopped goes on with them, and memory holds one input's."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from draftconv.checkpoint import encode_header
from draftconv.checkpoint.files import LocalFile
from draftconv.checkpoint.headers import HeaderEntry, SafetensorsHeader, read_header
from draftconv.quantization.exclusions import WEIGHT
from draftconv.quantization.formats.module_tensors import SPELLED
from draftconv.quantization.second_moments import SecondMoment
from draftconv.reference.load import to_torch
from draftconv.replay.calibration import Inputs
from draftconv.replay.first_steps import SeenInputs
from draftconv.traces.states import raw

WEIGHT_FILE = "weight-"


@dataclass(frozen=True, slots=True)
class WeightRecord:
    """How a weight was rounded, for the record.

    Attributes:
        damping: None where rounding to nearest was better on the requests that were held out.
        rows: of its inputs that the second moment holds. `inputs`: of a row of the weight.
        error: of its outputs on held-out rows, in parts of the outputs. `nearest`: that of rounding to nearest.
    """

    damping: float | None
    rows: int
    inputs: int
    error: float
    nearest: float

    @property
    def rows_per_input(self) -> float:
        return self.rows / self.inputs


@dataclass(frozen=True, slots=True)
class GptqFiles:
    """The files of one calibration. Each appears whole or not at all.

    Attributes:
        besides: directories of others, whose rounded weights are taken for this one's.
    """

    directory: Path
    besides: tuple[Path, ...] = ()

    def save_inputs(self, module: str, seen: SeenInputs, requests: int) -> None:
        """Keep what a module was fed by the first so many requests.

        Raises:
            OSError: the file system refuses.
        """
        held = seen.held
        self._save(
            f"inputs-{module}",
            {
                "moment": seen.moment.sum_II,
                "diagonal": seen.moment.sum_II.diagonal(),
                "waiting": seen.moment.waiting(),
                "held": held.rows_NI,
            },
            {"requests": requests, "rows": seen.moment.rows, "stride": held.stride, "seen": held.seen},
        )

    def load_inputs(self, module: str, device: torch.device) -> tuple[SeenInputs, int] | None:
        """What was kept of a module, and of how many requests."""
        header = self._header(f"inputs-{module}")
        if header is None:
            return None
        tensors, kept = header.tensors, {name: int(value) for name, value in header.metadata.items()}
        moment = SecondMoment(to_torch(tensors["moment"]).to(device), kept["rows"])
        moment.add(to_torch(tensors["waiting"]))
        held_NI = to_torch(tensors["held"])
        held = Inputs(torch.zeros(held_NI.shape[1]), held_NI, kept["stride"], kept["seen"])
        return SeenInputs(moment, held), kept["requests"]

    def load_summary(self, module: str) -> tuple[Tensor, Tensor, int]:
        """Of complete inputs the diagonal of the second moment, the held-out rows, and the rows of the moment."""
        header = self._opened(f"inputs-{module}")
        return to_torch(header.tensors["diagonal"]), to_torch(header.tensors["held"]), int(header.metadata["rows"])

    def ordered_moment(self, module: str, order_I: Tensor, device: torch.device) -> Tensor:
        """The second moment, complete, of inputs in some order, a tensor of its own: [I, I]."""
        ref = self._opened(f"inputs-{module}").tensors["moment"]
        ordered_II = torch.empty(ref.shape, device=device)
        here_I = order_I.cpu()
        for position, number in enumerate(here_I.tolist()):
            ordered_II[position] = to_torch(ref.row_range(number, number + 1))[0][here_I]
        return ordered_II

    def forget_inputs(self, module: str) -> None:
        """They are not needed any longer."""
        self._path(f"inputs-{module}").unlink(missing_ok=True)

    def save_weight(self, name: str, qvalues_OI: Tensor, record: WeightRecord) -> None:
        """Keep a rounded weight.

        Raises:
            OSError: the file system refuses.
        """
        told = {
            "damping": record.damping or 0.0,
            "rows": record.rows,
            "inputs": record.inputs,
            "error": record.error,
            "nearest": record.nearest,
        }
        self._save(f"{WEIGHT_FILE}{name.removesuffix(WEIGHT)}", {"qvalues": qvalues_OI}, told)

    def record(self, name: str) -> WeightRecord | None:
        """How a weight was rounded; None when it was not yet."""
        header = self._header(f"{WEIGHT_FILE}{name.removesuffix(WEIGHT)}")
        if header is None:
            return None
        told = {key: float(value) for key, value in header.metadata.items()}
        return WeightRecord(
            told["damping"] or None, int(told["rows"]), int(told["inputs"]), told["error"], told["nearest"]
        )

    def qvalues(self, name: str) -> Tensor:
        """The rounded weight: int8 [O, I]."""
        ref = self._opened(f"{WEIGHT_FILE}{name.removesuffix(WEIGHT)}").tensors["qvalues"]
        qvalues_OI = torch.empty(ref.shape, dtype=torch.int8)
        ref.file.readinto(ref.offset, raw(qvalues_OI))
        return qvalues_OI

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.safetensors"

    def _header(self, name: str) -> SafetensorsHeader | None:
        return self._opened(name) if self._found(name).exists() else None

    def _opened(self, name: str) -> SafetensorsHeader:
        return read_header(LocalFile(self._found(name)))

    def _found(self, name: str) -> Path:
        """Where it is to be read: inputs are this calibration's own."""
        mine = self._path(name)
        others = self.besides if name.startswith(WEIGHT_FILE) else ()
        return next((path for directory in others if (path := directory / mine.name).exists()), mine)

    def _save(self, name: str, tensors: Mapping[str, Tensor], told: Mapping[str, float]) -> None:
        entries: list[HeaderEntry] = []
        for key, tensor in tensors.items():
            start = entries[-1].stop if entries else 0
            size = math.prod(tensor.shape) * tensor.dtype.itemsize
            entries.append(HeaderEntry(key, SPELLED[tensor.dtype], tuple(tensor.shape), start, start + size))
        path = self._path(name)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            file.write(encode_header(entries, {key: repr(value) for key, value in told.items()}))
            for tensor in filter(Tensor.numel, tensors.values()):
                file.write(raw(tensor))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
