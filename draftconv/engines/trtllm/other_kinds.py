"""Drafters that are not EAGLE-3, and the `decoding_type` that TensorRT-LLM serves them with."""

from __future__ import annotations

from draftconv.engines.other_kinds import OtherKind

_MODES = "_torch/speculative/interface.py, main at 00b6d5a2"

OTHER_KINDS = {
    "dflash": OtherKind("decoding_type: DFlash", "DFlashDecodingConfig of the 1.4.0rc1 API reference"),
    "dspark": OtherKind("decoding_type: DSpark", "DSparkDecodingConfig of the 1.4.0rc1 API reference"),
    "mtp": OtherKind("decoding_type: MTP", _MODES, "inferred"),
}
