"""`inspect` puts together what other rooms find; the conversion it proposes must really be possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftconv.api.convert import convert
from draftconv.api.inspect import Inspection, inspect, remedy
from draftconv.errors import BadCheckpoint, NeedsExport, NotADrafter, UsageError
from tests import tiny
from tests.api.conftest import Source
from tests.keywords import keywords


def status(found: Inspection) -> dict[str, str]:
    return {verdict.spec.name: verdict.status for verdict in found.verdicts}


@pytest.mark.parametrize(("producer", "variant"), tiny.PAIRS)
def test_facts_of_every_producer(producer: str, variant: str, source: Source) -> None:
    found = inspect(source(producer, variant))
    assert found.drafter.facts == tiny.spell(variant, producer).facts
    assert found.drafter.detection.layout == producer
    assert not [problem for problem in found.problems if problem.severity == "error"]
    assert list(status(found)) == ["vllm", "sglang", "trtllm"]


def test_engines_asked_for_are_judged_alone(source: Source) -> None:
    found = inspect(source("torchspec-native", "mla-3.1"), engines=["vllm@0.22:h200", "sglang"])
    assert [str(verdict.spec) for verdict in found.verdicts] == ["vllm@0.22:h200", "sglang@0.5.23"]


@pytest.mark.parametrize("engine", ["vlm", "vllm@new", "vllm:toaster", "vllm@"])
def test_unknown_engines(engine: str, source: Source) -> None:
    if engine == "vllm@":
        assert str(inspect(source("speculators", "llama"), engines=[engine]).verdicts[0].spec).startswith("vllm@")
        return
    with pytest.raises(UsageError):
        inspect(source("speculators", "llama"), engines=[engine])


def test_depth(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    target = tiny.write_target(tmp_path / "target")
    shallow, deep = inspect(path), inspect(path, deep=True)
    assert any("needs --deep" in check for check in shallow.not_made)
    assert not any("needs --deep" in check for check in deep.not_made)
    complete = inspect(path, deep=True, target=str(target))
    assert not any("embed_tokens" in check or "target" in check for check in complete.not_made)


def test_a_different_embedding_is_found_and_told_to_the_engines(source: Source, tmp_path: Path) -> None:
    other = tiny.floats("model.embed_tokens.weight", (tiny.VOCAB, 64), "BF16", seed=3)
    target = tiny.write_target(tmp_path / "target", tables={"model.embed_tokens.weight": other})
    found = inspect(source("torchspec-native", "llama"), deep=True, target=str(target))
    assert "embedding-differs" in {problem.code for problem in found.problems}
    assert status(found)["sglang"] == "mis-read"


# ── what to type next ──────────────────────────────────────────────────────────────


def proposals() -> list[tuple[str, str, tuple[str, ...], str | None]]:
    return [
        ("torchspec-native", "3.1", (), "portable"),
        ("torchspec-native", "3.1", ("vllm",), "vllm"),
        ("modelopt-layers", "bias", (), "vllm"),
        ("speculators", "norm-before-residual", ("sglang",), None),
        ("torchspec-native", "mla-plain-q", (), None),
        ("torchspec-native", "mla-reduced", (), "vllm"),
    ]


@pytest.mark.parametrize(("producer", "variant", "engines", "wanted"), proposals())
def test_the_proposed_conversion_is_possible(
    producer: str, variant: str, engines: tuple[str, ...], wanted: str | None, source: Source, tmp_path: Path
) -> None:
    path = source(producer, variant)
    options = remedy(inspect(path, engines=engines))
    assert (options.to if options else None) == wanted
    if options:
        convert(path, tmp_path / "out", **keywords(options))
        after = status(inspect(tmp_path / "out", engines=engines))
        assert {after[name] for name in after if options.to in (name, "portable")} == {"loads"}


def test_every_proposal_is_possible(source: Source, tmp_path: Path) -> None:
    """For each producer and variant: what is proposed converts, and then reads rightly where it was asked for."""
    for producer, variant in tiny.PAIRS[::3]:
        path = source(producer, variant)
        options = remedy(inspect(path))
        if options:
            out = tmp_path / f"{producer}-{variant}"
            convert(path, out, **keywords(options))
            after = status(inspect(out))
            assert all(after[name] == "loads" for name in after if options.to in (name, "portable")), (
                producer,
                variant,
            )


def test_a_repair_is_part_of_the_proposal(tmp_path: Path) -> None:
    spelled = tiny.spell("reduced", "torchspec-native")
    spelled.put("d2t", tiny.integers(tiny.ASCENDING))
    options = remedy(inspect(spelled.write(tmp_path / "source")))
    assert options is not None
    assert (options.to, options.repairs) == ("portable", ("d2t-absolute",))
    convert(tmp_path / "source", tmp_path / "out", **keywords(options))


def test_what_cannot_be_repaired_is_not_proposed(tmp_path: Path) -> None:
    spelled = tiny.spell("llama", "torchspec-native").remove("norm.weight")
    assert remedy(inspect(spelled.write(tmp_path / "source"))) is None


def test_nothing_is_proposed_when_all_is_well(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    options = remedy(inspect(path))
    assert options is not None
    convert(path, tmp_path / "out", **keywords(options))
    found = inspect(tmp_path / "out")
    assert set(status(found).values()) == {"loads"}
    assert remedy(found) is None


# ── what is not a drafter ──────────────────────────────────────────────────────────


def test_strangers(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(b"")
    target = tiny.write_target(tmp_path / "target")
    for path, error in (
        (tmp_path / "nowhere", BadCheckpoint),
        (tmp_path / "empty", BadCheckpoint),
        (tmp_path / "dcp", NeedsExport),
        (target, NotADrafter),
    ):
        with pytest.raises(error) as caught:
            inspect(path)
        assert caught.value.what
