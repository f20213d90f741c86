"""What TensorRT-LLM's PyTorch backend does with an EAGLE-3 drafter: config.json and headers in, an `Outcome` out.

The one-model flow with its defaults (`eagle3_one_model`, `eagle3_model_arch: llama3`), one GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from truth.trtllm.config import OWN_TYPES, attributes
from truth.trtllm.modules import Model, build
from truth.trtllm.outcome import Header, Outcome, Parameter, RaisedError, State, Target
from truth.trtllm.quantized import quant_config
from truth.trtllm.rope import rope_of
from truth.trtllm.source import CAPTURE, DEEPSEEK, LINEAR, SPECULATIVE
from truth.trtllm.weights import FLOATS, Found, Linear, Plain, copied, means

Weights = Mapping[str, tuple[str, Header]]
"""Name in the model's words → the stored tensor's own name, and its header."""


def read(
    config: Mapping[str, Any],
    tensors: Mapping[str, Header],
    target: Target,
    *,
    sidecars: Mapping[str, Mapping[str, Any]] | None = None,
    capture: tuple[int, ...] | None = None,
) -> Outcome:
    """One directory, loaded beside a target; `capture` is what eagle3_layers_to_capture is given, None for nothing."""
    outcome = Outcome()
    try:
        made = attributes(config)
        quant = quant_config(made, sidecars or {})
        captured = _captured(target, capture)
        scaled = "lm_head.weight_scale" in tensors and config.get("model_type") not in OWN_TYPES
        model = build(made, quant, 3 if capture is None else len(captured), scaled_head=scaled)
        outcome = replace(
            outcome,
            attention=model.attention,
            captured=captured,
            normed=model.normed,
            post_norm=model.post_norm,
            rope=rope_of(made, latent=model.attention == "mla"),
            eps=made["rms_norm_eps"],
            layers=model.layers,
            mapped=model.mapped,
            own_embedding=model.own_embedding,
            quantized={m.name: m.method for m in model.modules if isinstance(m, Linear) and m.method},
        )
        weights = renamed(tensors, model.layers)
        own_head = any("lm_head" in name for name in weights)
        if model.attention == "mla":
            loaded = _latent(model, weights, made, own_head=own_head, sums=quant.excludes("kv_b_proj"))
        else:
            loaded = _mapped(model, weights, own_head=own_head)
        parameters = tuple(loaded)
        read_from = {name for parameter in parameters for name in parameter.sources}
        outcome = replace(
            outcome,
            parameters=parameters,
            own_head=own_head,
            dropped=tuple(name for name in tensors if name not in read_from),
        )
        _first_draft(model, made, target, outcome)
    except RaisedError as stop:
        return replace(outcome, raised=stop.reason, source=stop.source)
    return outcome


def _captured(target: Target, given: tuple[int, ...] | None) -> tuple[int, ...]:
    """Eagle3OneModelSpecMetadata.__post_init__: a set, sorted; the drafter's own ids are read nowhere."""
    if given is not None:
        return tuple(sorted(set(given)))
    if target.layers <= 5:
        raise RaisedError("not enough layers for the default capture", CAPTURE.at("Eagle3OneModelSpecMetadata"))
    return (1, target.layers // 2 - 1, target.layers - 4)


def renamed(tensors: Mapping[str, Header], layers: int) -> Weights:
    """Eagle3ForCausalLM.load_weights: `layers.` becomes `midlayer.`, and all but heads get `model.` before them."""
    weights: dict[str, tuple[str, Header]] = {}
    for stored, header in tensors.items():
        name = (
            re.sub(r"^layers\.0\.", "midlayer.", stored)
            if layers == 1
            else re.sub(r"^layers\.(\d+)\.", r"midlayer.\1.", stored)
        )
        weights[name if "lm_head" in name else f"model.{name}"] = (stored, header)
    return weights


def below(prefix: str, weights: Weights) -> Found:
    """filter_weights: whatever starts with the name, and the rest without the next character."""
    return {name[len(prefix) + 1 :]: found for name, found in weights.items() if name.startswith(prefix)}


def _created(module: Linear | Plain) -> Iterator[Parameter]:
    yield from module.created() if isinstance(module, Linear) else module.created


def _shared_head(module: Linear | Plain) -> Iterator[Parameter]:
    for parameter in _created(module):
        yield replace(parameter, state="shared")


def _mapped(model: Model, weights: Weights, *, own_head: bool) -> Iterator[Parameter]:
    """_load_weights_impl_v2 with HfWeightMapper: a module of which nothing is stored is left as it is, silently."""
    for module in model.modules:
        if not own_head and "lm_head" in module.name:
            yield from _shared_head(module)
        elif isinstance(module, Linear) and module.parts:
            parent = module.name.rpartition(".")[0]
            yield from module.load([below(f"{parent}.{part}", weights) for part in module.parts])
        elif not (found := below(module.name, weights)):
            yield from _created(module)
        else:
            yield from module.load([found]) if isinstance(module, Linear) else module.load(found)


def _latent(
    model: Model, weights: Weights, config: Mapping[str, Any], *, own_head: bool, sums: bool
) -> Iterator[Parameter]:
    """DeepseekV3WeightLoader.load_weights, which asks for every tensor by its name."""
    where = DEEPSEEK.at("DeepseekV3WeightLoader.load_weights")
    if model.mapped:
        # The model itself has a parameter, so that all parameters below it are asked for by their built names.
        raise RaisedError(f"{model.latent[0]} is not stored: d2t makes the loader ask for every parameter", where)
    for module in model.modules:
        leaf = module.name.rpartition(".")[2]
        if not own_head and "lm_head" in module.name:
            yield from _shared_head(module)
        elif leaf == "kv_b_proj" and isinstance(module, Linear):
            yield from _kv_b(module, weights, sums=sums)
        elif leaf == "kv_a_proj_with_mqa" and isinstance(module, Linear):
            yield from _kv_a(module, weights, lite=config["q_lora_rank"] is None)
        elif isinstance(module, Linear):
            parent = module.name.rpartition(".")[0]
            names = [f"{parent}.{part}" for part in module.parts] or [module.name]
            yield from module.load([below(name, weights) for name in names])
        else:
            yield from module.load(below(module.name, weights))


def _asked(weights: Weights, name: str) -> tuple[str, Header]:
    if name not in weights:
        raise RaisedError(f"{name} is not stored", DEEPSEEK.at("DeepseekV3WeightLoader.load_weights"))
    return weights[name]


def _kv_b(module: Linear, weights: Weights, *, sums: bool) -> Iterator[Parameter]:
    """kv_b, taken apart into keys and values; `sums`: its bare name is excluded, and then a scale is asked for."""
    where = DEEPSEEK.at("load_kv_b_proj_and_k_b_proj_trans")
    stored, header = _asked(weights, f"{module.name}.weight")
    made = {p.name: p for p in module.created()}
    wanted = (module.outputs, module.inputs)
    if header.shape != wanted:
        raise RaisedError(f"{stored}: {header.shape} into {wanted}", where)
    scaled = sums or module.method != ""
    sources = (stored, _asked(weights, f"{module.name}.weight_scale_inv")[0]) if scaled else (stored,)
    weight = made[f"{module.name}.weight"]
    copied(weight.shape, header, weight.name, where)
    # Put back into numbers by the scale when it is excluded, else cast.
    right = header.dtype in FLOATS or header.dtype == "F8_E4M3" if sums else means(weight.dtype, header.dtype)
    state: State = "filled" if right else "wrong"
    yield replace(weight, state=state, sources=sources)
    for name, parameter in made.items():
        if name != weight.name:
            yield replace(parameter, state="filled", sources=sources[1:])


def _kv_a(module: Linear, weights: Weights, *, lite: bool) -> Iterator[Parameter]:
    """q_a above kv_a, into as many rows as they have; only scales of blocks are looked for."""
    where = DEEPSEEK.at("DeepseekV3WeightLoader.load_weights")
    parent = module.name.rpartition(".")[0]
    names = [module.name] if lite else [f"{parent}.q_a_proj", module.name]
    found = [_asked(weights, f"{name}.weight") for name in names]
    if module.method == "nvfp4" and all(header.dtype == "U8" for _, header in found):
        yield from _kv_a_nvfp4(module, weights, names, found)
        return
    if len({header.shape[1:] for _, header in found}) != 1 or any(len(header.shape) != 2 for _, header in found):
        raise RaisedError(f"{module.name}: parts of different widths", where)
    made = {p.name.rpartition(".")[2]: p for p in module.created()}
    weight = made.pop("weight")
    rows = sum(header.shape[0] for _, header in found)
    if rows > weight.shape[0]:
        raise RaisedError(f"{module.name}: {rows} rows into {weight.shape[0]}", where)
    whole = copied(
        (rows, weight.shape[1]), Header(found[0][1].dtype, (rows, *found[0][1].shape[1:])), weight.name, where
    )
    state: State = "uninitialised" if rows < weight.shape[0] else "filled"
    if not whole or not all(means(weight.dtype, header.dtype) for _, header in found):
        state = "wrong"
    yield replace(weight, state=state, sources=tuple(name for name, _ in found))
    for parameter in made.values():
        scales = [weights.get(f"{name}.weight_scale_inv") for name in names]
        there = scales[-1] is not None
        if there and None in scales:
            raise RaisedError(f"{names[0]}.weight_scale_inv is not stored", where)
        sources = tuple(scale[0] for scale in scales if scale) if there else ()
        yield replace(parameter, state="filled" if there else parameter.state, sources=sources)


def _kv_a_nvfp4(
    module: Linear, weights: Weights, names: list[str], found: list[tuple[str, Header]]
) -> Iterator[Parameter]:
    sources = [name for name, _ in found]
    for name in names:
        sources += [_asked(weights, f"{name}.{kind}")[0] for kind in ("input_scale", "weight_scale_2", "weight_scale")]
    made = tuple(module.created())
    rows = sum(header.shape[0] for _, header in found)
    copied(made[0].shape, Header("U8", (rows, *found[0][1].shape[1:])), module.name, DEEPSEEK.at("nvfp4_fused_a"))
    for parameter in made:
        yield replace(parameter, state="filled", sources=tuple(sources))


def _first_draft(model: Model, config: Mapping[str, Any], target: Target, outcome: Outcome) -> None:
    """What stops the first forward pass, which a server runs before it answers."""
    where = SPECULATIVE.at("Eagle3ForCausalLM.apply_eagle3_fc")
    width = target.hidden * len(outcome.captured)
    hidden = config["hidden_size"]
    if width != hidden and model.fed != width:
        raise RaisedError(f"states of {width} elements into {model.fed or hidden}", where)
    if not model.own_embedding and target.hidden != hidden:
        raise RaisedError(f"the target's embedding of {target.hidden} beside {hidden}", where)
    dtype = config["torch_dtype"]
    if dtype is None:
        # No dtype: parameters in torch's own default, and states that are cast to nothing meet them.
        raise RaisedError("no dtype: float32 weights beside states of the target's dtype", where)
    if not outcome.own_head and model.mapped:
        # the map has an entry per row of the drafter's own head, and ids of the target's whole one index it
        raise RaisedError("ids of the target's head run past d2t", SPECULATIVE.at("Eagle3ForCausalLM.forward"))
    if not outcome.own_head and dtype != target.dtype:
        raise RaisedError(f"states in {dtype} and a head in {target.dtype}", LINEAR.at("UnquantizedLinearMethod.apply"))
    if "fp8-blocks" in outcome.quantized.values() and dtype != "bfloat16":
        raise RaisedError(f"blocks of FP8 want bfloat16, not {dtype}", LINEAR.at("FP8BlockScalesLinearMethod.apply"))
