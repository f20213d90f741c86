"""Checkpoints that SGLang loads, mis-reads or refuses: what vLLM is asked, in SGLang's layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from truth.cases import Case
from truth.sglang import mutations
from truth.vllm import loader_cases

MUTATED = frozenset(case.name for case in mutations.CASES)

LEFT_OUT = frozenset({"llama-mlp-biased: mlp_bias without biases", "llama-eagle3: MXFP4"})
"""Cases whose truth is what vLLM makes of them: here nothing is built for what is neither stored nor known, and
quantized weights are asked about on the platforms that have kernels for them."""

NOTES: Mapping[str, str] = {
    "llama-eagle3: norm switches of ModelOpt turned": "sglang-norm-switches",
    "llama-eagle3: trained with a double norm": "sglang-double-norm",
    "llama-eagle3: a verifier's head left over": "sglang-ignored",
    "mla-eagle3: input_norm": "sglang-ignored",
}
"""Case → the note that has to speak of it here; what it says is what the comparison of the two steps shows."""

SHARED: tuple[Case, ...] = tuple(
    replace(case, rules=(NOTES[case.name],) if case.name in NOTES else (), says="", run=False)
    for case in loader_cases.CASES
    if "@" not in case.base and case.name not in LEFT_OUT | MUTATED
)
"""What vLLM's table asks of unquantized drafters; the rules and words of its refusals are vLLM's own."""
