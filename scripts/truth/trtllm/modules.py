"""The modules that Eagle3ForCausalLM builds, in the order of named_modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from truth.trtllm.outcome import Parameter, RaisedError, Shape, State
from truth.trtllm.quantized import QuantConfig
from truth.trtllm.source import ATTENTION, MLA, SPECULATIVE, UTILS
from truth.trtllm.weights import TORCH, Linear, Plain

MAPPED = "d2t"
LATENT_KEYS = (
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "q_lora_rank",
    "kv_lora_rank",
    "v_head_dim",
    "num_key_value_heads",
)


@dataclass(frozen=True, slots=True)
class Model:
    """What is built of one config.

    Attributes:
        modules: those with parameters of their own. `latent`: parameters of MLA itself, which its loader makes of kv_b.
        fed: width of the captured states that fc takes; 0 without an fc.
    """

    attention: Literal["llama", "mla"]
    modules: tuple[Linear | Plain, ...]
    latent: tuple[str, ...]
    layers: int
    fed: int
    normed: Literal["plain", "fc_norm", "norm_before_fc"]
    post_norm: bool
    mapped: bool
    own_embedding: bool


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes modules of one config."""

    config: Mapping[str, Any]
    quant: QuantConfig
    dtype: str

    def linear(
        self, name: str, inputs: int, outputs: int, bias: object = False, parts: Mapping[str, int] | None = None
    ) -> Linear:
        """A Linear that takes the global quantization unless it, a parent or one of its parts is excluded."""
        parent = name.rpartition(".")[0]
        names = (name, *(f"{parent}.{part}" for part in parts or ()))
        method = "" if self.quant.excludes(*names) else self.quant.method
        return Linear(name, inputs, outputs, bool(bias), self.dtype, method, self.quant.group_size, parts or {})

    def norm(self, name: str, width: int) -> Plain:
        return Plain(name, (Parameter(f"{name}.weight", (width,), self.dtype, "initial"),))

    def plain(self, name: str, shape: Shape, kind: str, dtype: str, state: State = "uninitialised") -> Plain:
        return Plain(name, (Parameter(f"{name}.{kind}", shape, dtype, state),))


def build(config: Mapping[str, Any], quant: QuantConfig, captured: int, *, scaled_head: bool) -> Model:
    """Eagle3ForCausalLM of a config; `captured` states are fed, `scaled_head`: whether the file has a scale of it.

    Raises:
        RaisedError: it cannot be built.
    """
    where = SPECULATIVE.at("Eagle3DraftModel.__init__")
    dtype = TORCH[config["torch_dtype"] or "float32"]
    make = Builder(config, quant, dtype)
    eagle = config.get("eagle_config", {})
    if not isinstance(eagle, dict):
        raise RaisedError(f"eagle_config is {eagle!r}", where)
    draft_vocab = config.get("draft_vocab_size")
    draft_vocab = config["vocab_size"] if draft_vocab is None else draft_vocab
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    state = config.get("target_hidden_size", hidden)
    if not isinstance(state, int) or not isinstance(draft_vocab, int):
        raise RaisedError("target_hidden_size or draft_vocab_size is no number", where)
    # kv_lora_rank alone decides, and classes of DeepSeek have one whatever the file says
    latent = bool(config.get("kv_lora_rank"))
    before = bool(eagle.get("eh_proj_before_attn", False))
    whole, each = bool(eagle.get("norm_before_fc", False)), bool(config.get("fc_norm", False))

    modules: list[Linear | Plain] = []
    mapped = config["vocab_size"] != draft_vocab
    if mapped:
        modules.append(make.plain("model", (draft_vocab,), MAPPED, "I32"))
    if captured > 1:
        modules.append(make.linear("model.fc", state * captured, hidden, config.get("bias", False)))
    if whole:
        modules.append(make.norm("model.input_norm", state * captured))
    if each:
        modules += [make.norm(f"model.fc_norm.{i}", state) for i in range(captured)]
    own: list[str] = []
    for layer in range(layers):
        prefix = f"model.midlayer.{layer}" if layers > 1 else "model.midlayer"
        regular = (bool(eagle.get("next_layer_regular", True)) and layer > 0) or before
        width = hidden if regular else 2 * hidden
        modules += (_latent if latent else _attention)(make, f"{prefix}.self_attn", width)
        own += [f"{prefix}.self_attn.{name}" for name in ("v_b_proj", "k_b_proj_trans")] if latent else []
        modules += _mlp(make, f"{prefix}.mlp")
        norms = ("hidden_norm", "post_attention_layernorm")
        modules += [
            make.norm(f"{prefix}.{name}", hidden) for name in (norms if regular else ("input_layernorm", *norms))
        ]
    modules.append(make.norm("model.norm", hidden))
    if before:
        modules.append(make.norm("model.enorm", hidden))
        joined = [Parameter("model.eh_proj.weight", (hidden, 2 * hidden), dtype, "uninitialised")]
        if eagle.get("eh_proj_bias", False):
            joined.append(Parameter("model.eh_proj.bias", (hidden,), dtype, "uninitialised"))
        modules.append(Plain("model.eh_proj", tuple(joined)))
    own_embedding = state != hidden
    if own_embedding:
        modules.append(Linear("model.embed_tokens", hidden, config["vocab_size"], False, dtype))
    if config.get("tie_word_embeddings", False):
        # lm_head asks the embedding for its parallel size: there is none, or one of another width
        raise RaisedError(
            "tie_word_embeddings: the drafter has no embedding to tie to", UTILS.at("DecoderModelForCausalLM.__init__")
        )
    quantized_head = scaled_head and quant.algorithm is not None and not quant.excludes("lm_head")
    head = make.linear("lm_head", hidden, draft_vocab)
    modules.append(
        Linear(
            head.name, head.inputs, head.outputs, False, dtype, head.method if quantized_head else "", quant.group_size
        )
    )
    for module in modules:
        _ = tuple(module.created() if isinstance(module, Linear) else module.created)
    return Model(
        attention="mla" if latent else "llama",
        modules=tuple(modules),
        latent=tuple(own),
        layers=layers,
        fed=state * captured if captured > 1 else 0,
        # apply_eagle3_fc asks fc_norm first
        normed="fc_norm" if each else "norm_before_fc" if whole else "plain",
        post_norm=bool(eagle.get("return_hidden_post_norm", False) or config.get("norm_output", False)),
        mapped=mapped,
        own_embedding=own_embedding,
    )


def _attention(make: Builder, name: str, width: int) -> list[Linear | Plain]:
    config = make.config
    if "attention_bias" not in config:
        raise RaisedError("the config has no attention_bias", SPECULATIVE.at("Eagle3Attention.__init__"))
    heads, kv_heads, head_dim = config["num_attention_heads"], config["num_key_value_heads"], config.get("head_dim")
    if not isinstance(head_dim, int):
        head_dim = config["hidden_size"] // heads
    if not kv_heads:
        raise RaisedError("no key heads", ATTENTION.at("Attention.__init__"))
    rows = {"q_proj": heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim}
    bias = config["attention_bias"]
    return [
        make.linear(f"{name}.qkv_proj", width, sum(rows.values()), bias, rows),
        make.linear(f"{name}.o_proj", heads * head_dim, config["hidden_size"], bias),
    ]


def _latent(make: Builder, name: str, width: int) -> list[Linear | Plain]:
    config = make.config
    for key in LATENT_KEYS:
        if key not in config or (config[key] is None and key != "q_lora_rank"):
            raise RaisedError(f"the config has no {key}", SPECULATIVE.at("Eagle3MLAttention.__init__"))
    rope, nope, query, latent, value, kv_heads = (config[key] for key in LATENT_KEYS)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    if not kv_heads:
        raise RaisedError("no key heads", MLA.at("MLA.__init__"))
    lite = query is None
    # An uncompressed query counts as one of the width of the state, which the first layer's override keeps.
    query = hidden if lite else query
    rows = latent + rope + (0 if lite and width == hidden else query)
    modules: list[Linear | Plain] = [make.linear(f"{name}.kv_a_proj_with_mqa", width, rows)]
    if lite:
        modules.append(make.linear(f"{name}.q_proj", hidden, heads * (nope + rope)))
    else:
        modules.append(make.norm(f"{name}.q_a_layernorm", query))
        modules.append(make.linear(f"{name}.q_b_proj", query, heads * (nope + rope)))
    modules += [
        make.norm(f"{name}.kv_a_layernorm", latent),
        make.linear(f"{name}.kv_b_proj", latent, heads * (nope + value)),
        make.linear(f"{name}.o_proj", kv_heads * value, hidden),
    ]
    return modules


def _mlp(make: Builder, name: str) -> list[Linear | Plain]:
    config = make.config
    key = "intermediate_size_mlp" if config["model_type"] == "llama4_text" else "intermediate_size"
    if config.get(key) is None:
        raise RaisedError(f"the config has no {key}", SPECULATIVE.at("Eagle3DecoderLayer.__init__"))
    size, hidden, bias = config[key], config["hidden_size"], config.get("mlp_bias", False)
    return [
        make.linear(f"{name}.gate_up_proj", hidden, 2 * size, bias, {"gate_proj": size, "up_proj": size}),
        make.linear(f"{name}.down_proj", size, hidden, bias),
    ]
