"""Spellings for engines, and the one that all of them read rightly."""

from __future__ import annotations

from typing import Literal

from draftconv.drafter.boundaries import IDS, trtllm_ids, vllm_ids
from draftconv.drafter.facts import Gqa
from draftconv.layouts import MARK
from draftconv.layouts.base import Clue, IdChoice, Layout, ProducerIds, Refusal, Spelling, Writer, Writing
from draftconv.layouts.clues import BARE
from draftconv.layouts.emit import eagle_section, explicit_config, nested_ids, nested_ids_if_any, top_ids
from draftconv.layouts.limits import lacks

_VLLM = "serve this drafter with vLLM"
_VLLM_OR_TRT = "serve this drafter with vLLM or TensorRT-LLM"

VLLM_IDS = ProducerIds("vllm", "before", True, "vLLM 0.33.0: ids are used as they are")
SGLANG_IDS = ProducerIds("sglang", None, True, "SGLang 0.5.23: depends on the target family", served=True)
TRTLLM_IDS = ProducerIds("trtllm", None, True, "TensorRT-LLM keeps the ids in the serve YAML")

VLLM_LIMITS: tuple[Refusal, ...] = (
    *lacks(
        "vLLM",
        "serve this drafter with SGLang or TensorRT-LLM",
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
        "no engine serves it; retrain with full attention",
    ),
)
SGLANG_LIMITS: tuple[Refusal, ...] = (
    *lacks("SGLang", _VLLM, "both-fusions", "activation", "norm_before_residual", "lone-fc-bias", "qk-norm"),
    *lacks("SGLang", _VLLM, "mla-plain-query", "mla-norm_before_fc", "mla-layers"),
    *lacks("SGLang", _VLLM_OR_TRT, "qkv-bias", "mlp-bias"),
    *lacks("SGLang", "serve a Qwen3-style drafter with vLLM", "window"),
)
TRTLLM_LIMITS: tuple[Refusal, ...] = (
    *lacks(
        "TensorRT-LLM",
        _VLLM,
        "both-fusions",
        "activation",
        "norm_before_residual",
        "qk-norm",
        "lone-o-bias",
        "mla-plain-query",
        "mla-half-split",
        "mla-norm_before_fc",
    ),
    *lacks("TensorRT-LLM", "serve this drafter with vLLM or SGLang", "mla-reduced"),
    *lacks("TensorRT-LLM", "serve a Qwen3-style drafter with vLLM", "window"),
)


def _vllm_config(writing: Writing) -> dict[str, object]:
    if writing.boundaries is not None:
        vllm_ids(writing.boundaries, writing.target.family if writing.target else None)
    nested = nested_ids_if_any(writing)
    return explicit_config(writing) | top_ids(writing) | {"eagle_config": eagle_section(writing.facts) | nested}


def _sglang_config(writing: Writing) -> dict[str, object]:
    nested = nested_ids(writing)
    config = explicit_config(writing) | top_ids(writing) | {"eagle_config": eagle_section(writing.facts) | nested}
    # The one null that is written: it makes SGLang share the target's head (llama_eagle3.py, 0.5.23).
    return config if writing.facts.own_head else config | {"draft_vocab_size": None}


def _trtllm_config(writing: Writing) -> dict[str, object]:
    if writing.boundaries is not None:
        trtllm_ids(writing.boundaries)
    nested = nested_ids_if_any(writing)
    eagle = eagle_section(writing.facts) | nested
    if writing.facts.layers > 1:
        eagle["next_layer_regular"] = True
    return explicit_config(writing) | top_ids(writing) | {"eagle_config": eagle}


def _portable_config(writing: Writing) -> dict[str, object]:
    _vllm_config(writing)
    config = _trtllm_config(writing) | _sglang_config(writing)
    if not writing.facts.own_head:
        # Absent means the target's head to SGLang's MLA class, and vocab_size to the others.
        del config["draft_vocab_size"]
    return config


def _engine(
    name: str,
    title: str,
    writer: Writer,
    source: str,
    *,
    ids: ProducerIds = VLLM_IDS,
    ids_at: Literal["top", "nested"] = "top",
    unmarked: tuple[Clue, ...] | None = None,
) -> Layout:
    """All four keep boundaries at the top level, so what draftconv wrote it can read alone.

    Other ids are not draftconv's (`--from` named the layout): `ids` says by whose rule they count then.
    """
    return Layout(
        name,
        title,
        0,
        "certain",
        None,
        IdChoice(
            tuple(dict.fromkeys((VLLM_IDS, ids))),
            lambda e: VLLM_IDS if e.config.has(MARK if ids_at == "nested" else IDS) else ids,
        ),
        source,
        writer=writer,
        ids_at=ids_at,
        unmarked=unmarked,
    )


_SEVERAL = Refusal(
    lambda f: f.layers > 1,
    "no one spelling of a drafter with several layers suits every engine",
    "layers ≥ 1 call their norm input_layernorm for vLLM and hidden_norm for SGLang and TensorRT-LLM",
    "convert to one engine",
)
_BIASED_O = Refusal(
    lambda f: isinstance(f.attention, Gqa) and f.attention.o_bias,
    "attention_bias means o_proj alone to SGLang and q, k, v and o to vLLM and TensorRT-LLM",
    "one config.json cannot say both",
    "convert to one engine",
)
_LENT_HEAD = Refusal(
    lambda f: isinstance(f.attention, Gqa) and not f.own_head,
    "SGLang shares the target's head when draft_vocab_size is null, which TensorRT-LLM is not known to take",
    "a Llama-style drafter without lm_head has no spelling that all engines read",
    "convert to one engine",
)


def _union(*tables: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
    return tuple({refusal.what: refusal for table in tables for refusal in table}.values())


LAYOUTS = (
    _engine(
        "vllm",
        "vLLM",
        Writer(Spelling(o_bias=True), _vllm_config, VLLM_LIMITS, serves=("vllm",)),
        "vLLM 0.33.0 model_executor/models/{llama,qwen3,deepseek}_eagle3.py",
        unmarked=(BARE,),  # many a config was corrected by hand until vLLM served it rightly
    ),
    _engine(
        "sglang",
        "SGLang",
        Writer(Spelling(later_norm="hidden_norm"), _sglang_config, SGLANG_LIMITS, serves=("sglang",)),
        "SGLang 0.5.23 srt/models/{llama_eagle3,kimi_k25_eagle3}.py",
        ids=SGLANG_IDS,
        ids_at="nested",
    ),
    _engine(
        "trtllm",
        "TensorRT-LLM",
        Writer(
            Spelling(
                first="midlayer.{i}.",
                later="midlayer.{i}.",
                alone="midlayer.",
                later_norm="hidden_norm",
                o_bias=True,
            ),
            _trtllm_config,
            TRTLLM_LIMITS,
            serves=("trtllm",),
        ),
        "TensorRT-LLM 1.3.0rc (00679c66), _torch/models/modeling_speculative.py",
        ids=TRTLLM_IDS,
    ),
    _engine(
        "portable",
        "portable",
        Writer(
            Spelling(),
            _portable_config,
            _union((_SEVERAL, _BIASED_O, _LENT_HEAD), VLLM_LIMITS, SGLANG_LIMITS, TRTLLM_LIMITS),
            serves=("vllm", "sglang", "trtllm"),
        ),
        "the one spelling that vLLM, SGLang and TensorRT-LLM read alike",
        ids=SGLANG_IDS,
    ),
)
