"""A second, slow forward pass to hold the first one to: float64, one row and one head at a time.

Nothing is shared with `draftconv.reference` but the `Facts`. Every step recomputes the
whole drafted sequence from scratch with plain causal attention, so there is no cache, no
mask and no chain bookkeeping that could be wrong in the same way.
"""

import cmath
import math

import numpy as np

from draftconv.drafter.facts import Facts, Gqa, Mla, Rope

Vector = np.ndarray
Weights = dict[str, np.ndarray]


def chain_logits(
    facts: Facts, w: Weights, features: np.ndarray, tokens: list[int], root: int, steps: int
) -> list[Vector]:
    """Logits of steps 0…steps-1 of the chain that branches off row `root`."""
    rows = [(fused(facts, w, features[j]), tokens[j + 1]) for j in range(root + 1)]
    found = []
    for k in range(steps):
        z = drafted_rows(facts, w, rows)[-1]
        normed = rms(z, w["norm.weight"], facts.eps)
        found.append(w["lm_head.weight"] @ normed)
        following = root + 2 + k
        if following < len(tokens):
            rows.append((normed if facts.feedback == "post-norm" else z, tokens[following]))
    return found


def fused(facts: Facts, w: Weights, states: np.ndarray) -> Vector:
    pieces = [states[a] for a in range(facts.aux)]
    if facts.fusion == "fc_norm":
        pieces = [rms(piece, w[f"fc_norm.{a}.weight"], facts.eps) for a, piece in enumerate(pieces)]
    joined = np.concatenate(pieces)
    if facts.fusion == "norm_before_fc":
        joined = rms(joined, w["input_norm.weight"], facts.eps)
    return affine(w, "fc", joined)


def drafted_rows(facts: Facts, w: Weights, rows: list[tuple[Vector, int]]) -> list[Vector]:
    inputs, residuals = [], []
    for state, token in rows:
        e = rms(w["embed_tokens.weight"][token], w["layers.0.input_layernorm.weight"], facts.eps)
        m = rms(state, w["layers.0.hidden_norm.weight"], facts.eps)
        inputs.append(np.concatenate([e, m]))
        residuals.append(m if facts.norm_before_residual else state)
    zs = finish_block(facts, w, "layers.0.", inputs, residuals)
    for i in range(1, facts.layers):
        zs = plain_block(facts, w, f"layers.{i}.", zs)
    return zs


def plain_block(facts: Facts, w: Weights, prefix: str, xs: list[Vector]) -> list[Vector]:
    inputs = [rms(x, w[prefix + "input_layernorm.weight"], facts.eps) for x in xs]
    return finish_block(facts, w, prefix, inputs, xs)


def finish_block(facts: Facts, w: Weights, prefix: str, inputs: list[Vector], residuals: list[Vector]) -> list[Vector]:
    mixed = attention(facts, w, prefix + "self_attn.", inputs)
    out = []
    for residual, attended in zip(residuals, mixed, strict=True):
        y = residual + attended
        t = rms(y, w[prefix + "post_attention_layernorm.weight"], facts.eps)
        gate = affine(w, prefix + "mlp.gate_proj", t)
        up = affine(w, prefix + "mlp.up_proj", t)
        swish = np.array([g / (1 + math.exp(-g)) for g in gate])
        out.append(y + affine(w, prefix + "mlp.down_proj", swish * up))
    return out


def attention(facts: Facts, w: Weights, prefix: str, xs: list[Vector]) -> list[Vector]:
    shape = facts.attention
    split = latent_heads if isinstance(shape, Mla) else llama_heads
    rows = [split(facts, w, prefix, x, position) for position, x in enumerate(xs)]
    scale = softmax_scale(facts)
    out = []
    for t in range(len(xs)):
        gathered = []
        for head in range(shape.heads):
            visible = [s for s in range(t + 1) if facts.window is None or t - s < facts.window]
            weights = [math.exp(scale * float(rows[t][head][0] @ rows[s][head][1])) for s in visible]
            mixed = sum(weight * rows[s][head][2] for weight, s in zip(weights, visible, strict=True))
            gathered.append(mixed / math.fsum(weights))
        out.append(affine(w, prefix + "o_proj", np.concatenate(gathered)))
    return out


def llama_heads(facts: Facts, w: Weights, prefix: str, x: Vector, position: int) -> list[tuple[Vector, Vector, Vector]]:
    shape = facts.attention
    assert isinstance(shape, Gqa)
    d = shape.head_dim
    q, k, v = (affine(w, prefix + name, x) for name in ("q_proj", "k_proj", "v_proj"))
    out = []
    for head in range(shape.heads):
        shared = head * shape.kv_heads // shape.heads
        query, key = q[head * d : head * d + d], k[shared * d : shared * d + d]
        if shape.qk_norm:
            query = rms(query, w[prefix + "q_norm.weight"], facts.eps)
            key = rms(key, w[prefix + "k_norm.weight"], facts.eps)
        value = v[shared * d : shared * d + d]
        multiplier = llama_multiplier(facts.rope)
        query, key = (turned(each, position, facts.rope, multiplier) for each in (query, key))
        out.append((query, key, value))
    return out


def latent_heads(
    facts: Facts, w: Weights, prefix: str, x: Vector, position: int
) -> list[tuple[Vector, Vector, Vector]]:
    shape = facts.attention
    assert isinstance(shape, Mla)
    multiplier = latent_multiplier(facts.rope)
    if shape.q_lora is None:
        q = w[prefix + "q_proj.weight"] @ x
    else:
        low = rms(w[prefix + "q_a_proj.weight"] @ x, w[prefix + "q_a_layernorm.weight"], facts.eps)
        q = w[prefix + "q_b_proj.weight"] @ low
    down = w[prefix + "kv_a_proj_with_mqa.weight"] @ x
    latent = rms(down[: shape.kv_lora], w[prefix + "kv_a_layernorm.weight"], facts.eps)
    shared = turned(down[shape.kv_lora :], position, facts.rope, multiplier)
    out = []
    for head in range(shape.heads):
        mine = q[head * (shape.nope + shape.rope) :][: shape.nope + shape.rope]
        up = w[prefix + "kv_b_proj.weight"][head * (shape.nope + shape.v) :][: shape.nope + shape.v] @ latent
        rotated = turned(mine[shape.nope :], position, facts.rope, multiplier)
        query = np.concatenate([mine[: shape.nope], rotated])
        out.append((query, np.concatenate([up[: shape.nope], shared]), up[shape.nope :]))
    return out


def turned(vector: Vector, position: int, rope: Rope, multiplier: float) -> Vector:
    """Each pair as one complex number, multiplied by exp(i · position · rate)."""
    d = len(vector)
    out = np.empty(d)
    for t in range(d // 2):
        a, b = (t, t + d // 2) if rope.pairs == "halves" else (2 * t, 2 * t + 1)
        spun = complex(vector[a], vector[b]) * cmath.rect(multiplier, position * rate(rope, d, t))
        out[a], out[b] = spun.real, spun.imag
    return out


def rate(rope: Rope, d: int, t: int) -> float:
    plain: float = 1 / rope.theta ** (2 * t / d)
    if rope.kind == "default":
        return plain
    p = {key: float(value) for key, value in rope.scaling.items() if isinstance(value, int | float)}
    f = p["factor"]
    if rope.kind == "linear":
        return plain / f
    if rope.kind == "dynamic":
        base: float = rope.theta * ((f * f) - (f - 1)) ** (d / (d - 2))
        slowed: float = 1 / base ** (2 * t / d)
        return slowed
    original = p["original_max_position_embeddings"]
    if rope.kind == "llama3":
        wavelength = 2 * math.pi / plain
        if wavelength < original / p["high_freq_factor"]:
            return plain
        if wavelength > original / p["low_freq_factor"]:
            return plain / f
        low = p["low_freq_factor"]
        smooth = (original / wavelength - low) / (p["high_freq_factor"] - low)
        return (1 - smooth) * plain / f + smooth * plain
    first = max(math.floor(pair_of(p.get("beta_fast", 32), rope.theta, d, original)), 0)
    last = min(math.ceil(pair_of(p.get("beta_slow", 1), rope.theta, d, original)), d - 1)
    if t <= first:
        return plain
    if t >= last:
        return plain / f
    part = (t - first) / (last - first)
    return part * plain / f + (1 - part) * plain


def pair_of(turns: float, theta: float, d: int, original: float) -> float:
    """Which (fractional) pair makes `turns` turns within the original context."""
    return d / 2 * math.log(original / (2 * math.pi * turns), theta)


def llama_multiplier(rope: Rope) -> float:
    if rope.kind != "yarn":
        return 1.0
    f = float(rope.scaling["factor"])  # type: ignore[arg-type]
    if {"mscale", "mscale_all_dim"} <= rope.scaling.keys():
        return growth(f, rope.scaling["mscale"]) / growth(f, rope.scaling["mscale_all_dim"])
    return growth(f, 1.0)


def latent_multiplier(rope: Rope) -> float:
    if rope.kind != "yarn":
        return 1.0
    f = float(rope.scaling["factor"])  # type: ignore[arg-type]
    return growth(f, rope.scaling.get("mscale", 1)) / growth(f, rope.scaling.get("mscale_all_dim", 0))


def softmax_scale(facts: Facts) -> float:
    shape = facts.attention
    if isinstance(shape, Gqa):
        return 1 / math.sqrt(shape.head_dim)
    scale = 1 / math.sqrt(shape.nope + shape.rope)
    if facts.rope.kind == "yarn":
        f = float(facts.rope.scaling["factor"])  # type: ignore[arg-type]
        scale *= growth(f, facts.rope.scaling.get("mscale_all_dim", 0)) ** 2
    return scale


def growth(factor: float, mscale: object) -> float:
    return 1 + 0.1 * float(mscale) * math.log(factor)  # type: ignore[arg-type]


def rms(x: Vector, weight: Vector, eps: float) -> Vector:
    return np.array([x_i * w_i for x_i, w_i in zip(x, weight, strict=True)]) / math.sqrt(
        math.fsum(float(v) ** 2 for v in x) / len(x) + eps
    )


def affine(w: Weights, name: str, x: Vector) -> Vector:
    out = np.array([row @ x for row in w[name + ".weight"]])
    return out + w[name + ".bias"] if name + ".bias" in w else out
