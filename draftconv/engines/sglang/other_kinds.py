"""Drafters that are not EAGLE-3, and the `--speculative-algorithm` that SGLang serves them with."""

from __future__ import annotations

from draftconv.engines.other_kinds import OtherKind

_NAMES = "srt/speculative/spec_info.py, 0.5.23"

OTHER_KINDS = {
    "dflash": OtherKind("--speculative-algorithm DFLASH", f"srt/models/dflash.py and {_NAMES}"),
    "dflash2": OtherKind("--speculative-algorithm DFLASH", f"srt/models/dflash.py and {_NAMES}"),
    "domino": OtherKind("--speculative-algorithm DFLASH", f"srt/models/dflash.py and {_NAMES}"),
    "dspark": OtherKind("--speculative-algorithm DSPARK", f"srt/models/dspark.py and {_NAMES}"),
    "eagle": OtherKind("--speculative-algorithm EAGLE", f"srt/models/llama_eagle.py and {_NAMES}"),
    "mtp": OtherKind("--speculative-algorithm NEXTN", "srt/speculative/spec_registry.py, 0.5.23"),
}
