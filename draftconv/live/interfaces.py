"""The engines that parity can ask, by the name of `--for`."""

from __future__ import annotations

from collections.abc import Mapping

from draftconv.live import sglang, trtllm, vllm
from draftconv.live.client import Interface

INTERFACES: Mapping[str, Interface] = {"vllm": vllm.INTERFACE, "sglang": sglang.INTERFACE, "trtllm": trtllm.INTERFACE}
