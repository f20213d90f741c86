"""llama.cpp: what it makes of an EAGLE-3 drafter, which is read and never run here.

Two programs stand between a directory and a draft. The converter, `convert_hf_to_gguf.py DRAFTER --target-model-dir
TARGET`, writes a GGUF file and stops at names that it does not know; the runtime, `llama-server -m TARGET.gguf -md
DRAFTER.gguf --spec-type draft-eagle3`, builds one graph of that file. Each rule says which of the two it is about.
Versions are build numbers, `10547` of the tag b10547. draftconv writes no GGUF file: the engine is judged where it is
named, and is no reader that other commands have in mind.
"""

from __future__ import annotations

from draftconv.drafter.kinds import eagle3, eagle31
from draftconv.engines.engine import UNQUANTIZED, Engine
from draftconv.engines.llamacpp import misreadings, notes, refusals
from draftconv.engines.llamacpp.loading import read

RULES = (*refusals.RULES, *misreadings.RULES, *notes.RULES)

ENGINE = Engine(
    name="llamacpp",
    title="llama.cpp",
    order=40,
    version="10547",
    oldest="9795",
    hardware=(),
    rules=RULES,
    read=read,
    kinds=(eagle3.KIND, eagle31.KIND),
    covers=(UNQUANTIZED,),
    only_named=True,
)
