"""What vLLM makes of a drafter that has a problem, by its code, in words that go on from the engine's title."""

from __future__ import annotations

from collections.abc import Mapping

PROBLEMS: Mapping[str, str] = {
    "d2t-range": "scatters logits at these ids and reads out of bounds",
    "d2t-missing": "loads it silently with an all-zero map and acceptance collapses (run)",
    "d2t-on-full-vocab": "refuses it (no parameter draft_id_to_target_id)",
    "norm-without-flag": "stops on fc_norm and ignores input_norm",
    "flag-without-norm": "runs with weights of one, silently (run)",
    "both-fusion-norms": "applies both in sequence",
    "feedback-contradiction": "reads norm_output",
    "tensor-missing": "runs on uninitialised memory or weights of one",
    "tensor-unexpected": "stops on them",
    "tensor-stale": "stops on verifier_* tensors",
    "joined-weight-scales": "multiplies all of them under the largest, so the others come out too large",
    "joined-input-scales": "rounds them under the largest",
    "name-prefix": "prepends model. itself and stops",
    "embedding-differs": "keeps the drafter's own",
    "embedding-random": "keeps the drafter's own where it is stored",
    "rope-injected": "multiplies cos and sin by 0.1 ln(factor) + 1 and rescales the frequencies",
    "rope-attention-factor": "takes it literally (and drops the MLA softmax factor at exactly 1.0)",
    "positions-short": "caps or overruns the rotary cache beyond it",
    "model-type-mtp": "rewrites it, looks for Eagle3DeepSeekMTPModel and stops (run)",
    "routed-experts-null": "cannot read the config then",
    "vocab-target": "loads it silently and breaks at run time",
}
