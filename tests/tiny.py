"""Tiny random drafters in every variant, spelled as each producer really spells them.

    VARIANTS["mla-3.1"]                        what a drafter is: `Facts`, vocabulary, dtype
    build(variant)                             canonical tensors; bits depend on seed and name only
    spell(variant, "torchspec-vllm")           a producer's names, maps, config keys and metadata
    spell(...).write(path, shards=2)           the directory, by the safetensors library or torch.save
    spell(...).facts                           what a reader must find in it

Nothing here uses draftconv's tables or writers: names, shapes, config keys and layer-id
conventions are literals of this module, so that two independent tables have to agree.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file

from draftconv.drafter.facts import AuxLayers, Facts, Gqa, Mla, Rope, VocabOrder

LAYERS = 8
"""Decoder layers of the imaginary target; its default boundaries are (2, 4, 5)."""

VOCAB = 160
DEFAULT = (2, LAYERS // 2, LAYERS - 3)

TORCH = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "I64": torch.int64,
    "I32": torch.int32,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
}
NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "mixed": "float16"}

# Legal values that a careless copy damages: -0.0, the smallest subnormals, the largest finite numbers.
AWKWARD = {
    "BF16": (0x8000, 0x0001, 0x8001, 0x7F7F, 0xFF7F),
    "F16": (0x8000, 0x0001, 0x8001, 0x7BFF, 0xFBFF),
    "F32": (0x8000_0000, 0x0000_0001, 0x8000_0001, 0x7F7F_FFFF, 0xFF7F_FFFF),
}
BITS: dict[str, np.dtype[Any]] = {"BF16": np.dtype("<u2"), "F16": np.dtype("<u2"), "F32": np.dtype("<u4")}


class Tensor(NamedTuple):
    """Bytes of a dense little-endian tensor."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def numpy(self) -> np.ndarray[Any, Any]:
        """Its values, widened exactly to float32 when they are floats."""
        match self.dtype:
            case "BF16":
                bits = np.frombuffer(self.data, "<u2").astype("<u4") << np.uint32(16)
                return bits.view("<f4").reshape(self.shape)
            case "F16":
                return np.frombuffer(self.data, "<f2").astype("<f4").reshape(self.shape)
            case _:
                kinds = {"F32": "<f4", "I64": "<i8", "I32": "<i4", "BOOL": "?", "U8": "u1", "I8": "i1"}
                return np.frombuffer(self.data, kinds[self.dtype]).reshape(self.shape)


@dataclass(frozen=True)
class Variant:
    """One drafter as trained.

    Attributes:
        facts: with the embedding and head that training held; a layout may store fewer.
        ids: target id of each draft token; None for the whole vocabulary.
        dtype: of the float tensors; `mixed` is a BF16 embedding among F16 tensors.
        awkward: put extreme bit patterns into fc and lm_head (not for forward passes).
    """

    name: str
    facts: Facts
    ids: tuple[int, ...] | None = None
    dtype: Literal["BF16", "F16", "F32", "mixed"] = "BF16"
    seed: int = 0
    awkward: bool = True


# ── variants ───────────────────────────────────────────────────────────────────────

YARN = MappingProxyType({"factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
                         "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0})  # fmt: skip
LLAMA3 = MappingProxyType({"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                           "original_max_position_embeddings": 8192})  # fmt: skip

ASCENDING = tuple(sorted({0, 1, 2, 5, *range(7, 29), 31, 37, *range(64, 81), 99, 100, 130, VOCAB - 1}))
FREQUENCY = tuple(np.random.default_rng(7).permutation(np.array(ASCENDING)).tolist())

BASE = Facts(
    attention=Gqa(heads=4, kv_heads=2, head_dim=16),
    layers=1,
    hidden=64,
    target_hidden=64,
    intermediate=96,
    vocab=VOCAB,
    draft_vocab=VOCAB,
    aux=3,
    boundaries=DEFAULT,
    rope=Rope(50000.0, "halves"),
    eps=1e-6,
    max_positions=32768,
)
LATENT_SHAPE = Mla(heads=4, q_lora=24, kv_lora=32, nope=16, rope=8, v=12)
LATENT = replace(
    BASE,
    attention=LATENT_SHAPE,
    rope=Rope(50000.0, "interleaved", "yarn", YARN),
    eps=1e-5,
)


def gqa(**changes: Any) -> Gqa:
    return Gqa(**{"heads": 4, "kv_heads": 2, "head_dim": 16} | changes)


def reduced(facts: Facts, ids: tuple[int, ...], order: VocabOrder) -> dict[str, Any]:
    return {"facts": replace(facts, draft_vocab=len(ids), vocab_order=order), "ids": ids}


VARIANTS: Mapping[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("llama", BASE),
        Variant("mha", replace(BASE, attention=gqa(kv_heads=4))),
        Variant("head-dim", replace(BASE, attention=gqa(head_dim=24))),
        Variant("bias", replace(BASE, attention=gqa(qkv_bias=True, o_bias=True))),
        Variant("qkv-bias", replace(BASE, attention=gqa(qkv_bias=True))),
        Variant("every-bias", replace(BASE, attention=gqa(qkv_bias=True, o_bias=True), mlp_bias=True, layers=2)),
        Variant("qk-norm", replace(BASE, attention=gqa(qk_norm=True, head_dim=24))),
        Variant("two-layers", replace(BASE, layers=2)),
        Variant("three-layers-qk-norm", replace(BASE, layers=3, attention=gqa(qk_norm=True))),
        Variant("norm-before-fc", replace(BASE, fusion="norm_before_fc")),
        Variant("norm-before-residual", replace(BASE, norm_before_residual=True)),
        Variant("wide-target", replace(BASE, target_hidden=96)),
        Variant("four-aux", replace(BASE, aux=4, boundaries=(2, 4, 5, 7))),
        Variant("last-boundary", replace(BASE, boundaries=(2, 4, LAYERS))),
        Variant("3.1", replace(BASE, fusion="fc_norm", feedback="post-norm")),
        Variant("3.1-wide", replace(BASE, fusion="fc_norm", feedback="post-norm", target_hidden=96, aux=4,
                                    boundaries=(2, 4, 5, 7))),
        Variant("fc-norm", replace(BASE, fusion="fc_norm")),
        Variant("post-norm", replace(BASE, feedback="post-norm")),
        Variant("mlp-bias", replace(BASE, mlp_bias=True)),
        Variant("fc-bias", replace(BASE, fc_bias=True)),
        Variant("window", replace(BASE, attention=gqa(qk_norm=True), window=32)),
        Variant("yarn", replace(BASE, rope=Rope(50000.0, "halves", "yarn", YARN))),
        Variant("llama3-rope", replace(BASE, rope=Rope(500000.0, "halves", "llama3", LLAMA3))),
        Variant("plain-rope", replace(BASE, rope=Rope(10000.0, "halves"))),
        Variant("reduced", **reduced(BASE, ASCENDING, "ascending")),
        Variant("frequency", **reduced(BASE, FREQUENCY, "unordered")),
        Variant("reduced-plain-rope", **reduced(replace(BASE, rope=Rope(10000.0, "halves")), ASCENDING, "ascending"),
                dtype="F16"),
        Variant("f16", BASE, dtype="F16"),
        Variant("f32", BASE, dtype="F32"),
        Variant("mixed", BASE, dtype="mixed"),
        Variant("mla", LATENT),
        Variant("mla-plain-q", replace(LATENT, attention=replace(LATENT_SHAPE, q_lora=None))),
        Variant("mla-3.1", replace(LATENT, fusion="fc_norm", feedback="post-norm")),
        Variant("mla-four-aux", replace(LATENT, aux=4, boundaries=(2, 4, 5, 7))),
        Variant("mla-reduced", **reduced(LATENT, ASCENDING, "ascending")),
        Variant("mla-frequency", **reduced(LATENT, FREQUENCY, "unordered")),
    )
}  # fmt: skip


# ── tensors ────────────────────────────────────────────────────────────────────────


def shapes(facts: Facts) -> dict[str, tuple[int, ...]]:
    """Canonical float tensors (producers.md, sections 2.1 and 2.2)."""
    h, i = facts.hidden, facts.intermediate
    found: dict[str, tuple[int, ...]] = {
        "fc.weight": (h, facts.aux * facts.target_hidden),
        "norm.weight": (h,),
    }
    if facts.own_embedding:
        found["embed_tokens.weight"] = (facts.vocab, h)
    if facts.own_head:
        found["lm_head.weight"] = (facts.draft_vocab, h)
    if facts.fc_bias:
        found["fc.bias"] = (h,)
    if facts.fusion in ("fc_norm", "both"):
        found |= {f"fc_norm.{a}.weight": (facts.target_hidden,) for a in range(facts.aux)}
    if facts.fusion in ("norm_before_fc", "both"):
        found["input_norm.weight"] = (facts.aux * facts.target_hidden,)
    for n in range(facts.layers):
        wide = 2 * h if n == 0 else h
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (h,),
            "post_attention_layernorm.weight": (h,),
            "mlp.gate_proj.weight": (i, h),
            "mlp.up_proj.weight": (i, h),
            "mlp.down_proj.weight": (h, i),
        }
        if n == 0:
            layer["hidden_norm.weight"] = (h,)
        if facts.mlp_bias:
            layer |= {"mlp.gate_proj.bias": (i,), "mlp.up_proj.bias": (i,), "mlp.down_proj.bias": (h,)}
        match facts.attention:
            case Gqa(heads, kv, d, qkv_bias, o_bias, qk_norm):
                rows = {"q": heads * d, "k": kv * d, "v": kv * d}
                layer |= {f"self_attn.{p}_proj.weight": (out, wide) for p, out in rows.items()}
                layer["self_attn.o_proj.weight"] = (h, heads * d)
                if qkv_bias:
                    layer |= {f"self_attn.{p}_proj.bias": (out,) for p, out in rows.items()}
                if o_bias:
                    layer["self_attn.o_proj.bias"] = (h,)
                if qk_norm:
                    layer |= {"self_attn.q_norm.weight": (d,), "self_attn.k_norm.weight": (d,)}
            case Mla(heads, rq, rkv, dn, dr, dv):
                layer["self_attn.kv_a_proj_with_mqa.weight"] = (rkv + dr, wide)
                layer["self_attn.kv_a_layernorm.weight"] = (rkv,)
                layer["self_attn.kv_b_proj.weight"] = (heads * (dn + dv), rkv)
                layer["self_attn.o_proj.weight"] = (h, heads * dv)
                if rq is None:
                    layer["self_attn.q_proj.weight"] = (heads * (dn + dr), wide)
                else:
                    layer["self_attn.q_a_proj.weight"] = (rq, wide)
                    layer["self_attn.q_a_layernorm.weight"] = (rq,)
                    layer["self_attn.q_b_proj.weight"] = (heads * (dn + dr), rq)
        found |= {f"layers.{n}.{name}": shape for name, shape in layer.items()}
    return found


def build(variant: Variant) -> dict[str, Tensor]:
    """Canonical tensors; the bits of each depend on the seed, its name, shape and dtype only."""
    tensors = {}
    for name, shape in shapes(variant.facts).items():
        dtype = variant.dtype
        if dtype == "mixed":
            dtype = "BF16" if name == "embed_tokens.weight" else "F16"
        awkward = variant.awkward and name in ("fc.weight", "lm_head.weight")
        tensors[name] = floats(name, shape, dtype, seed=variant.seed, awkward=awkward)
    if variant.ids is not None:
        tensors |= maps(variant.ids, variant.facts.vocab)
    return tensors


def floats(name: str, shape: tuple[int, ...], dtype: str, *, seed: int = 0, awkward: bool = False) -> Tensor:
    """Random weights: norms near one, everything else near zero."""
    entropy = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")
    values = np.random.default_rng(entropy).standard_normal(shape, dtype=np.float32) * np.float32(0.05)
    if "norm" in name:
        values += 1
    if dtype == "BF16":
        bits = (values.view("<u4") >> np.uint32(16)).astype("<u2").ravel()
    else:
        bits = values.astype("<f2" if dtype == "F16" else "<f4").view(BITS[dtype]).ravel()
    if awkward:
        bits[: len(AWKWARD[dtype])] = AWKWARD[dtype]
    return Tensor(dtype, shape, bits.tobytes())


def maps(ids: tuple[int, ...], vocab: int) -> dict[str, Tensor]:
    """`d2t` as int64 offsets and `t2d` as a bool mask."""
    offsets = np.array(ids, "<i8") - np.arange(len(ids))
    mask = np.zeros(vocab, bool)
    mask[list(ids)] = True
    return {"d2t": integers(offsets), "t2d": Tensor("BOOL", (vocab,), mask.tobytes())}


def integers(values: Any, dtype: str = "I64") -> Tensor:
    array = np.asarray(values)
    return Tensor(dtype, array.shape, array.astype({"I64": "<i8", "I32": "<i4"}[dtype]).tobytes())


# ── spellings ──────────────────────────────────────────────────────────────────────

EMBEDDING = "embed_tokens.weight"
MAPS = ("d2t", "t2d")
FIRST = {
    "safeailab": "midlayer.",
    "specforge-sglang": "midlayer.",
    "specforge-hf": "midlayer.",
    "torchspec-native": "midlayer.",
    "torchspec-vllm": "layers.0.",
    "modelopt-midlayer": "midlayer.",
    "modelopt-layers": "layers.0.",
    "modelopt-megatron": "midlayer.",
    "speculators": "layers.0.",
    "angelslim": "midlayer.",
    "automodel": "model.layers.0.",
    "quark-native": "layers.0.",
}
"""The twelve layouts and what each calls layer 0."""

WITHOUT_EMBEDDING = frozenset(
    {"safeailab", "specforge-sglang", "modelopt-midlayer", "modelopt-layers", "modelopt-megatron"}
)
MAPS_ALWAYS = frozenset({"safeailab", "specforge-sglang", "specforge-hf", "angelslim"})
MODELOPT = frozenset({"modelopt-midlayer", "modelopt-layers", "modelopt-megatron"})
WITHOUT_T2D = MODELOPT
METADATA: Mapping[str, dict[str, str] | None] = {
    "specforge-sglang": {"format": "pt"},
    "specforge-hf": {"format": "pt"},
    "torchspec-native": {"torchspec_version": "0.1.0"},
    "torchspec-vllm": {"torchspec_version": "0.1.0"},
    "modelopt-megatron": {"format": "pt"},
    "speculators": {"format": "pt"},
    "angelslim": {"format": "pt"},
    "automodel": {"format": "pt"},
}
NO_IDS = frozenset({"automodel", "angelslim"})
"""Layouts that never write layer ids; without them every layout but Quark means the default triple."""

ALWAYS_IDS = frozenset({"quark-native"})

UNMARKED = frozenset({"specforge-sglang", "specforge-hf", "modelopt-midlayer", "modelopt-layers", "modelopt-megatron",
                      "quark-native"})  # fmt: skip
"""Layouts that write layer ids and no mark of their own, so that ids other than the usual triple may be anybody's."""


def doubtful(layout: str, variant: str) -> bool:
    """Whether only a person can tell what a file means: odd layers, or SpecForge's sense of norm_output."""
    odd = layout in UNMARKED and variant == "last-boundary"
    return odd or (layout in ("specforge-sglang", "specforge-hf") and variant == "fc-norm")


def fits(variant: Variant, layout: str) -> bool:
    """Whether this producer could have trained and stored the variant (producers.md, sections 1 to 4)."""
    facts = variant.facts
    attention = facts.attention if isinstance(facts.attention, Gqa) else None
    plain = facts.fusion == "plain" and facts.feedback == "pre-norm"
    dense = attention is not None
    biased = attention is not None and (attention.qkv_bias or attention.o_bias)
    normed = attention is not None and attention.qk_norm
    unbiased = not biased and not normed and not facts.mlp_bias and facts.window is None
    one = facts.layers == 1
    raw = not facts.norm_before_residual
    stored = layout not in WITHOUT_EMBEDDING or facts.target_hidden == facts.hidden
    if layout in NO_IDS and facts.boundaries != DEFAULT:
        return False
    if facts.vocab_order == "unordered" and layout not in MODELOPT | {"automodel"}:
        return False
    if variant.dtype == "mixed" and layout not in ("torchspec-native", "torchspec-vllm"):
        return False
    match layout:
        case "safeailab":
            default = facts.rope == Rope(10000.0, "halves") and variant.dtype == "F16"
            return dense and plain and unbiased and one and raw and stored and default and not facts.fc_bias
        case "specforge-sglang" | "specforge-hf":
            feedback = facts.feedback == "pre-norm" and facts.fusion in ("plain", "fc_norm")
            return dense and feedback and unbiased and one and raw and stored and not facts.fc_bias
        case "torchspec-native" | "torchspec-vllm":
            return unbiased and one and raw and facts.fusion != "norm_before_fc" and not facts.fc_bias
        case "modelopt-midlayer" | "modelopt-layers":
            bare = not normed and not facts.mlp_bias and facts.window is None
            return plain and bare and raw and stored and not facts.fc_bias and (dense or one)
        case "modelopt-megatron":
            return dense and plain and unbiased and raw and stored and not facts.fc_bias
        case "speculators":
            return dense and not facts.fc_bias and not (normed and facts.mlp_bias)
        case "angelslim":
            return dense and plain and unbiased and one and raw and not facts.fc_bias
        case "automodel":
            bare = not normed and not facts.mlp_bias and facts.window is None
            return bare and one and raw and facts.fusion != "norm_before_fc" and not facts.fc_bias
        case "quark-native":
            bare = dense and not normed and not facts.mlp_bias and facts.window is None
            default = facts.rope.kind == "default"
            return bare and one and raw and facts.fusion != "norm_before_fc" and default and not facts.fc_bias
    raise KeyError(layout)


PAIRS: tuple[tuple[str, str], ...] = tuple(
    (layout, name) for layout in FIRST for name, variant in VARIANTS.items() if fits(variant, layout)
)
"""Every layout with every variant it can hold."""


@dataclass
class Spelled:
    """One producer's files, before they are written; free to be broken by a test.

    Attributes:
        facts: what a reader must find.
        canonical: canonical name → name in the file.
        torch_bin: written by torch.save as pytorch_model.bin.
        extra: further files of the directory.
    """

    layout: str
    facts: Facts
    tensors: dict[str, Tensor]
    config: dict[str, Any]
    canonical: dict[str, str]
    metadata: dict[str, str] | None = None
    torch_bin: bool = False
    extra: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path, *, shards: int = 1) -> Path:
        """Write the directory and return it; several shards come with an index."""
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(self.config, indent=2))
        for name, text in self.extra.items():
            (path / name).write_text(text)
        stem, suffix = ("pytorch_model", "bin") if self.torch_bin else ("model", "safetensors")
        names = list(self.tensors)
        where: dict[str, str] = {}
        for number in range(shards):
            file = f"{stem}.{suffix}" if shards == 1 else f"{stem}-{number + 1:05d}-of-{shards:05d}.{suffix}"
            part = {name: to_torch(self.tensors[name]) for name in names[number::shards]}
            where |= dict.fromkeys(part, file)
            if self.torch_bin:
                torch.save(part, path / file)
            else:
                save_file(part, path / file, metadata=self.metadata)
        if shards > 1:
            total = sum(len(tensor.data) for tensor in self.tensors.values())
            index = {"metadata": {"total_size": total}, "weight_map": where}
            (path / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
        return path

    def file(self, canonical: str) -> str:
        """The name in the file of a canonical tensor."""
        return self.canonical[canonical]

    def put(self, name: str, tensor: Tensor) -> Spelled:
        """Replace or add a tensor by canonical name (or by file name when it has none)."""
        self.tensors[self.canonical.get(name, name)] = tensor
        return self

    def remove(self, *names: str) -> Spelled:
        """Remove tensors by canonical name."""
        for name in names:
            del self.tensors[self.canonical[name]]
        return self

    def wrap(self, prefix: str) -> Spelled:
        """Put a training wrapper's prefix in front of every tensor."""
        self.tensors = {prefix + name: tensor for name, tensor in self.tensors.items()}
        self.canonical = {name: prefix + file for name, file in self.canonical.items()}
        return self


def to_torch(tensor: Tensor) -> torch.Tensor:
    if not tensor.data:
        return torch.empty(tensor.shape, dtype=TORCH[tensor.dtype])
    return torch.frombuffer(bytearray(tensor.data), dtype=TORCH[tensor.dtype]).reshape(tensor.shape)


def spell(
    variant: Variant | str, layout: str, *, ids: bool = True, trained: Mapping[str, Tensor] = MappingProxyType({})
) -> Spelled:
    """Spell a variant as this producer writes it; `ids` says whether the file names the layers.

    `trained` are canonical tensors in place of the random ones.
    """
    if isinstance(variant, str):
        variant = VARIANTS[variant]
    if not fits(variant, layout):
        raise ValueError(f"{layout} cannot hold {variant.name}")
    facts, tensors = variant.facts, dict(trained) or build(variant)
    if layout in WITHOUT_EMBEDDING:
        tensors.pop(EMBEDDING, None)
        facts = replace(facts, own_embedding=False)
    if variant.ids is None and layout in MAPS_ALWAYS:
        tensors |= maps(tuple(range(facts.vocab)), facts.vocab)
    if layout in WITHOUT_T2D:
        tensors.pop("t2d", None)
    canonical = {name: file_name(name, layout, facts) for name in tensors}
    config = _CONFIGS[layout](variant)
    if (ids and layout not in NO_IDS) or layout in ALWAYS_IDS:
        config = with_ids(config, layout, variant)
    else:
        facts = replace(facts, boundaries=AuxLayers.DEFAULT if facts.aux == len(DEFAULT) else AuxLayers.UNKNOWN)
    if layout == "modelopt-layers":
        facts = replace(facts, double_norm=True)
    if layout.startswith("torchspec") and isinstance(facts.attention, Mla):
        facts = replace(facts, max_positions=None)
    return Spelled(
        layout,
        facts,
        {canonical[name]: tensor for name, tensor in tensors.items()},
        config,
        canonical,
        METADATA.get(layout),
        torch_bin=layout == "safeailab",
        extra={"config.py": "# the speculators config class\n"} if layout == "speculators" else {},
    )


def file_name(name: str, layout: str, facts: Facts) -> str:
    """How this layout spells a canonical tensor name."""
    deep = layout == "modelopt-megatron" and facts.layers > 1
    if name.startswith("layers.0.") and not deep:
        return FIRST[layout] + name.removeprefix("layers.0.")
    if name.startswith("layers."):
        if not deep:
            return name
        number, rest = name.removeprefix("layers.").split(".", 1)
        if number != "0":
            rest = rest.replace("input_layernorm", "hidden_norm")
        return f"midlayer.{number}.{rest}"
    root = "model." if layout == "automodel" and name not in (*MAPS, "lm_head.weight") else ""
    return root + name


# ── config.json, as each producer writes it (producers.md, section 3) ──────────────


def _llama(variant: Variant, architecture: str, **keys: Any) -> dict[str, Any]:
    """A transformers-4 LlamaConfig dump."""
    facts = variant.facts
    assert isinstance(facts.attention, Gqa)
    config = {
        "architectures": [architecture],
        "attention_bias": facts.attention.qkv_bias,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": facts.attention.head_dim,
        "hidden_act": "silu",
        "hidden_size": facts.hidden,
        "initializer_range": 0.02,
        "intermediate_size": facts.intermediate,
        "max_position_embeddings": facts.max_positions,
        "mlp_bias": facts.mlp_bias,
        "model_type": "llama",
        "num_attention_heads": facts.attention.heads,
        "num_hidden_layers": facts.layers,
        "num_key_value_heads": facts.attention.kv_heads,
        "rms_norm_eps": facts.eps,
        "rope_theta": facts.rope.theta,
        "tie_word_embeddings": False,
        "torch_dtype": NAMES[variant.dtype],
        "use_cache": True,
        "vocab_size": facts.vocab,
        "draft_vocab_size": facts.draft_vocab,
    }
    if facts.rope.kind != "default":
        config["rope_scaling"] = {"rope_type": facts.rope.kind, **facts.rope.scaling}
    if facts.target_hidden != facts.hidden:
        config["target_hidden_size"] = facts.target_hidden
    return config | keys


def _kimi(variant: Variant, architecture: str, **keys: Any) -> dict[str, Any]:
    """The MLA keys of a Kimi or DeepSeek config."""
    facts = variant.facts
    assert isinstance(facts.attention, Mla)
    config = {
        "architectures": [architecture],
        "model_type": "kimi_k2",
        "hidden_size": facts.hidden,
        "intermediate_size": facts.intermediate,
        "num_hidden_layers": facts.layers,
        "num_attention_heads": facts.attention.heads,
        "num_key_value_heads": facts.attention.heads,
        "q_lora_rank": facts.attention.q_lora,
        "kv_lora_rank": facts.attention.kv_lora,
        "qk_nope_head_dim": facts.attention.nope,
        "qk_rope_head_dim": facts.attention.rope,
        "v_head_dim": facts.attention.v,
        "hidden_act": "silu",
        "rms_norm_eps": facts.eps,
        "vocab_size": facts.vocab,
        "torch_dtype": NAMES[variant.dtype],
        "rope_theta": facts.rope.theta,
        "rope_scaling": {"type": facts.rope.kind, **facts.rope.scaling},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if facts.target_hidden != facts.hidden:
        config["target_hidden_size"] = facts.target_hidden
    return config | keys


def _modern_rope(facts: Facts) -> dict[str, Any]:
    """transformers 5 mirrors the legacy keys beside rope_parameters (SpecForge)."""
    return {
        "rope_parameters": {
            "rope_theta": facts.rope.theta,
            "rope_type": facts.rope.kind,
            **facts.rope.scaling,
        }
    }


def _safeailab(variant: Variant) -> dict[str, Any]:
    config = _llama(variant, "LlamaForCausalLM", pad_token_id=0, transformers_version="4.28.1")
    for key in ("attention_bias", "attention_dropout", "mlp_bias", "rope_theta"):
        del config[key]
    assert isinstance(variant.facts.attention, Gqa)
    if variant.facts.attention.head_dim * variant.facts.attention.heads == variant.facts.hidden:
        del config["head_dim"]
    return config


def _specforge(variant: Variant) -> dict[str, Any]:
    facts = variant.facts
    config = _llama(variant, "LlamaForCausalLMEagle3", transformers_version="5.19.0", pad_token_id=0)
    config["dtype"] = config.pop("torch_dtype")
    config |= _modern_rope(facts)
    if facts.fusion == "fc_norm":
        config |= {"fc_norm": True, "norm_output": True}
    return config


def _torchspec(variant: Variant) -> dict[str, Any]:
    facts = variant.facts
    if isinstance(facts.attention, Mla):
        config = _kimi(variant, "Eagle3DeepseekV2ForCausalLM", draft_vocab_size=facts.draft_vocab)
        if facts.attention.q_lora is None:
            del config["q_lora_rank"]
        # the real file names its layers, with every switch of the section
        config["eagle_config"] = {
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
        }
    else:
        config = _llama(variant, "LlamaForCausalLMEagle3", sliding_window=None, use_sliding_window=False)
        if "rope_scaling" in config:
            config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    if facts.fusion == "fc_norm" or facts.feedback == "post-norm":
        config |= {"fc_norm": facts.fusion == "fc_norm", "norm_output": facts.feedback == "post-norm"}
    if facts.aux != 3:
        config["num_aux_hidden_states"] = facts.aux
    return config | {"_torchspec_version": "0.1.0"}


def _modelopt(variant: Variant, *, new: bool) -> dict[str, Any]:
    facts = variant.facts
    if isinstance(facts.attention, Mla):
        # the Kimi template: no draft_vocab_size, the MoE keys of the target, nulls
        moe = {
            "n_routed_experts": 384,
            "moe_intermediate_size": 2048,
            "n_group": 1,
            "num_nextn_predict_layers": 0,
        }
        config = _kimi(variant, "Eagle3DeepseekV2ForCausalLM", **moe, max_position_embeddings=facts.max_positions)
        config |= {"early_stopping": None, "tie_word_embeddings": False, "transformers_version": "4.51.3"}
    else:
        config = _llama(variant, "LlamaForCausalLMEagle3", pretraining_tp=1, transformers_version=None)
        config["pad_token_id"] = None
    config["eagle_config"] = {
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
    }
    if new:
        config["eagle_config"] |= {
            "next_layer_regular": True,
            "parallel_draft_step": 1,
            "parallel_draft_heads_num_layers": 1,
        }
    return config


def _megatron(variant: Variant) -> dict[str, Any]:
    deep = variant.facts.layers > 1
    return _modelopt(variant, new=False) | {"architectures": [f"LlamaForCausalLMEagle3{'Deep' if deep else ''}"]}


def _speculators(variant: Variant) -> dict[str, Any]:
    facts = variant.facts
    assert isinstance(facts.attention, Gqa)
    inner = _llama(variant, "", **_modern_rope(facts), pad_token_id=None)
    outer = (
        "architectures",
        "torch_dtype",
        "draft_vocab_size",
        "target_hidden_size",
        "rope_theta",
        "rope_scaling",
    )
    for key in outer:
        inner.pop(key, None)
    if facts.attention.qk_norm:
        inner |= {
            "model_type": "qwen3",
            "sliding_window": facts.window,
            "use_sliding_window": facts.window is not None,
        }
        kind = "full_attention" if facts.window is None else "sliding_attention"
        inner["layer_types"] = [kind] * facts.layers
        del inner["mlp_bias"]
    greedy = {
        "accept_tolerance": 0.0,
        "proposal_type": "greedy",
        "speculative_tokens": 3,
        "verifier_accept_k": 1,
    }
    return {
        "architectures": ["Eagle3DraftModel"],
        "auto_map": {"": "config.Eagle3SpeculatorConfig"},
        "draft_vocab_size": facts.draft_vocab,
        "dtype": NAMES[variant.dtype],
        "eagle_aux_hidden_state_layer_ids": None,
        "embed_requires_grad": False,
        "fc_norm": facts.fusion == "fc_norm",
        "norm_before_fc": facts.fusion == "norm_before_fc",
        "norm_before_residual": facts.norm_before_residual,
        "norm_output": facts.feedback == "post-norm",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "example/target"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": facts.target_hidden if facts.target_hidden != facts.hidden else None,
        "tie_word_embeddings": False,
        "transformer_layer_config": inner,
        "transformers_version": "5.19.0",
    }


def _angelslim(variant: Variant) -> dict[str, Any]:
    config = _llama(variant, "Eagle3LlamaForCausalLM", target_model_type="qwen3", modal_type="LLM")
    return config | {"rope_scaling": config.get("rope_scaling"), "sliding_window": None}


def _automodel(variant: Variant) -> dict[str, Any]:
    facts = variant.facts
    if isinstance(facts.attention, Mla):
        config = _kimi(variant, "DeepseekV3Eagle3DraftModel", draft_vocab_size=facts.draft_vocab)
        config |= {"model_type": "deepseek_v3", "max_position_embeddings": facts.max_positions}
    else:
        config = _llama(variant, "LlamaEagle3DraftModel")
    return config | {
        "target_hidden_size": facts.target_hidden,
        "num_aux_hidden_states": facts.aux,
        "fc_norm": facts.fusion == "fc_norm",
        "norm_output": facts.feedback == "post-norm",
        "parallel_drafting": False,
    }


def _quark(variant: Variant) -> dict[str, Any]:
    facts = variant.facts
    return _llama(variant, "LlamaForCausalLMEagle3") | {
        "target_hidden_size": facts.target_hidden,
        "fc_norm": facts.fusion == "fc_norm",
        "norm_output": facts.feedback == "post-norm",
        "num_aux_hidden_states": facts.aux,
    }


_CONFIGS = {
    "safeailab": _safeailab,
    "specforge-sglang": _specforge,
    "specforge-hf": _specforge,
    "torchspec-native": _torchspec,
    "torchspec-vllm": _torchspec,
    "modelopt-midlayer": lambda variant: _modelopt(variant, new=False),
    "modelopt-layers": lambda variant: _modelopt(variant, new=True),
    "modelopt-megatron": _megatron,
    "speculators": _speculators,
    "angelslim": _angelslim,
    "automodel": _automodel,
    "quark-native": _quark,
}

IDS = "eagle_aux_hidden_state_layer_ids"


def with_ids(config: dict[str, Any], layout: str, variant: Variant) -> dict[str, Any]:
    """Name the captured layers where and how this producer does (producers.md, section 5)."""
    boundaries = variant.facts.boundaries
    assert isinstance(boundaries, tuple)
    before, after = list(boundaries), [b - 1 for b in boundaries]
    nested = {**config.get("eagle_config", {}), "use_aux_hidden_state": True}
    match layout:
        case "speculators":
            return config | {IDS: before}
        case "quark-native":
            return config | {IDS: after}
        case "safeailab":
            # its own config never names layers; the state index is what its code counts in
            return config | {"eagle_config": nested | {IDS: before}}
        case "torchspec-vllm" if config["model_type"] == "kimi_k2":
            return config | {"eagle_config": nested | {IDS: before}}
        case _:
            return config | {"eagle_config": nested | {IDS: after}}


# ── the target ─────────────────────────────────────────────────────────────────────


def target_config(facts: Facts = BASE, *, layers: int = LAYERS, **keys: Any) -> dict[str, Any]:
    """config.json of a Llama-style target that the drafter fits."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": facts.target_hidden,
        "intermediate_size": 2 * facts.target_hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": facts.vocab,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
    } | keys


def write_target(
    path: Path, variant: Variant | None = None, *, tables: Mapping[str, Tensor] | None = None, **keys: Any
) -> Path:
    """A target with a config and two tables; by default they are the variant's own embedding and a head."""
    variant = variant or VARIANTS["llama"]
    facts = variant.facts
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(target_config(facts, **keys)))
    if tables is None:
        shape = (facts.vocab, facts.target_hidden)
        embedding = build(variant)[EMBEDDING]
        if embedding.shape != shape:
            embedding = floats(EMBEDDING, shape, "BF16", seed=1)
        tables = {
            "model.embed_tokens.weight": embedding,
            "lm_head.weight": floats("target.lm_head", shape, embedding.dtype),
        }
    save_file({name: to_torch(tensor) for name, tensor in tables.items()}, path / "model.safetensors")
    return path
