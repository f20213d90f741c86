"""Any tensor under any name that the reader understands: never `loads` where the engine's own loader skips it.

What each loader takes is told here in literals, from the sources that were read and asked: SGLang 0.5.23's and
vLLM 0.32.0's own classes, TensorRT-LLM's renaming. Nothing of it comes from draftconv's rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftconv.drafter.facts import Facts, Mla
from draftconv.drafter.names import ALIASES, PREFIXES, canonical_name
from draftconv.engines import ENGINES, parse_engine
from tests.engines.cases import Change, compressed, home, judged, modelopt, quark
from tests.engines.views import FACTS, FakeView, Header, refused, vary, written

SPECS = ("vllm@0.11", "vllm@0.22", "vllm", "vllm:cpu", "sglang", "trtllm@1.2", "trtllm")

WRAPPERS = ("", "model.", "eagle_module.", "draft_model.", "model.model.", "eagle_module.model.",
            "training.draft_model.", "draft_model.eagle_module.")  # fmt: skip
"""What stands before a name in files of training wrappers, alone and together."""

OTHERWISE: Mapping[str, tuple[str, ...]] = {
    "layers.0.hidden_norm.weight": ("hidden_norm.weight",),
    "layers.0.input_layernorm.weight": ("input_embeds_norm.weight",),
    "lm_head.weight": ("eagle_lm_head.weight",),
    "norm.weight": ("out_norm.weight",),
    "fc_norm.0.weight": ("aux_norm_low.weight",),
    "fc_norm.1.weight": ("aux_norm_mid.weight",),
    "fc_norm.2.weight": ("aux_norm_high.weight",),
}
"""Canonical name → what else files have called it."""


def bare(canonical: str) -> tuple[str, ...]:
    """Every spelling of one canonical tensor, without what wrappers put before it."""
    found = [canonical, *OTHERWISE.get(canonical, ())]
    if layer := re.fullmatch(r"layers\.(\d+)\.(.+)", canonical):
        number, rest = layer.groups()
        found.append(f"midlayer.{number}.{rest}")
        if number == "0":
            found.append(f"midlayer.{rest}")
        elif rest == "input_layernorm.weight":
            found += [f"layers.{number}.hidden_norm.weight", f"midlayer.{number}.hidden_norm.weight"]
    return tuple(found)


def synonyms(canonical: str) -> tuple[str, ...]:
    return tuple(wrapper + name for name in bare(canonical) for wrapper in WRAPPERS)


def takes(spec: str, facts: Facts, canonical: str, name: str) -> bool:
    """Whether an engine's loader puts the tensor `name` where `canonical` belongs."""
    engine, mla = spec.split("@")[0].split(":")[0], isinstance(facts.attention, Mla)
    top = not canonical.startswith("layers.")
    number, rest = ("", canonical) if top else canonical.removeprefix("layers.").split(".", 1)
    later = number not in ("", "0")
    if later and rest == "input_layernorm.weight" and engine != "vllm":
        rest = "hidden_norm.weight"
    own = f"layers.{number}.{rest}"
    match engine:
        case "vllm":  # `model.` is put before it, `midlayer.` read as layers.0.
            return name == canonical or (number == "0" and name == f"midlayer.{rest}")
        case "sglang" if mla:  # the same, and maps by their ending
            maps = canonical == "d2t" and name.endswith((".d2t", "d2t"))
            return name == canonical or maps or (number == "0" and name == f"midlayer.{rest}")
        case "sglang":  # with and without `model.`, but for lm_head; the first names of 3.1; any d2t
            if canonical == "d2t":
                return "d2t" in name
            once = name if canonical.startswith("lm_head") else name.removeprefix("model.")
            first = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
            legacy = ".".join((first.get(once.partition(".")[0], ""), once.partition(".")[2]))
            spelled = once.replace("midlayer.", "layers.0.", 1) if once.startswith("midlayer.") else once
            return (canonical if top else own) in (spelled, legacy)
        case _:  # TensorRT-LLM: `model.` is put before it; layers.N since PR 11010
            if top:
                return name == canonical
            middle = f"midlayer.{rest}" if facts.layers == 1 else f"midlayer.{number}.{rest}"
            return name == middle or (spec != "trtllm@1.2" and name == own)


def lent(spec: str, facts: Facts, canonical: str) -> bool:
    """Whether the engine has the target's for a tensor that it does not find."""
    if canonical == "embed_tokens.weight":
        return facts.target_hidden == facts.hidden
    whole = facts.draft_vocab == facts.vocab
    return canonical == "lm_head.weight" and whole and not spec.startswith("sglang")


PACKED = vary(FACTS["llama"], quantization="int4")
BYTES = vary(FACTS["llama"], quantization="fp8")
LATENT = vary(FACTS["mla"], quantization="int4")


def columns(method: str) -> Change:
    """INT4 as GPTQ and AWQ name it: three tensors for each weight."""

    def change(view: FakeView) -> FakeView:
        made = compressed(view)
        tensors: dict[str, Header] = {}
        for name, ref in made.tensors.items():
            stem, _, suffix = name.rpartition(".")
            if suffix == "weight_packed":
                tensors |= {f"{stem}.qweight": ref, f"{stem}.qzeros": ref}
            else:
                tensors[f"{stem}.scales" if suffix == "weight_scale" else name] = ref
        names = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"]
        lists: dict[str, object] = {"modules_to_not_convert": ["fc", "lm_head"]}
        if method == "gptq":
            lists = {"modules_in_block_to_quantize": names}
        told = {"quant_method": method, "bits": 4, **lists}
        return FakeView(made.config, tensors).set(quantization_config=told)

    return change


QUANTIZED: Mapping[str, tuple[Facts, Change]] = {
    "compressed-tensors": (PACKED, compressed),
    "compressed-tensors, latent": (LATENT, compressed),
    "GPTQ": (PACKED, columns("gptq")),
    "AWQ": (PACKED, columns("awq")),
    "Quark FP8": (BYTES, quark("fp8_e4m3")),
    "ModelOpt FP8": (BYTES, modelopt("FP8", "F8_E4M3")),
    "ModelOpt NVFP4": (PACKED, modelopt("NVFP4")),
    "ModelOpt W4A16_AWQ": (PACKED, modelopt("W4A16_AWQ")),
    "ModelOpt W4A8_AWQ": (PACKED, modelopt("W4A8_AWQ")),
}


def needless(spec: str, told: str, name: str) -> bool:
    """Whether this tensor of a quantized weight may be absent."""
    module, _, suffix = name.rpartition(".")
    if suffix == "pre_quant_scale":  # of o and down alone, in kernels for INT4
        return not module.endswith(("o_proj", "down_proj"))
    if told == "ModelOpt W4A16_AWQ":
        return suffix in ("weight_scale_2", "input_scale")
    if told == "GPTQ":
        return suffix == "qzeros"
    # Without it, TensorRT-LLM scales the activations of FP8 and FP4 as they come.
    return suffix == "input_scale" and spec.startswith("trtllm") and told != "ModelOpt W4A8_AWQ"


def sound() -> Iterator[tuple[str, str, Facts, FakeView]]:
    """Every drafter for every engine and version that loads it, in that engine's own spelling."""
    for spec in SPECS:
        engine = parse_engine(spec).name
        for what, facts in FACTS.items():
            if not refused(facts, engine) and not (engine == "sglang" and what == "llama, last boundary"):
                yield spec, what, facts, written(facts, engine, home(facts))
        for what, (facts, change) in QUANTIZED.items():
            yield spec, what, facts, change(written(facts, engine, home(facts)))


def status(spec: str, view: FakeView, facts: Facts) -> str:
    engine = parse_engine(spec).name
    return judged(engine, view, facts, home(facts), spec.removeprefix(engine)).status


SOUND = [case for case in sound() if status(case[0], case[3], case[2]) == "loads"]


def tensors(spec: str) -> Iterator[tuple[str, Facts, FakeView, str]]:
    """Every tensor of the drafters that an engine loads, once for each kind of drafter that has it.

    Of quantized drafters, those of two projections: one that is joined with others and one that is not.
    """
    seen = set()
    for each, what, facts, view in SOUND:
        kind = (
            type(facts.attention),
            facts.layers,
            facts.target_hidden,
            facts.draft_vocab,
            facts.quantization and what,
        )
        for name in view.tensors:
            aside = facts.quantization and not re.search(r"\.(q_proj|q_b_proj|down_proj)\.", name)
            if each == spec and not aside and (kind, name) not in seen:
                seen.add((kind, name))
                yield what, facts, view, name


def renamed(view: FakeView, old: str, new: str) -> FakeView:
    return replace(view, tensors={new if name == old else name: ref for name, ref in view.tensors.items()})


def canonical(name: str, facts: Facts) -> str:
    """The canonical name of a tensor in one of the three engines' own spellings."""
    name = re.sub(r"^midlayer\.(\d+)\.", r"layers.\1.", name)
    name = re.sub(r"^midlayer\.", "layers.0.", name)
    return re.sub(r"^(layers\.[1-9]\d*)\.hidden_norm\.", r"\1.input_layernorm.", name) if facts.layers > 1 else name


def test_every_synonym_that_the_reader_understands_is_tried() -> None:
    tried = {name for what in [*OTHERWISE, "layers.0.mlp.up_proj.weight"] for name in synonyms(what)}
    assert set(PREFIXES) <= set(WRAPPERS)
    for pattern, _ in ALIASES:
        assert any(re.search(pattern, name) for name in tried), pattern
    for what in OTHERWISE:
        assert {canonical_name(name) for name in bare(what)} == {what}
    assert len({spec for spec, *_ in SOUND}) == len(SPECS)
    assert set(ENGINES) == {parse_engine(spec).name for spec in SPECS}


@pytest.mark.parametrize("spec", SPECS)
def test_one_tensor_under_every_synonym(spec: str) -> None:
    for what, facts, view, old in tensors(spec):
        name = canonical(old, facts)
        for new in (each for each in synonyms(name) if each not in view.tensors):
            found = status(spec, renamed(view, old, new), facts)
            told = f"{what}: {old} as {new}"
            if takes(spec, facts, name, new):
                assert found == "loads", told
            elif not lent(spec, facts, name) and not needless(spec, what, name):
                assert found != "loads", told


@pytest.mark.parametrize("spec", SPECS)
def test_one_tensor_left_out(spec: str) -> None:
    for what, facts, view, old in tensors(spec):
        name = canonical(old, facts)
        less = replace(view, tensors={other: ref for other, ref in view.tensors.items() if other != old})
        free = lent(spec, facts, name) or needless(spec, what, name)
        assert (status(spec, less, facts) == "loads") == free, f"{what}: without {old}"


@given(st.data())
def test_several_tensors_under_any_names(data: st.DataObject) -> None:
    spec, what, facts, view = data.draw(st.sampled_from(SOUND))
    names = data.draw(st.lists(st.sampled_from(sorted(view.tensors)), min_size=1, unique=True))
    lost = False
    for old in names:
        name = canonical(old, facts)
        new = data.draw(st.sampled_from(synonyms(name)))
        if new in view.tensors:
            continue
        view = renamed(view, old, new)
        free = lent(spec, facts, name) or needless(spec, what, name)
        lost = lost or not (takes(spec, facts, name, new) or free)
    assert not lost or status(spec, view, facts) != "loads"


def both(view: FakeView, old: str, new: str) -> FakeView:
    return replace(view, tensors={**view.tensors, new: view.tensors[old]})


@pytest.mark.parametrize("spec", SPECS)
def test_a_second_name_beside_one_that_is_taken(spec: str) -> None:
    """It is skipped, or stops vLLM, whose loader knows every name or none."""
    view, facts = next((view, facts) for s, what, facts, view in SOUND if (s, what) == (spec, "llama"))
    found = status(spec, both(view, "norm.weight", "out_norm.weight"), facts)
    assert found == ("refused" if spec.startswith("vllm") else "loads")


@pytest.mark.parametrize(
    ("spec", "old", "new", "says"),
    [
        ("trtllm", "norm.weight", "out_norm.weight",
         "norm.weight (stored as out_norm.weight, which is not looked for)"),
        ("trtllm", "midlayer.mlp.up_proj.weight", "eagle_module.midlayer.mlp.up_proj.weight",
         "layers.0.mlp.up_proj.weight (stored as eagle_module.midlayer.mlp.up_proj.weight, which is not looked for)"),
        ("sglang", "norm.weight", "out_norm.weight", "out_norm.weight"),
        ("vllm", "norm.weight", "out_norm.weight", "out_norm.weight"),
    ],
)  # fmt: skip
def test_one_line_names_the_tensor(spec: str, old: str, new: str, says: str) -> None:
    facts = FACTS["llama"]
    engine = parse_engine(spec).name
    verdict = judged(engine, renamed(written(facts, engine, home(facts)), old, new), facts, home(facts))
    (line,) = [line for line in verdict.lines if line.rule.effect != "note"]
    assert line.detail == says
