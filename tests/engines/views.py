"""Drafters that exist as headers only, spelled by the layouts' own writers, and ways to break them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from draftconv.drafter.facts import AuxLayers, Facts, Gqa, Mla, Rope
from draftconv.drafter.targets import Target
from draftconv.drafter.tensors import OPTIONAL, expected
from draftconv.layouts import layout
from draftconv.layouts.base import Writer, Writing
from draftconv.layouts.tensor_names import spell

V, VD, H, I = 160, 40, 16, 24  # noqa: E741 - the letters of drafter/tensors.py
PLAIN_ROPE = Rope(10000.0, "halves")
YARN = {"factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip

LLAMA_TARGET = Target(
    "llama-test", 8, "llama", "llama", hidden=H, vocab=V, max_positions=8192, repo="someone/llama-test"
)
KIMI_TARGET = Target(
    "kimi-test", 8, "deepseek", "kimi_k25", hidden=H, vocab=V, max_positions=8192, repo="someone/kimi-test",
    remote_code=True,
)  # fmt: skip
GPT_OSS_TARGET = replace(LLAMA_TARGET, name="gpt-oss-test", family="gpt-oss", model_type="gpt_oss")
MINIMAX_TARGET = replace(LLAMA_TARGET, name="minimax-test", family="minimax-m3-vl", model_type="minimax_m3_vl")

LLAMA = Facts(
    attention=Gqa(heads=4, kv_heads=4, head_dim=4),
    layers=1,
    hidden=H,
    target_hidden=H,
    intermediate=I,
    vocab=V,
    draft_vocab=V,
    aux=3,
    boundaries=AuxLayers.DEFAULT,
    rope=PLAIN_ROPE,
    eps=1e-5,
    own_embedding=False,
    max_positions=8192,
)
GQA = Gqa(heads=4, kv_heads=2, head_dim=8)
MLA_SHAPE = Mla(heads=4, q_lora=12, kv_lora=10, nope=6, rope=4, v=6)
MLA = replace(LLAMA, attention=MLA_SHAPE, rope=Rope(50000.0, "interleaved"))
REDUCED = {"draft_vocab": VD, "vocab_order": "ascending"}


def vary(base: Facts, **changes: object) -> Facts:
    return replace(base, **changes)  # type: ignore[arg-type]


FACTS: Mapping[str, Facts] = {
    "llama": LLAMA,
    "llama with its own embedding": vary(LLAMA, own_embedding=True),
    "llama without a head": vary(LLAMA, own_head=False),
    "llama, layers given": vary(LLAMA, boundaries=(2, 3, 6)),
    "llama, four states": vary(LLAMA, aux=4, boundaries=(2, 3, 5, 6)),
    "llama, two states": vary(LLAMA, aux=2, boundaries=(3, 6)),
    "llama, last boundary": vary(LLAMA, boundaries=(2, 4, 8)),
    "gqa": vary(LLAMA, attention=GQA),
    "gqa with q/k/v biases": vary(LLAMA, attention=replace(GQA, qkv_bias=True)),
    "gqa with all biases": vary(LLAMA, attention=replace(GQA, qkv_bias=True, o_bias=True), mlp_bias=True),
    "gqa with an o bias": vary(LLAMA, attention=replace(GQA, o_bias=True)),
    "gqa with q/k norms": vary(LLAMA, attention=replace(GQA, qk_norm=True)),
    "gqa with q/k norms and a window": vary(LLAMA, attention=replace(GQA, qk_norm=True), window=64),
    "llama, fc bias": vary(LLAMA, fc_bias=True),
    "llama, fc and o bias": vary(LLAMA, attention=replace(GQA, o_bias=True), fc_bias=True),
    "llama, mlp bias": vary(LLAMA, mlp_bias=True),
    "llama 3.1": vary(LLAMA, fusion="fc_norm", feedback="post-norm"),
    "llama, norm_before_fc": vary(LLAMA, fusion="norm_before_fc"),
    "llama, normed residual": vary(LLAMA, norm_before_residual=True),
    "llama, reduced vocabulary": vary(LLAMA, **REDUCED),
    "llama, two layers": vary(LLAMA, layers=2),
    "llama, wide target": vary(LLAMA, target_hidden=24, own_embedding=True),
    "llama, yarn": vary(LLAMA, rope=Rope(50000.0, "halves", "yarn", MappingProxyType(dict(YARN)))),
    "mla": MLA,
    "mla without a head": vary(MLA, own_head=False),
    "mla with its own embedding": vary(MLA, own_embedding=True),
    "mla, layers given": vary(MLA, boundaries=(2, 3, 6)),
    "mla, four states": vary(MLA, aux=4, boundaries=(2, 3, 5, 6)),
    "mla 3.1": vary(MLA, fusion="fc_norm", feedback="post-norm"),
    "mla, norm_before_fc": vary(MLA, fusion="norm_before_fc"),
    "mla, reduced vocabulary": vary(MLA, **REDUCED),
    "mla, fc bias": vary(MLA, fc_bias=True),
    "mla, two layers": vary(MLA, layers=2),
    "mla, plain query": vary(MLA, attention=replace(MLA_SHAPE, q_lora=None)),
    "mla, half-split rope": vary(MLA, rope=Rope(50000.0, "halves")),
    "mla, yarn": vary(MLA, rope=Rope(50000.0, "interleaved", "yarn", MappingProxyType(dict(YARN)))),
}
"""One drafter per thing that readers disagree about."""


@dataclass(frozen=True)
class Header:
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class File:
    name: str
    unused: bool = False


@dataclass(frozen=True)
class FakeView:
    """A directory without bytes; each method returns one that differs in one point."""

    config: Mapping[str, object]
    tensors: Mapping[str, Header]
    sidecars: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    files: tuple[File, ...] = ()

    def set(self, **keys: object) -> FakeView:
        return replace(self, config={**self.config, **keys})

    def unset(self, *keys: str) -> FakeView:
        return replace(self, config={key: value for key, value in self.config.items() if key not in keys})

    def nest(self, **keys: object) -> FakeView:
        """Set keys of eagle_config."""
        inner = self.config["eagle_config"]
        assert isinstance(inner, dict)
        return self.set(eagle_config={**inner, **keys})

    def put(self, name: str, *shape: int, dtype: str = "BF16") -> FakeView:
        return replace(self, tensors={**self.tensors, name: Header(dtype, shape)})

    def drop(self, *parts: str) -> FakeView:
        """Without the tensors whose names hold any of these."""
        kept = {name: ref for name, ref in self.tensors.items() if not any(part in name for part in parts)}
        assert len(kept) < len(self.tensors), parts
        return replace(self, tensors=kept)

    def rename(self, change: Callable[[str], str]) -> FakeView:
        renamed = {change(name): ref for name, ref in self.tensors.items()}
        assert renamed.keys() != self.tensors.keys()
        return replace(self, tensors=renamed)

    def pack(self, *parts: str) -> FakeView:
        """With these weights as compressed-tensors packs them."""
        tensors: dict[str, Header] = {}
        for name, ref in self.tensors.items():
            if name.endswith(".weight") and any(part in name for part in parts):
                stem, (rows, columns) = name.removesuffix(".weight"), ref.shape
                tensors[f"{stem}.weight_packed"] = Header("I32", (rows, columns // 8))
                tensors[f"{stem}.weight_scale"] = Header("BF16", (rows, 1))
            else:
                tensors[name] = ref
        assert tensors.keys() != self.tensors.keys(), parts
        return replace(self, tensors=tensors)

    def pack_not(self, part: str) -> FakeView:
        """With one packed weight as floats again."""
        tensors = dict(self.tensors)
        (name,) = [name for name in tensors if name.endswith(f"{part}.weight_packed")]
        stem = name.removesuffix(".weight_packed")
        rows, words = tensors.pop(name).shape
        del tensors[f"{stem}.weight_scale"]
        return replace(self, tensors={**tensors, f"{stem}.weight": Header("BF16", (rows, words * 8))})

    def retype(self, dtype: str, *parts: str) -> FakeView:
        """With these weights in another dtype and a scale beside each, as Quark and ModelOpt store packed ones."""
        chosen = [name for name in self.tensors if name.endswith(".weight") and any(part in name for part in parts)]
        assert chosen, parts
        weights = {name: Header(dtype, self.tensors[name].shape) for name in chosen}
        scales = {f"{name}_scale": Header("F32", ()) for name in chosen}
        return replace(self, tensors={**self.tensors, **weights, **scales})

    def beside(self, name: str, data: Mapping[str, object]) -> FakeView:
        return replace(self, sidecars={name: data})


def writer_of(name: str) -> Writer:
    found = layout(name).writer
    assert found is not None
    return found


def refused(facts: Facts, name: str) -> bool:
    return any(limit.holds(facts) for limit in writer_of(name).refuses)


def written(facts: Facts, name: str, target: Target | None = None) -> FakeView:
    """What `convert --to NAME` would write, as headers."""
    writer = writer_of(name)
    wanted = {part: row.shape for part, row in expected(facts).items() if part not in OPTIONAL}
    attention = facts.attention
    if writer.spelling.o_bias and isinstance(attention, Gqa) and attention.qkv_bias:
        # conversion/passes/biases.py adds zeros where one flag builds all four biases.
        wanted |= {f"layers.{i}.self_attn.o_proj.bias": (facts.hidden,) for i in range(facts.layers)}
    tensors = {
        spell(part, writer.spelling, facts.layers): Header("I64" if part == "d2t" else "BF16", shape)
        for part, shape in wanted.items()
    }
    boundaries = None if isinstance(facts.boundaries, AuxLayers) else facts.boundaries
    config = writer.config(Writing(facts, boundaries, target, {}, "bfloat16"))
    return FakeView(config, tensors)
