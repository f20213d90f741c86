"""What llama.cpp converts and loads, and computes otherwise than it was trained."""

from __future__ import annotations

from draftconv.drafter.boundaries import IDS
from draftconv.drafter.problems import KINDS
from draftconv.drafter.rope import with_yarn_defaults
from draftconv.engines import checks, replays
from draftconv.engines.checks import compare, listed
from draftconv.engines.llamacpp.aux_layers import HANDED_OUT, LAST_STATE, captured
from draftconv.engines.llamacpp.sources import CONVERTER, IDS_BUILD, ROPE, RUNTIME, SPECULATIVE
from draftconv.engines.rules import Rules, SimulatedLoad

RULES = Rules()


@RULES.add("llamacpp-taps", "mis-read", "the converter writes the ids at the top level as boundaries, or (2, L/2, L-3) "
           "where there are none; those in eagle_config are not read", CONVERTER, "read", since=IDS_BUILD,
           replay=replays.BOUNDARIES)  # fmt: skip
def _aux_layers(load: SimulatedLoad) -> str | None:
    problem = checks.other_aux_layers(captured(load), load)
    nested_only = load.eagle.integers(IDS) and not load.config.integers(IDS)
    return f"{problem} (ids in eagle_config are not read)" if problem and nested_only else problem


@RULES.add("llamacpp-taps-fixed", "mis-read", "the converter writes (2, L/2, L-3) of the target, whatever ids "
           "config.json has", CONVERTER.replace("b10547 (749f688f)", "b9795 (e8ecce53)"), "read",
           until=IDS_BUILD, replay=("default boundaries",))  # fmt: skip
def _fixed_aux_layers(load: SimulatedLoad) -> str | None:
    return checks.other_aux_layers(captured(load), load)


@RULES.add("llamacpp-last-boundary", "mis-read", "the runtime takes for the state after the last layer what the "
           "target's graph keeps for drafting: of gpt-oss that, of others the normed one or memory that nobody filled",
           SPECULATIVE, "read", since=IDS_BUILD, replay=replays.MEMORY)  # fmt: skip
def _last_boundary(load: SimulatedLoad) -> str | None:
    target, layers = load.target, captured(load)
    if target is None or not isinstance(layers, tuple) or target.layers not in layers:
        return None
    wrong = target.model_type in HANDED_OUT and target.model_type not in LAST_STATE
    return f"captures {list(layers)} on {target.name}, which is {target.model_type}" if wrong else None


@RULES.add("llamacpp-target-width", "mis-read", "the runtime lays states as wide as the target's side by side, and "
           "fc reads them as wide as target_hidden_size says", SPECULATIVE, "read", replay=replays.CUT)  # fmt: skip
def _width(load: SimulatedLoad) -> str | None:
    return checks.wrong_width(load)


RULES.row("llamacpp-norm-output", "mis-read", "the runtime feeds back the state before the final norm; norm_output is "
          "not read", RUNTIME, "read", compare("feedback", "feedback"), replay=("feedback norm",))  # fmt: skip
RULES.row("llamacpp-residual", "mis-read", "the converter reads norm_before_residual at the top level "
          "alone, default false",
          CONVERTER, "read", compare("norm_before_residual", "norm_before_residual"),
          replay=("norm before residual",))  # fmt: skip


@RULES.add("llamacpp-rope", "mis-read", "the converter writes linear, llama3 and YaRN scaling, and no other kind; "
           "the runtime multiplies YaRN by 0.1 ln(factor) + 1, whatever attention_factor and the mscales say",
           ROPE, "read", replay=replays.ROPE)  # fmt: skip
def _rope(load: SimulatedLoad) -> str | None:
    built, truth = (with_yarn_defaults(facts.rope, latent=False) for facts in (load.built, load.truth))
    pairs: list[tuple[str, object, object]] = [("theta", built.theta, truth.theta), ("kind", built.kind, truth.kind)]
    if built.kind == truth.kind:
        keys = sorted({*built.scaling, *truth.scaling})
        pairs += [(key, built.scaling.get(key), truth.scaling.get(key)) for key in keys]
    differing = [f"{part}: built as {ours}, trained as {theirs}" for part, ours, theirs in pairs if ours != theirs]
    return None if load.mla else listed(differing)


RULES.row(
    "llamacpp-eps",
    "mis-read",
    "the converter takes rms_norm_eps from config.json",
    CONVERTER,
    "read",
    compare("eps", "eps"),
    replay=("rms_norm_eps",),
)
RULES.row("llamacpp-window", "mis-read", "the runtime attends to everything; no sliding window is "
          "read",
          RUNTIME, "read", compare("window", "sliding window"), replay=("window",))  # fmt: skip


@RULES.add(
    "llamacpp-activation",
    "mis-read",
    "the runtime computes silu(gate) * up; hidden_act is not read",
    RUNTIME,
    "read",
    replay=("activation",),
)
def _activation(load: SimulatedLoad) -> str | None:
    activation = load.truth.activation
    return None if activation == "silu" else f"trained with {activation}"


@RULES.add("llamacpp-d2t-values", "mis-read", "the converter adds its own number to every entry of d2t, cut to a whole "
           "one", CONVERTER, "read", replay=("d2t absolute",))  # fmt: skip
def _map(load: SimulatedLoad) -> str | None:
    codes = ("d2t-absolute", "d2t-rounded")
    return listed([KINDS[code].title for code in codes if code in load.known])
