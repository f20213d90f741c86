"""What stops llama.cpp: its converter first, then its runtime. The first broken rule is the reason."""

from __future__ import annotations

import re

from draftconv.drafter.problems import KINDS
from draftconv.drafter.tensors import EMBEDDING, HEAD
from draftconv.engines import checks
from draftconv.engines.checks import listed
from draftconv.engines.llamacpp.aux_layers import HANDED_OUT, KEPT_BACK, captured
from draftconv.engines.llamacpp.loading import ARCHITECTURES, STATES
from draftconv.engines.llamacpp.sources import BASE, CONVERTER, GRAPHS, LOADER, NAMES, REGISTRY, RUNTIME, SPECULATIVE
from draftconv.engines.rules import Rules, SimulatedLoad

RULES = Rules()

# ── the converter ──────────────────────────────────────────────────────────────────


@RULES.add("llamacpp-files", "refused", "the converter reads model*.safetensors, else pytorch_model*.bin; without "
           "either the file that it writes holds no tensors", BASE, "read")  # fmt: skip
def _files(load: SimulatedLoad) -> str | None:
    weights = [file.name for file in load.view.files if file.name.endswith((".safetensors", ".bin", ".pt", ".pth"))]
    found = any(re.fullmatch(r"model.*\.safetensors|pytorch_model.*\.bin", name) for name in weights)
    return None if found else listed(weights)


@RULES.add("llamacpp-architecture", "refused", "the converter knows EAGLE-3 under the names of its Llama classes alone",
           REGISTRY, "read")  # fmt: skip
def _architecture(load: SimulatedLoad) -> str | None:
    known = load.architecture in ARCHITECTURES
    return None if known or load.mla else f"architectures: {load.config.raw('architectures')}"


@RULES.add("llamacpp-mla", "refused", "the converter and the runtime have no EAGLE-3 with latent attention",
           REGISTRY, "read")  # fmt: skip
def _latent(load: SimulatedLoad) -> str | None:
    return f"{load.architecture or load.model_type} is an MLA drafter" if load.mla else None


@RULES.add("llamacpp-draft-vocab", "refused", "the converter tells EAGLE-3 by the key draft_vocab_size; without it the "
           "file is taken for a whole model, in which fc has no name", CONVERTER, "read")  # fmt: skip
def _draft_vocab(load: SimulatedLoad) -> str | None:
    return None if "draft_vocab_size" in load.config.data else "draft_vocab_size: absent"


@RULES.add("llamacpp-layers", "refused", "the converter tells EAGLE-3 by num_hidden_layers: 1, and the runtime asserts "
           "one layer", CONVERTER, "read")  # fmt: skip
def _layers(load: SimulatedLoad) -> str | None:
    return f"num_hidden_layers: {load.built.layers}" if load.built.layers != 1 else None


@RULES.add("llamacpp-fc-norm", "refused", "the converter has no name for the norms of EAGLE-3.1 before fc",
           NAMES, "read")  # fmt: skip
def _fc_norm(load: SimulatedLoad) -> str | None:
    return listed([name for name in load.results.fatal if re.search(_FC_NORM, name)])


@RULES.add("llamacpp-qk-norm", "refused", "the converter has no name for q_norm and k_norm", NAMES, "read")
def _qk_norm(load: SimulatedLoad) -> str | None:
    return listed([name for name in load.results.fatal if re.search(_QK_NORM, name)])


_FC_NORM = r"(^|\.)fc_norm\."
_QK_NORM = r"\.[qk]_norm\.weight$"
_INPUT_NORM = r"^input_norm\.weight$"
_BIAS = r"\.bias$"


@RULES.add("llamacpp-names", "refused", "the converter stops at any other name that it does not know: it finds "
           "midlayer., layers.0. and model.layers.0., and with or without model. fc, norm, embed_tokens and lm_head",
           NAMES, "read")  # fmt: skip
def _names(load: SimulatedLoad) -> str | None:
    if load.mla or load.built.layers != 1:
        return None
    told = (_FC_NORM, _QK_NORM, _INPUT_NORM, _BIAS)
    return listed([name for name in load.results.fatal if not any(re.search(pattern, name) for pattern in told)])


@RULES.add("llamacpp-d2t-range", "refused", "the converter stops at a d2t that leads beyond the target's vocabulary",
           CONVERTER, "read")  # fmt: skip
def _map_range(load: SimulatedLoad) -> str | None:
    return KINDS["d2t-range"].title if "d2t-range" in load.known else None


@RULES.add("llamacpp-vocab", "refused", "the converter takes the target's tokens, and asserts that vocab_size has room "
           "for them", BASE, "inferred")  # fmt: skip
def _vocab(load: SimulatedLoad) -> str | None:
    target = load.target
    return checks.wrong_vocab(load) if target and target.vocab and load.built.vocab < target.vocab else None


METHODS = frozenset({"bitnet", "compressed-tensors", "fp8", "gptq", "modelopt"})
"""quant_methods that the converter turns into floats, or keeps where they are NVFP4."""


@RULES.add("llamacpp-quant-method", "refused", "the converter knows these quant_methods alone: "
           "bitnet, compressed-tensors, fp8, gptq, modelopt", BASE, "read")  # fmt: skip
def _method(load: SimulatedLoad) -> str | None:
    method = checks.quant_method(load)
    return f"quant_method: {method}" if method and method not in METHODS else None


# ── the runtime ────────────────────────────────────────────────────────────────────


@RULES.add("llamacpp-bias", "refused", "the runtime has no biases, and stops at tensors in the file that nobody asked "
           "for", LOADER, "read")  # fmt: skip
def _biases(load: SimulatedLoad) -> str | None:
    return listed([name for name in load.results.fatal if re.search(_BIAS, name)])


@RULES.add("llamacpp-input-norm", "refused", "the runtime has an input_norm where norm_before_fc is true at the top "
           "level (since b10158), and stops at one that nobody asked for; before that the converter has no name for it",
           RUNTIME, "read")  # fmt: skip
def _input_norm(load: SimulatedLoad) -> str | None:
    return listed([name for name in load.results.fatal if re.search(_INPUT_NORM, name)])


@RULES.add("llamacpp-states", "refused", "the runtime takes exactly three captured states", RUNTIME, "read")
def _states(load: SimulatedLoad) -> str | None:
    layers = captured(load)
    wrong = isinstance(layers, tuple) and len(layers) != STATES
    return f"captures {checks.shown(layers)}" if wrong else None


@RULES.add("llamacpp-missing-tensor", "refused", "the runtime stops at a tensor that is not in the file, but for "
           "embed_tokens (as wide as the target's) and lm_head, which the target's stand in for",
           RUNTIME, "read")  # fmt: skip
def _missing(load: SimulatedLoad) -> str | None:
    return None if load.mla or load.built.layers != 1 else checks.missing_tensors(load)


@RULES.add("llamacpp-head-missing", "refused", "the runtime takes the target's head where none is stored, and asserts "
           "that it has as many rows as d2t", RUNTIME, "read")  # fmt: skip
def _head_missing(load: SimulatedLoad) -> str | None:
    absent = load.tensor(HEAD) is None and HEAD not in load.results.packed
    reduced = load.built.draft_vocab != load.built.vocab
    return f"no lm_head, d2t has {load.built.draft_vocab} entries" if absent and reduced else None


@RULES.add("llamacpp-shape", "refused", "the runtime stops at tensors of another shape than config.json gives; the "
           "head has a row for each entry of d2t, without d2t one for each token", RUNTIME, "read")  # fmt: skip
def _shapes(load: SimulatedLoad) -> str | None:
    """An embedding may have any number of rows: they are read from the file."""
    misshapen = [
        name for name, stored in load.misshapen.items()
        if name != EMBEDDING or stored.shape[1:] != load.expected_tensors[name].shape[1:]
    ]  # fmt: skip
    return listed([load.misfit(name) for name in misshapen])


@RULES.add("llamacpp-eps-missing", "refused", "the runtime has no rms_norm_eps of its own: null is not written, and "
           "absent is a default only where transformers knows the model_type", RUNTIME, "read")  # fmt: skip
def _no_eps(load: SimulatedLoad) -> str | None:
    if load.config.number("rms_norm_eps") is not None:
        return None
    if load.config.has("rms_norm_eps"):
        return "rms_norm_eps: null"
    return None if "model_type" in load.view.config else "rms_norm_eps: absent, without model_type"


@RULES.add("llamacpp-boundary", "refused", "the runtime aborts at a captured layer beyond the target's last",
           SPECULATIVE, "read")  # fmt: skip
def _beyond(load: SimulatedLoad) -> str | None:
    layers, target = captured(load), load.target
    if target is None or not isinstance(layers, tuple) or max(layers, default=0) <= target.layers:
        return None
    return f"captures {list(layers)}, {target.name} has {target.layers} layers"


@RULES.add("llamacpp-target", "refused", "the runtime asserts that the target's graph keeps the states before its "
           "layers, and these do not", GRAPHS, "read")  # fmt: skip
def _target(load: SimulatedLoad) -> str | None:
    target = load.target
    if target is None:
        return None
    since = HANDED_OUT.get(target.model_type)
    if target.model_type not in KEPT_BACK and (since is None or not load.spec.before(since)):
        return None
    return f"{target.name} is {target.model_type}" + (f", before b{since}" if since else "")
