"""A → B → A: identical bytes for what both hold, equal facts, and with draftconv.json the config and row order too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from draftconv.api.convert import ConvertOptions, convert
from draftconv.checkpoint import open_checkpoint
from draftconv.drafter.facts import Facts
from draftconv.layouts.reader import read_drafter
from tests import tiny
from tests.api.conftest import Source
from tests.keywords import keywords
from tests.layouts.spelled import IDS, WRITABLE, document, on_disk, refusal
from tests.tiny import Tensor

BEST = ("torchspec-native", "automodel", "speculators", "specforge-hf")
"""Producers to start from: those that store the embedding."""
MODELOPT = "modelopt-layers"
"""The only one whose drafters go to ModelOpt, and back."""

CORE = ("two-layers", "3.1-wide", "frequency", "mla-frequency")


def start_of(variant: str) -> str:
    fitting = [layout for layout, name in tiny.PAIRS if name == variant]
    return next((layout for layout in BEST if layout in fitting), fitting[0])


def facts_of(path: Path) -> Facts:
    return read_drafter(open_checkpoint(path)).facts


def by_token(tensors: dict[str, Tensor], facts: Facts) -> dict[str, object]:
    """Tensors with the rows of lm_head under the target token they stand for."""
    if "d2t" not in tensors or not facts.reduced_vocab:
        return dict(tensors)
    rest = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "lm_head.weight")}
    head = tensors["lm_head.weight"]
    size = len(head.data) // head.shape[0]
    offsets = tensors["d2t"].numpy()
    rows = {i + int(offset): head.data[i * size : (i + 1) * size] for i, offset in enumerate(offsets)}
    return rest | {"rows": rows}


def able(start: str, variant: str) -> list[str]:
    facts = tiny.spell(variant, start).facts
    return [to for to in WRITABLE if refusal(to, variant, facts) is None]


def options_of(start: str, variant: str) -> Callable[[str], ConvertOptions]:
    """By `--to`; a producer's own config that comes back is as doubtful as it was."""
    return lambda to: ConvertOptions(to=to, accept_detected=tiny.doubtful(start, variant), card=False)


def ways() -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Start, variant, B and the As to return to: all of them for the core variants, two in turn for the others."""
    found: list[tuple[str, str, str, tuple[str, ...]]] = []
    for variant in sorted({name for _, name in tiny.PAIRS}):
        start = start_of(variant)
        tos = able(start, variant)
        for number, there in enumerate(tos):
            turn = (tos[(number + 1) % len(tos)], tos[(number + 3) % len(tos)])
            found.append((start, variant, there, tuple(tos) if variant in CORE else tuple(dict.fromkeys(turn))))
    for variant in (name for layout, name in tiny.PAIRS if layout == MODELOPT):
        tos = able(MODELOPT, variant)
        if "modelopt" in tos:
            found += [(MODELOPT, variant, there, ("modelopt",)) for there in tos]
            found.append((MODELOPT, variant, "modelopt", tuple(tos)))
    return found


@pytest.mark.parametrize(
    ("start", "variant", "there", "homes"), ways(), ids=[f"{s}-{v}-{t}-{len(h)}" for s, v, t, h in ways()]
)
def test_there_and_back(
    start: str, variant: str, there: str, homes: tuple[str, ...], source: Source, tmp_path: Path
) -> None:
    path = source(start, variant)

    options = options_of(start, variant)
    for home in homes:
        first, middle = tmp_path / f"{home}-1", tmp_path / f"{home}-2"
        convert(path, first, **keywords(options(home)))
        convert(first, middle, **keywords(options(there)))

        convert(middle, tmp_path / f"{home}-3", **keywords(options(home)))
        (middle / "draftconv.json").unlink()
        convert(middle, tmp_path / f"{home}-4", **keywords(options(home)))
        check_return(first, tmp_path / f"{home}-3", tmp_path / f"{home}-4")


def check_return(first: Path, recorded: Path, bare: Path) -> None:
    tensors, facts = on_disk(first), facts_of(first)
    assert on_disk(recorded) == tensors
    assert facts_of(recorded) == facts
    assert document(recorded, "config.json") == document(first, "config.json")

    assert by_token(on_disk(bare), facts) == by_token(tensors, facts)
    assert replace(facts_of(bare), vocab_order=facts.vocab_order) == facts
    if facts.vocab_order != "unordered":
        assert on_disk(bare) == tensors


PRODUCERS = {"torchspec-native": "torchspec", "specforge-hf": "specforge", "modelopt-layers": "modelopt",
             "speculators": "speculators"}  # fmt: skip


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_trainers_own_files_come_back_verbatim(producer: str, source: Source, tmp_path: Path) -> None:
    """Through each other layout and back: tensors to the bit, config.json as the trainer wrote it, no mark left."""
    home = PRODUCERS[producer]
    chosen = (*CORE, "bias", "3.1", "window", "mixed", "f16")
    variants = [variant for layout, variant in tiny.PAIRS if layout == producer and variant in chosen]
    for variant in variants:
        spelled = tiny.spell(variant, producer)
        if refusal(home, variant, spelled.facts) is not None:
            continue
        for there in able(producer, variant):
            if there == home:
                continue
            middle, back = tmp_path / f"{variant}-{there}", tmp_path / f"{variant}-{there}-back"
            options = options_of(producer, variant)
            convert(source(producer, variant), middle, **keywords(options(there)))
            convert(middle, back, **keywords(options(home)))
            config = {key: value for key, value in spelled.config.items() if key != "auto_map"}
            assert document(back, "config.json") == config, (variant, there)
            assert on_disk(back) == spelled.tensors, (variant, there)
            assert read_drafter(open_checkpoint(back)).detection.layout == producer


def test_three_steps_come_home_too(source: Source, tmp_path: Path) -> None:
    """ModelOpt's frequency order survives other layouts, two of which sort it and one of which takes a table."""
    path = source("modelopt-layers", "frequency")
    target = str(tiny.write_target(tmp_path / "target"))
    for number, to in enumerate(("specforge", "sglang", "speculators", "modelopt")):
        convert(path, tmp_path / str(number), to=to, target=target if to == "speculators" else None)
        path = tmp_path / str(number)
    spelled = tiny.spell("frequency", "modelopt-layers")
    assert on_disk(path) == spelled.tensors
    assert document(path, "config.json") == spelled.config


def test_a_cast_on_the_way_is_not_forgotten(source: Source, tmp_path: Path) -> None:
    """The recorded config names the old dtype, so it does not come back verbatim."""
    convert(source("torchspec-native", "f16"), tmp_path / "b", to="vllm", dtype="bfloat16")
    convert(tmp_path / "b", tmp_path / "c", to="torchspec")
    assert document(tmp_path / "c", "config.json")["torch_dtype"] == "bfloat16"
    assert {tensor.dtype for tensor in on_disk(tmp_path / "c").values()} == {"BF16"}


def test_a_change_on_the_way_is_not_undone(source: Source, tmp_path: Path) -> None:
    convert(source("torchspec-native", "llama"), tmp_path / "b", to="vllm", max_positions=65536)
    convert(tmp_path / "b", tmp_path / "c", to="torchspec")
    assert document(tmp_path / "c", "config.json")["max_position_embeddings"] == 65536


def test_an_edited_record_brings_nothing_back(source: Source, tmp_path: Path) -> None:
    convert(source("speculators", "llama"), tmp_path / "b", to="vllm")
    record = (tmp_path / "b" / "draftconv.json").read_text()
    (tmp_path / "b" / "draftconv.json").write_text(record.replace('"embed_requires_grad": false', '"evil": 1'))
    convert(tmp_path / "b", tmp_path / "c", to="speculators")
    config = document(tmp_path / "c", "config.json")
    assert "evil" not in config
    assert config["_draftconv_layout"] == IDS.get("speculators", "speculators")


def test_specforges_two_exports_return_as_they_were(tmp_path: Path) -> None:
    """`--to specforge` writes the names of both, so the config of the one without an embedding comes back too."""
    source = tiny.spell("reduced", "specforge-sglang").write(tmp_path / "source")
    convert(source, tmp_path / "there", to="vllm")
    convert(tmp_path / "there", tmp_path / "back", to="specforge")
    assert document(tmp_path / "back", "config.json") == document(source, "config.json")
    assert on_disk(tmp_path / "back") == on_disk(source)
