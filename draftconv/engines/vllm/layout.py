"""How a drafter is written for vLLM."""

from __future__ import annotations

from draftconv.drafter.facts import Gqa
from draftconv.engines.layout import engine_config, engine_layout
from draftconv.engines.vllm.aux_layers import spelled
from draftconv.layouts.base import Refusal, Spelling, Writer, Writing
from draftconv.layouts.clues import BARE
from draftconv.layouts.config_json import nested_ids_if_any
from draftconv.layouts.limits import lacks

LIMITS: tuple[Refusal, ...] = (
    *lacks(
        "vLLM",
        "both-fusions",
        "activation",
        "mla-plain-query",
        "mla-half-split",
        "mla-norm_before_fc",
        "lone-o-bias",
        "fc-bias",
    ),
    Refusal(
        lambda f: f.window is not None and not (isinstance(f.attention, Gqa) and f.attention.qk_norm),
        "vLLM has a sliding window only in its Qwen3 drafter",
        "llama_eagle3.py and deepseek_eagle3.py attend to the whole context (0.33.0)",
    ),
)


def _config(writing: Writing) -> dict[str, object]:
    if writing.boundaries is not None:
        spelled(writing.boundaries, writing.target.family if writing.target else None)
    return engine_config(writing, nested_ids_if_any(writing))


LAYOUTS = (
    engine_layout(
        "vllm",
        "vLLM",
        Writer(Spelling(o_bias=True), _config, LIMITS, serves=("vllm",)),
        "vLLM 0.33.0 model_executor/models/{llama,qwen3,deepseek}_eagle3.py",
        unmarked=(BARE,),  # many a config was corrected by hand until vLLM served it rightly
    ),
)
