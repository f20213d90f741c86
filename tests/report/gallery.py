"""Every kind of page that a run can make, of simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from draftconv.report import Report
from draftconv.report.acceptance.model import AcceptanceReport
from draftconv.report.acceptance.pages import page as acceptance_page
from draftconv.report.formatting import Decode
from draftconv.report.model import Accuracy, Comparison, Control, Speed, Texts
from draftconv.report.page import page
from draftconv.report.verdict import EXACT
from tests.report.acceptance import made as accepted
from tests.report.simulated import MARGIN, decode, make

LONG = "kimi-k2.6-eagle3.1-" + "quantized_" * 18
"""200 characters without a place to break."""
HUB_IDS = (
    f"lightseekorg/kimi-k2.6-eagle3.1-mla@{'3f1f6a2c9d' * 4}",
    "kimi-k2.6-eagle3.1-mla-vllm-w4a16-g128-mse",
    "kimi-k2.6-eagle3.1-mla-sglang-fp8-dynamic-per-channel",
    f"nvidia/Kimi-K2.6-Eagle3@{'0123456789' * 4}",
    "someone-with-a-very-long-name/eagle3-kimik2.6-w4a8-quark-int4-per-channel-final-v2",
    "b",
)
RIGHT_TO_LEFT = "مسودة-النموذج-الصغير \N{HEBREW LETTER SHIN}\N{HEBREW LETTER LAMED}"
EMOJI = "🚀" * 40 + "👩‍🔬"
SUITE = ("coding", "extraction", "humanities", "math", "reasoning", "roleplay", "stem", "writing")
MANY = tuple(f"{name}, {source}" for name in SUITE for source in ("MT-Bench", "long documents", "zh-Hans"))


@dataclass(frozen=True, slots=True)
class Shown:
    """A report and what turns its tokens into text."""

    report: Report | AcceptanceReport
    decode: Decode | None = decode


def sized(report: Report) -> Report:
    """With the facts, the hashes and the command of a real run, which are longer than simulated ones."""
    facts = {
        "eagle": "EAGLE-3.1",
        "attention": "GQA: 64 heads of 128, 8 of keys and values",
        "hidden": "7,168",
        "vocab": "163,840",
        "draft_vocab": "32,000",
        "boundaries": "2, 30, 58",
        "rope": "theta 50000, yarn, factor 64, original 4096",
        "feedback": "after the norm",
    }
    arms = tuple(
        replace(
            arm,
            source=f"lightseekorg/{arm.name}@3f1f6a2c9d704b1e8a5512e0f7c6b9d8e4a31c07",
            content=f"{number}0b7c5de" * 8,
            facts={
                **facts,
                "read": f"{arm.name} is read as vllm (certain: its config.json has `eagle_config`): boundaries 2, 30, "
                "58 (stated); feedback after the norm (its producer's default)",
            },
        )
        for number, arm in enumerate(report.arms)
    )
    trace = "5e1d7a90" * 8
    about = replace(report.about, target="moonshotai/Kimi-K2.6@9a1b2c3d4e5f60718293a4b5c6d7e8f901234567", trace=trace)
    return replace(report, about=about, arms=arms)


def live(made: Report) -> Report:
    """As measured of running servers: the reference twice, speed and accuracy beside it."""
    names = [arm.name for arm in made.arms]
    again = tuple(replace(record, arm="again") for record in made.records if record.arm == names[0])
    records = (*made.records, *again)
    texts = Texts(len(again), len(again) - 3, (4, 31, 60))
    comparisons = tuple(
        replace(
            Comparison.of(records, names[0], name, MARGIN, how="live", again="again"),
            diagnostics=replace(old.diagnostics, attribution=(), every_position=(), texts=texts, again=texts),
        )
        for name, old in zip(names[1:], made.comparisons, strict=True)
    )
    settings = {
        "requests": str(len(again)),
        "tokens": "at most 256 per request, to its natural end",
        "engine": "vLLM 0.32.0",
        "reached": "servers that draftconv started, one after another",
        "draftconv's client": "not run on the engine: held to its documented answers by stub servers",
        "server": "--no-enable-prefix-caching --max-num-seqs 8 --speculative-config.num_speculative_tokens 3",
        "GPU": "8 x NVIDIA B200, 183,359 MiB each",
        "environment": "VLLM_ATTENTION_BACKEND=FLASHINFER_MLA VLLM_USE_FLASHINFER_MOE_FP8=1 NCCL_P2P_LEVEL=NVL",
    }
    return replace(
        made,
        about=replace(made.about, how="live", trace=None, settings=settings),
        arms=(*made.arms, replace(made.arms[0], name="again")),
        records=records,
        comparisons=comparisons,
        controls=(),
        speed=tuple(
            Speed(name, at, 8 * at, 20.1 / (1 if name is None else 2) + at / 9, 21.0, 70.5 * at, 72.0, 49.7 * at)
            for at in (1, 32, 256)
            for name in (None, *names)
        ),
        accuracy=tuple(
            Accuracy(name, "gsm8k", 10, kind, 0.91, 0.0079, 1319)
            for name in (None, *names)
            for kind in ("strict-match", "flexible-extract")
        ),
    )


def _renamed(made: Report, name: str) -> Report:
    """With a text of that kind wherever a stranger may have put one."""
    strange = make(
        prompts=40, tokens=64, loss=0.08, categories=(name, "coding", name[::-1]), names=("bf16", name, f"{name} (2)")
    )
    arms = tuple(replace(arm, source=name, layout=name, facts={name: name}) for arm in strange.arms)
    about = replace(
        made.about, target=name, prompts=name, command=("draftconv", "parity", name), settings={name: name, "x": name}
    )
    return replace(strange, about=about, arms=arms, controls=(Control(name, name, 2.0, False, None, name),))


def _named(name: str) -> Shown:
    def strange(_: Sequence[int]) -> str:
        return name

    return Shown(_renamed(make(prompts=4, tokens=16), name), strange)


def _accepted(name: str) -> Shown:
    """Single drafters, with a text of that kind wherever a stranger may have put one."""

    def strange(_: Sequence[int]) -> str:
        return name

    return Shown(accepted.renamed(name), strange)


GALLERY: Mapping[str, Callable[[], Shown]] = {
    "one candidate": lambda: Shown(sized(make(prompts=80, tokens=64, loss=0.004, categories=SUITE))),
    "fail": lambda: Shown(make(prompts=40, tokens=64, loss=0.08)),
    "inconclusive": lambda: Shown(make(prompts=32, tokens=64, loss=0.025)),
    "no tokenizer": lambda: Shown(make(prompts=40, tokens=64, loss=0.02), None),
    "three candidates": lambda: Shown(
        sized(make(prompts=80, tokens=64, loss=0.006, names=("kimi-k2.6-eagle3", "fp8-dynamic", "w4a8-g128", "nvfp4")))
    ),
    "five candidates": lambda: Shown(sized(make(prompts=40, tokens=48, loss=0.006, names=HUB_IDS))),
    "no categories": lambda: Shown(make(prompts=32, tokens=64, categories=("",), losses=False, details=False)),
    "no loss, no categories": lambda: Shown(make(prompts=32, tokens=64, categories=("",), gate=EXACT)),
    "a gain": lambda: Shown(make(prompts=60, tokens=64, gain=0.2)),
    "many categories": lambda: Shown(make(prompts=240, tokens=48, loss=0.01, categories=MANY)),
    "thin category": lambda: Shown(
        make(prompts=60, tokens=64, loss=0.01, categories=("rare", *("coding", "maths", "writing") * 20))
    ),
    "controls": lambda: Shown(replace(make(prompts=32, tokens=64), comparisons=())),
    "live": lambda: Shown(live(make(prompts=60, tokens=64, losses=False))),
    "live, several": lambda: Shown(live(sized(make(prompts=40, tokens=64, losses=False, names=("a", "b", "c", "d"))))),
    "void": lambda: Shown(make(prompts=40, tokens=64, how="live")),
    "nothing counted": lambda: Shown(make(prompts=4, tokens=0, details=False)),
    "extended": lambda: Shown(_extended()),
    "equal counts": lambda: Shown(make(prompts=8, tokens=64, gate=EXACT)),
    "unequal counts": lambda: Shown(make(prompts=8, tokens=64, gate=EXACT, loss=0.2)),
    "long names": lambda: _named(LONG),
    "right to left": lambda: _named(RIGHT_TO_LEFT),
    "emoji": lambda: _named(EMOJI),
    "accept": lambda: Shown(accepted.report("kimi-k2.6-eagle3", mapped={"kimi-k2.6-eagle3": 32000}, categories=SUITE)),
    "accept, no tokenizer, no step": lambda: Shown(accepted.report(prompts=4, roots=0), None),
    "accept, gated": lambda: Shown(accepted.report(*HUB_IDS[:3], min_al=2.5, mapped={HUB_IDS[1]: 32000})),
    "accept, long names": lambda: _accepted(LONG),
    "accept, right to left": lambda: _accepted(RIGHT_TO_LEFT),
    "accept, emoji": lambda: _accepted(EMOJI),
}
"""Kinds of pages by name."""


def _extended() -> Report:
    made = make(prompts=40, tokens=64, loss=0.025)
    (only,) = made.comparisons
    again = Comparison.of(
        made.records, only.reference, only.candidate, MARGIN, how="replay", extended=True, losses=only.losses
    )
    return replace(made, comparisons=(again,))


@cache
def gallery_page(kind: str) -> str:
    """The page of that kind."""
    shown = GALLERY[kind]()
    if isinstance(shown.report, AcceptanceReport):
        return acceptance_page(shown.report, shown.decode)
    return page(shown.report, shown.decode)
