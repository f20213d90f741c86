"""An embedding is dropped only where it is proven to be the target's, and attached only where it fits."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from draftconv.api.convert import ConvertOptions, convert
from draftconv.api.verify import verify
from draftconv.errors import DraftconvError, Refused, UsageError
from tests import tiny
from tests.api.conftest import Source
from tests.keywords import keywords
from tests.layouts.spelled import document, on_disk, start_for, stored


def test_drop_needs_proof(source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    with pytest.raises(UsageError, match="needs the target's weights"):
        convert(path, tmp_path / "out", to="vllm", embed="drop")
    other = tiny.floats("model.embed_tokens.weight", (tiny.VOCAB, 64), "BF16", seed=5)
    strange = tiny.write_target(tmp_path / "strange", tables={"model.embed_tokens.weight": other})
    with pytest.raises(Refused, match="is not the target's") as caught:
        convert(path, tmp_path / "out", to="vllm", embed="drop", target=str(strange))
    assert "first in row 0" in caught.value.why
    assert [item.name for item in tmp_path.iterdir()] == ["strange"]


@pytest.mark.parametrize("force", [False, True])
def test_drop_leaves_the_table_to_the_target(force: bool, source: Source, tmp_path: Path) -> None:
    path = source("torchspec-native", "llama")
    target = None if force else str(tiny.write_target(tmp_path / "target"))
    conversion = convert(path, tmp_path / "out", to="vllm", embed="drop", force=force, target=target)
    wanted = stored(tiny.spell("llama", "torchspec-native"), "vllm")
    del wanted["embed_tokens.weight"]
    assert on_disk(tmp_path / "out") == wanted
    why = {change.what: change.why for change in conversion.changes}["embed_tokens.weight"]
    assert why == ("dropped without proof (--force)" if force else "bit-equal to the table of target")
    assert verify(tmp_path / "out", path, target=target, force=force).passed
    assert verify(tmp_path / "out", path).result == "claimed"


def test_a_table_that_was_replaced_is_recorded_so(source: Source, tmp_path: Path) -> None:
    """`verify` asks for it: what was added is not in the source."""
    target = str(tiny.write_target(tmp_path / "target"))
    for producer, kind in (("torchspec-native", "replaced"), ("modelopt-layers", "added")):
        path = source(producer, "llama")
        conversion = convert(path, tmp_path / producer, to="vllm", embed="from-target", target=target)
        assert [change.kind for change in conversion.changes if change.what == "embed_tokens.weight"] == [kind]


def test_the_targets_table_is_attached(source: Source, tmp_path: Path) -> None:
    path = source("modelopt-layers", "llama")
    target = tiny.write_target(tmp_path / "target")
    options = ConvertOptions(to="vllm", embed="from-target", target=str(target))
    conversion = convert(path, tmp_path / "out", **keywords(options))
    table = tiny.build(tiny.VARIANTS["llama"])["embed_tokens.weight"]
    assert on_disk(tmp_path / "out")["embed_tokens.weight"] == table
    assert conversion.drafter.facts.own_embedding is False
    assert verify(tmp_path / "out", path, target=str(target)).passed
    assert verify(tmp_path / "out", path).result == "claimed"
    made = document(tmp_path / "out", "draftconv.json")["made"]
    assert made == {"embed_tokens.weight": hashlib.sha256(table.data).hexdigest()}


@pytest.mark.parametrize(
    ("to", "variant", "options", "reason"),
    [
        ("vllm", "llama", {}, "needs --target"),
        ("vllm", "wide-target", {"target": "TARGET"}, "no embed_tokens of 160 x 64"),
        ("modelopt", "llama", {"target": "TARGET"}, "never stores embed_tokens"),
    ],
)
def test_a_table_that_cannot_be_attached_is_refused(
    to: str, variant: str, options: dict[str, Any], reason: str, source: Source, tmp_path: Path
) -> None:
    target = tiny.write_target(tmp_path / "target", tiny.VARIANTS[variant])
    chosen: dict[str, Any] = {key: str(target) for key in options}
    with pytest.raises(DraftconvError, match=reason):
        options_ = ConvertOptions(to=to, embed="from-target", **chosen)
        convert(source(start_for(to), variant), tmp_path / "out", **keywords(options_))
    assert not (tmp_path / "out").exists()


def test_a_wide_targets_table_is_not_dropped(source: Source, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not as wide"):
        convert(source("torchspec-native", "wide-target"), tmp_path / "out", to="vllm", embed="drop", force=True)


def with_a_table(tmp_path: Path, target: str) -> Path:
    """A drafter of ModelOpt's that went to TorchSpec and got the target's table there."""
    path = tiny.spell("llama", "modelopt-layers").write(tmp_path / "trained")
    convert(path, tmp_path / "source", to="torchspec", embed="from-target", target=target)
    return tmp_path / "source"


def test_modelopt_does_not_drop_a_table_that_differs(tmp_path: Path) -> None:
    same = str(tiny.write_target(tmp_path / "same"))
    source = with_a_table(tmp_path, same)
    proven = convert(source, tmp_path / "proven", to="modelopt", target=same)
    assert any("bit-equal" in change.why for change in proven.changes)
    stored = on_disk(source)["embed_tokens.weight"]
    other = {"model.embed_tokens.weight": tiny.floats("other", stored.shape, stored.dtype)}
    target = str(tiny.write_target(tmp_path / "target", tables=other))
    with pytest.raises(Refused, match="not the target's"):
        convert(source, tmp_path / "out", to="modelopt", target=target)
    convert(source, tmp_path / "forced", to="modelopt", target=target, force=True)
    convert(source, str(tmp_path / "unknown"), to="modelopt")


def test_a_targets_config_is_enough_where_no_table_is_compared(tmp_path: Path) -> None:
    target = tiny.write_target(tmp_path / "target")
    source = with_a_table(tmp_path, str(target))
    (target / "model.safetensors").unlink()
    found = convert(source, tmp_path / "out", to="modelopt", target=str(target))
    assert any("not compared" in change.why for change in found.changes)
    with pytest.raises(UsageError, match="needs the target's weights"):
        convert(source, tmp_path / "other", to="vllm", embed="drop", target=str(target))
