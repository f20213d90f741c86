"""Quantized checkpoints that SGLang is asked about: every form on both platforms, and each broken in many ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from truth.drafts import LAYER, Change, Directory, some
from truth.sglang.engine import Platform
from truth.sglang.quantized_forms import declare, quark_section, reordered

L31, REDUCED, M31, M = "llama-eagle3.1", "llama-eagle3-reduced", "mla-eagle3.1", "mla-eagle3"
DRAFTERS = (L31, REDUCED, M31, M)
BOTH: tuple[Platform, ...] = ("cuda", "hip")


@dataclass(frozen=True, slots=True)
class Case:
    """One quantized checkpoint on one platform.

    Attributes:
        drafter: a fixture. `form`: of `quantized_forms.FORMS`. `what`: is done to it.
        known: problems of values, which no header shows.
    """

    drafter: str
    form: str
    platform: Platform
    what: str = "as written"
    change: Change = lambda d: d
    known: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.drafter}@{self.form} on {self.platform}: {self.what}"


# ── as written ─────────────────────────────────────────────────────────────────────

WRITTEN = {
    "fp8, b200": "cuda", "w4a16, b200": "cuda", "w4a16-g128, b200": "cuda", "w4a8, b200": "cuda",
    "w4a8-fp8, b200": "cuda", "fp8-tensor, b200": "cuda", "fp8, mi325x": "hip", "gptq, b200": "cuda",
    "gptq-g128, b200": "cuda", "awq, b200": "cuda", "auto-round, mi325x": "hip",
    "fp8-all, b200": "cuda", "w4a16-g128-all, b200": "cuda", "int8-all, h200": "cuda", "fp8-all, mi325x": "hip",
}  # fmt: skip
"""What `quantize` writes for a platform, for every fixture; NVFP4 has no MLA form."""

BY_HAND = (
    "quark-int4", "int8", "quark-fp8", "quark-fp8-static", "quark-int8", "fp8-a16", "fp8-static",
    "fp8-tensor-dynamic", "actorder", "auto-round-awq", "modelopt-legacy",
)  # fmt: skip


def _as_written() -> Iterator[Case]:
    platforms: dict[str, Platform] = {"cuda": "cuda", "hip": "hip"}
    for form, platform in WRITTEN.items():
        for drafter in DRAFTERS:
            yield Case(drafter, form, platforms[platform])
    for drafter in (L31, REDUCED):
        yield Case(drafter, "nvfp4, b200", "cuda")
    for drafter in (L31, M31):
        for form in BY_HAND:
            for on in BOTH:
                yield Case(drafter, form, on)
        for form, platform in WRITTEN.items():
            other: Platform = "hip" if platform == "cuda" else "cuda"
            yield Case(drafter, form, other)
    yield Case(L31, "nvfp4, b200", "hip")
    for drafter in (M31, M):
        yield Case(drafter, "nvfp4", "cuda")


# ── changes ────────────────────────────────────────────────────────────────────────


def section(**keys: object) -> Change:
    return lambda d: d.quantization(**keys)


def lacking(*keys: str) -> Change:
    """Without keys of the declaration."""
    return lambda d: declare(d, {k: v for k, v in d.config["quantization_config"].items() if k not in keys})


def undeclared(d: Directory) -> Directory:
    return Directory(d.config, d.tensors).unset("quantization_config")


def dropped(*parts: str) -> Change:
    return lambda d: d.drop(*parts)


def tensors(chosen: str, make: Callable[[Tensor], Tensor]) -> Change:
    """Tensors whose names end so, made otherwise."""

    def change(d: Directory) -> Directory:
        names = [name for name in d.tensors if name.endswith(chosen)]
        if not names:
            raise ValueError(f"no tensor is called *{chosen}")
        for name in names:
            d = d.put(name, make(d.tensors[name]))
        return d

    return change


def renamed(old: str, new: str) -> Change:
    def change(d: Directory) -> Directory:
        if not any(old in name for name in d.tensors):
            raise ValueError(f"no tensor is called *{old}*")
        return d.rename(lambda name: name.replace(old, new))

    return change


def plain(*parts: str) -> Change:
    """Projections as floats among quantized ones: their quantized tensors gone."""

    def change(d: Directory) -> Directory:
        for part in parts:
            rows, columns = SIZES[_mla(d)][part]
            d = d.drop(f".{part}.").put(f"{LAYER}{_block(part)}.{part}.weight", some(rows, columns))
        return d

    return change


def quantized(like: str, *parts: str) -> Change:
    """Other projections (`fc`, `lm_head`) with tensors of the same kinds as one that is quantized, of their own size.

    Codes and scales are cut and repeated; what numbers they stand for does not matter to a loader.
    """

    def change(d: Directory) -> Directory:
        model = {name.partition(f".{like}.")[2]: tensor for name, tensor in d.tensors.items() if f".{like}." in name}
        rows, columns = SIZES[_mla(d)][like]
        for part in parts:
            stem = f"{LAYER}{_block(part)}.{part}" if part.endswith(("proj", "mqa")) else part
            height, width = d.tensors[f"{stem}.weight"].shape
            d = d.drop(f"{stem}.weight")
            for kind, tensor in model.items():
                d = d.put(f"{stem}.{kind}", _resized(kind, tensor, (rows, columns), (height, width)))
        return d

    return change


def _resized(kind: str, tensor: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    if kind == "weight_shape":
        return torch.tensor(new)
    turned = kind in ("qweight", "qzeros", "scales")
    sizes = []
    for axis, size in enumerate(tensor.shape):
        side = 1 - axis if turned else axis
        along = 1 if tensor.dim() == 1 and kind.endswith("g_idx") else side
        per = old[along] / size
        sizes.append(1 if size == 1 else int(new[along] / per))
    for axis, size in enumerate(sizes):
        times = -(-size // tensor.shape[axis])
        tensor = torch.cat([tensor] * times, dim=axis).narrow(axis, 0, size)
    return tensor


def _block(part: str) -> str:
    return "mlp" if part in ("gate_proj", "up_proj", "down_proj") else "self_attn"


def _mla(d: Directory) -> bool:
    return any("kv_b_proj" in name for name in d.tensors)


SIZES: Mapping[bool, Mapping[str, tuple[int, int]]] = {
    False: {"q_proj": (256, 512), "k_proj": (128, 512), "v_proj": (128, 512), "o_proj": (256, 256),
            "gate_proj": (384, 256), "up_proj": (384, 256), "down_proj": (256, 384)},
    True: {"q_b_proj": (256, 128), "o_proj": (256, 128), "gate_proj": (256, 256), "up_proj": (256, 256),
           "down_proj": (256, 256)},
}  # fmt: skip
"""MLA or not → outputs and inputs of the fixtures' projections."""


# ── broken ─────────────────────────────────────────────────────────────────────────

LISTS: Mapping[str, tuple[str, str]] = {
    "w4a16, b200": ("ignore", "re:"), "fp8, b200": ("ignore", "re:"), "int8": ("ignore", "re:"),
    "fp8-tensor, b200": ("ignore", ""), "nvfp4, b200": ("ignore", ""), "awq, b200": ("modules_to_not_convert", ""),
    "quark-fp8": ("exclude", "re:"),
}  # fmt: skip
"""Form → key of its exclusions, and how a regular expression begins there."""

ENTRIES: Mapping[str, Sequence[tuple[str, ...]]] = {
    L31: ((), ("fc",), ("lm_head",), ("model.down_proj", "lm_head"), ("down_proj", "lm_head"),
          ("model.mlp.down_proj", "lm_head"), ("midlayer.mlp.down_proj", "lm_head"), ("*down_proj", "lm_head"),
          (r"re:.*down_proj$", "lm_head"), ("model.qkv_proj", "lm_head"), ("q_proj", "lm_head"),
          ("re:.*[qkv]_proj$", "lm_head"), ("model.self_attn.o_proj", "lm_head"), ("o_proj", "lm_head"),
          ("re:.*self_attn.*", "lm_head"), ("gate_proj", "lm_head"), ("model.gate_proj", "lm_head"),
          ("model.gate_proj", "model.up_proj", "lm_head"), ("model.gate_up_proj", "lm_head"), ("model*",), ("model",)),
    M31: ((), ("lm_head",), ("fc", "kv_b_proj", "lm_head"), ("model.fc", "model.self_attn.kv_b_proj", "lm_head"),
          ("*fc", "*kv_b_proj", "lm_head"), ("re:.*fc$", "re:.*kv_b_proj$", "lm_head"),
          ("re:.*fc$", "re:.*kv_b_proj$", "re:.*qkv_a_proj_with_mqa$", "lm_head"),
          ("re:.*fc$", "re:.*kv_b_proj$", "re:.*q_a_proj$", "lm_head"),
          ("re:.*fc$", "re:.*kv_b_proj$", "re:.*(q_a_proj|kv_a_proj_with_mqa)$", "lm_head"),
          ("model.fc", "model.self_attn.kv_b_proj", "model.self_attn.q_a_proj", "lm_head"),
          ("model.fc", "model.self_attn.kv_b_proj", "model.self_attn.q_a_proj",
           "model.self_attn.kv_a_proj_with_mqa", "lm_head"),
          ("fc", "kv_b_proj", "q_a_proj", "lm_head"), ("fc", "kv_b_proj", "qkv_a_proj", "down_proj"),
          ("re:.*fc$", "re:.*_a_proj.*", "lm_head"), ("model",)),
}  # fmt: skip
"""Lists of what stays plain, in spellings that some reader takes and others do not."""

ROWS = "midlayer.mlp.down_proj"


def half(tensor: Tensor) -> Tensor:
    return tensor[: max(1, len(tensor) // 2)]


def columns(tensor: Tensor) -> Tensor:
    """Two scales where one was, or half of them."""
    return tensor[..., : tensor.shape[-1] // 2] if tensor.shape[-1] > 1 else torch.cat((tensor, tensor), dim=-1)


SCALE = {"w4a16, b200": "weight_scale", "w4a16-g128, b200": "weight_scale", "gptq-g128, b200": "scales",
         "awq, b200": "scales", "fp8, b200": "weight_scale", "int8": "weight_scale",
         "fp8-tensor, b200": "weight_scale", "quark-fp8": "weight_scale", "auto-round, mi325x": "scales",
         "quark-fp8-static": "weight_scale", "fp8-static": "weight_scale"}  # fmt: skip
"""Form → what its scales are called."""

ON: Mapping[str, Platform] = {"auto-round, mi325x": "hip", "quark-fp8": "hip", "quark-fp8-static": "hip"}
"""Platform of a form's broken cases where it is not CUDA."""


def _scales() -> Iterator[Case]:
    for form, scale in SCALE.items():
        platform = ON.get(form, "cuda")
        for drafter in (L31, M31):
            down, outputs = f"{ROWS}.{scale}", f"o_proj.{scale}"
            for what, change in {
                f"without {down}": dropped(down),
                f"without all {scale}": dropped(f".{scale}"),
                f"{down} in float32": tensors(down, lambda t: t.float() * 1.0001),
                f"all {scale} in float32": tensors(f".{scale}", lambda t: t.float() * 1.0001),
                f"all {scale} in float16": tensors(f".{scale}", Tensor.half),
                f"half the rows of {outputs}": tensors(outputs, lambda t: half(t) if t.dim() else t.reshape(1)),
                f"other columns in {outputs}": tensors(
                    outputs, lambda t: columns(t) if t.dim() > 1 else t.reshape(-1, 1)
                ),
                f"{outputs} of one dimension": tensors(outputs, lambda t: t.flatten()),
                f"{down} under eagle_module": renamed(down, f"eagle_module.{down}"),
                f"model.{down}": renamed(down, f"model.{down}"),
                "layers.0 for midlayer": renamed("midlayer.", "layers.0."),
                "model.layers.0 for midlayer": renamed("midlayer.", "model.layers.0."),
                "without down_proj": dropped(f"{ROWS}."),
                "down_proj as floats": plain("down_proj"),
                "up_proj as floats": plain("up_proj"),
                "undeclared": undeclared,
                "lm_head in the same form": quantized("down_proj", "lm_head"),
                "fc in the same form": quantized("down_proj", "fc"),
            }.items():
                yield Case(drafter, form, platform, what, change)
            if form != "fp8-tensor, b200":  # ModelOpt's algorithm stands for its method
                yield Case(drafter, form, platform, "quant_method lost", lacking("quant_method"))
            inside = ("kv_b_proj",) if drafter == M31 else ()
            for part in inside:
                yield Case(drafter, form, platform, f"{part} in the same form", quantized("q_b_proj", part))
                yield Case(
                    drafter,
                    form,
                    platform,
                    f"{part} in the same form, declared",
                    _declared(quantized("q_b_proj", part)),
                )
            if drafter == M31 and form not in ("fp8, b200", "int8", "quark-fp8"):
                both = quantized("q_b_proj", "q_a_proj", "kv_a_proj_with_mqa")
                yield Case(drafter, form, platform, "the a-projections in the same form", both)
                yield Case(drafter, form, platform, "the a-projections in the same form, declared", _declared(both))


KEYS = ("ignore", "exclude", "modules_to_not_convert", "extra_config", "dynamic")


def _declared(change: Change) -> Change:
    """With nothing of MLA excluded but fc, whatever the key."""

    def both(d: Directory) -> Directory:
        d = change(d)
        left: dict[str, object] = {}
        for key in KEYS:
            match d.config["quantization_config"].get(key):
                case list() as entries:
                    left[key] = [entry for entry in entries if "_b_proj" not in entry and "_a_proj" not in entry]
                case dict() as rules:
                    left[key] = {k: v for k, v in rules.items() if "_b_proj" not in k and "_a_proj" not in k}
        return d.quantization(**left)

    return both


def _exclusions() -> Iterator[Case]:
    for form, (key, prefix) in LISTS.items():
        for drafter, lists in ENTRIES.items():
            if form == "nvfp4, b200" and drafter == M31:
                continue
            for entries in lists:
                if not prefix and any(entry.startswith("re:") for entry in entries):
                    continue
                what = f"{key}: {', '.join(entries) or 'nothing'}"
                yield Case(drafter, form, ON.get(form, "cuda"), what, section(**{key: list(entries)}))


def group(**keys: object) -> Change:
    """With other words about the weights of compressed-tensors."""

    def change(d: Directory) -> Directory:
        first = d.config["quantization_config"]["config_groups"]["group_0"]
        return d.quantization(config_groups={"group_0": {**first, "weights": {**first["weights"], **keys}}})

    return change


def first_group(**keys: object) -> Change:
    def change(d: Directory) -> Directory:
        first = d.config["quantization_config"]["config_groups"]["group_0"]
        return d.quantization(config_groups={"group_0": {**first, **keys}})

    return change


def quark_weight(**keys: object) -> Change:
    def change(d: Directory) -> Directory:
        section = d.config["quantization_config"]["global_quant_config"]
        return d.quantization(global_quant_config={**section, "weight": {**section["weight"], **keys}})

    return change


def quark_inputs(inputs: object) -> Change:
    def change(d: Directory) -> Directory:
        section = d.config["quantization_config"]["global_quant_config"]
        return d.quantization(global_quant_config={**section, "input_tensors": inputs})

    return change


INT8_INPUT = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
FP8_INPUT = {**INT8_INPUT, "type": "float"}

WEIGHTLESS: Mapping[str, object] = quark_section(None, None)
"""What Quark says of layers that it does not quantize, where it says it of them."""


def named_in(number: str, *targets: str, **weights: object) -> Change:
    """With other targets of one group, and other words about its weights."""

    def change(d: Directory) -> Directory:
        groups = d.config["quantization_config"]["config_groups"]
        group = {**groups[number], "targets": list(targets), "weights": {**groups[number]["weights"], **weights}}
        return d.quantization(config_groups={**groups, number: group})

    return change


DECLARED: Mapping[str, Mapping[str, Change]] = {
    "w4a16-g128-all, b200": {
        "no group names the head": named_in("group_1", r"re:.*\bfc$"),
        "down_proj in the head's group": named_in("group_1", "lm_head", r"re:.*\bfc$", r"re:.*\bdown_proj$"),
        "a head in blocks": named_in("group_1", "lm_head", r"re:.*\bfc$", strategy="block",
                                     block_structure=[128, 128]),
    },
    "fp8-all, b200": {"no target names the head": first_group(targets=["Linear"])},
    "w4a16, b200": {
        "rows declared as groups": group(strategy="group", group_size=128),
        "actorder: group": reordered,
        "actorder: weight": group(actorder="weight"),
        "eight bits declared": group(num_bits=8),
        "not symmetric": group(symmetric=False),
        "INT8 activations": first_group(input_activations=INT8_INPUT),
        "FP8 activations": first_group(input_activations=FP8_INPUT),
        "another format": section(format="int-quantized"),
        "no format": lacking("format"),
        "no groups": lacking("config_groups"),
        "targets: linear": first_group(targets=["linear"]),
        "targets by file names": first_group(targets=["re:midlayer.*"]),
        "targets by runtime names": first_group(targets=["re:.*_proj$"]),
        "targets: lm_head too": first_group(targets=["Linear", "lm_head"]),
        "targets: RowParallelLinear": first_group(targets=["RowParallelLinear"]),
        "compressed_tensors for compressed-tensors": section(quant_method="compressed_tensors"),
        "no regular expression": section(ignore=["re:(down_proj", "lm_head"]),
        "sparse": section(sparsity_config={
            "format": "sparse-24-bitmask", "sparsity_structure": "2:4", "targets": ["Linear"], "ignore": []}),
        "declared as GPTQ": lambda d: declare(d, {"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True,
                                                  "desc_act": False}),
    },
    "w4a16-g128, b200": {
        "groups declared as rows": group(strategy="channel", group_size=None),
        "actorder: group": reordered,
        "groups of 64 declared": group(group_size=64),
        "groups of 48 declared": group(group_size=48),
        "no group_size": group(group_size=None),
    },
    "fp8, b200": {
        "one scale for a tensor declared": group(strategy="tensor"),
        "activations under a fixed scale declared": first_group(
            input_activations={**FP8_INPUT, "dynamic": False, "strategy": "tensor"}),
        "declared as integers": group(type="int"),
        "declared as ModelOpt": lambda d: declare(d, {"quant_method": "modelopt", "quant_algo": "FP8",
                                                      "ignore": ["lm_head", "model.fc", "*kv_b_proj"]}),
        "an unknown method": section(quant_method="foo"),
        "pack-quantized declared": section(format="pack-quantized"),
    },
    "int8": {
        "one scale for a tensor declared": group(strategy="tensor"),
        "declared as floats": group(type="float"),
        "no activations": first_group(input_activations=None),
        "static activations": first_group(input_activations={**INT8_INPUT, "dynamic": False, "strategy": "tensor"}),
    },
    "gptq-g128, b200": {
        "groups declared as rows": section(group_size=-1),
        "desc_act": section(desc_act=True),
        "without g_idx": dropped("g_idx"),
        "without qzeros": dropped("qzeros"),
        "without qzeros, not symmetric": lambda d: d.drop("qzeros").quantization(sym=False),
        "not symmetric": section(sym=False),
        "no desc_act": lacking("desc_act"),
        "no sym": lacking("sym"),
        "no bits": lacking("bits"),
        "three bits": section(bits=3),
        "eight bits": section(bits=8),
        "lm_head: true": section(lm_head=True),
        "no regular expression in dynamic": section(dynamic={"-:(down_proj": {}}),
        "dynamic leaves nothing out": section(dynamic={}),
        "dynamic leaves down_proj out": section(dynamic={r"-:.*down_proj$": {}, r"-:.*\bfc$": {}}),
        "a list of modules": section(modules_in_block_to_quantize=["self_attn.o_proj"]),
        "marlin's own layout declared": section(checkpoint_format="marlin"),
        "gptq_v2 declared": section(checkpoint_format="gptq_v2"),
    },
    "awq, b200": {
        "without qzeros": dropped("qzeros"),
        "zero_point: false": section(zero_point=False),
        "no zero_point": lacking("zero_point"),
        "groups of 64 declared": section(group_size=64),
        "groups of 48 declared": section(group_size=48),
        "groups declared as rows": section(group_size=-1),
        "eight bits": section(bits=8),
        "GEMV": section(version="gemv"),
        "declared as GPTQ": lambda d: declare(d, {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True,
                                                  "desc_act": False}),
        "float16": lambda d: d.set(torch_dtype="float16", dtype="float16"),
    },
    "auto-round, mi325x": {
        "as GPTQ": section(packing_format="auto_round:auto_gptq"),
        "no packing_format": lacking("packing_format"),
        "another packing_format": section(packing_format="auto_round"),
        "no extra_config": lacking("extra_config"),
        "no regular expression in extra_config": lambda d: d.quantization(extra_config={
            "(down_proj": {"bits": 16}, **d.config["quantization_config"]["extra_config"]}),
        "one block to quantize": section(block_name_to_quantize="model.self_attn"),
        "blocks by file names": section(block_name_to_quantize=["model.layers"]),
        "no group_size": lacking("group_size"),
        "groups of 64 declared": section(group_size=64),
        "without qzeros": dropped("qzeros"),
        "AWQ in bfloat16": section(quant_method="awq", zero_point=True),
        "AWQ in float16": lambda d: d.quantization(quant_method="awq", zero_point=True, modules_to_not_convert=[
            "fc", "qkv_a_proj", "kv_b_proj"]).set(torch_dtype="float16", dtype="float16"),
        "three bits": section(bits=3),
        "data_type: fp": section(data_type="fp"),
    },
    "quark-fp8": {
        "one scale for a tensor declared": quark_weight(qscheme="per_tensor"),
        "no regular expression": section(exclude=["re:(down_proj", "lm_head"]),
        "a layer without weights": section(layer_quant_config={"*down_proj": WEIGHTLESS}),
        "a layer without weights, as floats": lambda d: plain("down_proj")(d).quantization(
            layer_quant_config={"*down_proj": WEIGHTLESS}),
        "no weights": section(global_quant_config=WEIGHTLESS),
        "no export": lacking("export"),
        "no exclude": lacking("exclude"),
        "no layer_quant_config": lacking("layer_quant_config"),
        "no layer_type_quant_config": lacking("layer_type_quant_config"),
        "no activations": quark_inputs(None),
        "activations under a fixed scale": quark_inputs({"dtype": "fp8_e4m3", "qscheme": "per_tensor",
                                                         "is_dynamic": False}),
        "e5m2 declared": quark_weight(dtype="fp8_e5m2"),
        "scales of two dimensions": tensors(".weight_scale", lambda t: t[:, None]),
        "blocks declared": quark_weight(qscheme="per_group", group_size=128),
    },
    "quark-fp8-static": {
        "without one input_scale": dropped(f"{ROWS}.input_scale"),
        "without input_scale": dropped("input_scale"),
        "scales of one dimension": tensors("_scale", lambda t: t.reshape(1)),
        "dynamic activations declared": quark_inputs({"dtype": "fp8_e4m3", "qscheme": "per_tensor",
                                                      "is_dynamic": True}),
    },
    "fp8-tensor, b200": {
        "without one input_scale": dropped(f"{ROWS}.input_scale"),
        "without input_scale": dropped("input_scale"),
        "scales of one dimension": tensors("_scale", lambda t: t.reshape(1)),
        "quant_algo lost": lacking("quant_algo"),
        "quant_method modelopt_fp8": section(quant_method="modelopt_fp8"),
        "NVFP4 declared": section(quant_algo="NVFP4"),
        "INT4_AWQ declared": section(quant_algo="INT4_AWQ"),
        "W4A8_AWQ declared": section(quant_algo="W4A8_AWQ"),
        "FP8_PB_WO declared": section(quant_algo="FP8_PB_WO"),
        "no regular expression": section(ignore=["(down_proj", "lm_head"]),
        "exclude_modules for ignore": lambda d: lacking("ignore")(d).quantization(
            exclude_modules=d.config["quantization_config"]["ignore"]),
        "the legacy file says something else": lambda d: Directory(d.config, d.tensors, {
            "hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4", "exclude_modules": []}}}),
        "FP8 for the cache": section(kv_cache_scheme={"dynamic": False, "num_bits": 8, "type": "float"}),
    },
    "modelopt-legacy": {
        "NVFP4 declared": lambda d: Directory(d.config, d.tensors, {
            "hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4", "group_size": 16,
                                                      "exclude_modules": ["lm_head"]}}}),
        "no algorithm": lambda d: Directory(d.config, d.tensors, {
            "hf_quant_config.json": {"quantization": {"exclude_modules": ["lm_head"]}}}),
    },
    "fp8-static": {
        "without input_scale": dropped("input_scale"),
        "dynamic activations declared": first_group(input_activations=FP8_INPUT),
        "one scale for a row declared": group(strategy="channel"),
    },
    "actorder": {
        "without g_idx": dropped("g_idx"),
        "undeclared": group(actorder=None),
    },
}  # fmt: skip
"""Form → what is declared otherwise, or stored otherwise than is declared."""

NVFP4: Mapping[str, Change] = {
    "without one weight_scale_2": dropped(f"{ROWS}.weight_scale_2"),
    "without weight_scale": dropped("proj.weight_scale"),
    "without input_scale": dropped("input_scale"),
    "W4A16_NVFP4 declared": section(quant_algo="W4A16_NVFP4"),
    "NVFP4_AWQ declared": section(quant_algo="NVFP4_AWQ"),
    "FP8 declared": section(quant_algo="FP8"),
    "groups of 32 declared": section(group_size=32),
    "quant_method modelopt_fp4": section(quant_method="modelopt_fp4"),
    "down_proj as floats": plain("down_proj"),
    "up_proj as floats": plain("up_proj"),
    "k_proj as floats": plain("k_proj"),
    "gate_proj as floats, gate and up excluded": lambda d: plain("gate_proj")(d).quantization(
        ignore=[*d.config["quantization_config"]["ignore"], "model.gate_up_proj"]),
    "lm_head in the same form": quantized("down_proj", "lm_head"),
    "fc in the same form": quantized("down_proj", "fc"),
    "undeclared": undeclared,
}  # fmt: skip


def _declarations() -> Iterator[Case]:
    for form, changes in DECLARED.items():
        for drafter in (L31, M31):
            for what, change in changes.items():
                if drafter == L31 or what != "NVFP4 declared":  # it is switched off for the MLA class
                    yield Case(drafter, form, ON.get(form, "cuda"), what, change)
    for what, change in NVFP4.items():
        yield Case(L31, "nvfp4, b200", "cuda", what, change)


def _once(cases: Sequence[Case]) -> tuple[Case, ...]:
    return tuple({case.name: case for case in cases}.values())


CASES: tuple[Case, ...] = _once((*_as_written(), *_scales(), *_exclusions(), *_declarations()))
