"""Which rules of an engine the cases of its table observe, and why the others cannot be.

A case observes a rule where the engine did what the rule says, and did it for that rule: it refused and the rule is
the first reason, it mis-read and the rule is one of those that say so, or the case names a note that has to speak.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from draftconv.engines.rules import Effect, Rule
from truth.table import Row

NO_TARGET = "speaks where no target is named: an engine that runs has one, and then another rule decides"
NO_LAYERS = "speaks where the trained layers are unknown or no target is named: nothing tells which ones are right"
UNTRIED = "speaks of a pattern that could take for ever, which draftconv never tries"
BEYOND = "speaks of types beyond our list: the transformers that stands beside an engine decides"
LATER = "holds for older versions than the one that is asked"

UNKNOWABLE: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "vllm-eagle31": LATER,
        "vllm-mla-fc-norm": LATER,
        "vllm-indexer": "sparse attention is built on GPUs alone; a CPU refuses it (`vllm-indexer-cpu`)",
        "vllm-kernel": "kernels of GPUs; what a CPU has none for is `vllm-kernel-cpu`",
        "vllm-joined-fp8": "rounds on GPUs; a CPU has no operation for it and stops (`vllm-joined-fp8-cpu`)",
        "vllm-joined-scales": "NVFP4 is for GPUs; a CPU refuses it while modules are built (`vllm-kernel-cpu`)",
        "vllm-head-packed": "Model Runner V2 is of GPUs; a CPU takes the other one, and loads such a head",
        "vllm-model-type-unknown": BEYOND,
        "vllm-names-undecided": NO_TARGET,
        "vllm-pattern-undecided": UNTRIED,
        "vllm-taps-undecided": NO_LAYERS,
    },
    "sglang": {
        "sglang-context-untold": f"{NO_TARGET} (`sglang-context`)",
        "sglang-model-type-unknown": BEYOND,
        "sglang-names-undecided": f"{UNTRIED}; and of MIXED_PRECISION, whose method the list decides",
        "sglang-taps-undecided": NO_LAYERS,
    },
}
"""Engine, rule that says what cannot be known here → why no case can observe it."""


def observed(rows: Iterable[Row], rules: Iterable[Rule]) -> frozenset[str]:
    """Codes of the rules that agreeing cases observe."""
    effects = {rule.code: rule.effect for rule in rules}
    return frozenset(code for row in rows if row.agrees for code in _decided(row, effects))


def _decided(row: Row, effects: Mapping[str, Effect]) -> Iterator[str]:
    """Of the rules that a row names, those that decided it."""
    of = {effect: [code for code in row.rules if effects.get(code) == effect] for effect in set(effects.values())}
    yield from of.get("note", ())
    if row.predicted == "refused":
        yield from of.get("refused", ())[:1]
    elif row.predicted.startswith("mis-read"):
        yield from of.get("mis-read", ())


def faults(rules: Sequence[Rule], rows: Iterable[Row], unknowable: Mapping[str, str]) -> list[str]:
    """What is said of rules and does not hold, a line each.

    A rule is observed or has a word why it cannot be, never both; evidence is `run` where it is observed, and nowhere
    else.
    """
    evidence = {rule.code: rule.evidence for rule in rules}
    seen = observed(rows, rules)
    return [
        *(f"{code} is no rule" for code in unknowable if code not in evidence),
        *(f"{code} is said to be unknowable, and a case observes it" for code in unknowable if code in seen),
        *(f"no case observes {code}" for code in evidence if code not in seen and code not in unknowable),
        *(f"{code} is observed, and its evidence {word}" for code, word in evidence.items()
          if code in seen and word != "run"),
        *(f"{code} is not observed, and its evidence run" for code, word in evidence.items()
          if code not in seen and word == "run"),
    ]  # fmt: skip
