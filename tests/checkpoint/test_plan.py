import json
from pathlib import Path

import pytest

from draftconv.checkpoint import (
    Cast,
    Computed,
    Copy,
    Hashes,
    Literal,
    Operation,
    Plan,
    PlannedTensor,
    Rows,
    TensorRef,
    open_checkpoint,
)
from draftconv.checkpoint.plan import INDEX, SINGLE
from tests.checkpoint.made import Halves, directory


@pytest.fixture
def refs(tmp_path: Path) -> dict[str, TensorRef]:
    return dict(open_checkpoint(directory(tmp_path / "source")).tensors)


def literal(name: str, size: int = 4) -> PlannedTensor:
    return PlannedTensor(name, "U8", (size,), Literal(bytes(size)))


def test_shapes_and_dtypes_must_follow(refs: dict[str, TensorRef]) -> None:
    fc, head, d2t = refs["fc.weight"], refs["lm_head.weight"], refs["d2t"]
    order = tuple(range(50))
    wrong: list[tuple[str, tuple[int, ...], Operation]] = [
        ("F16", (24, 72), Copy(fc)),
        ("BF16", (24, 71), Copy(fc)),
        ("F16", (24, 72), Cast(fc, "F32")),
        ("F32", (24, 73), Cast(fc, "F32")),
        ("I32", (50,), Cast(d2t, "I32")),
        ("F32", (50,), Cast(d2t, "F32")),
        ("F16", (49, 24), Rows(head, order)),
        ("F16", (50, 24), Rows(head, (*order[:-1], 50))),
        ("F16", (50, 24), Rows(head, (*order[:-1], -1))),
        ("BF16", (50, 24), Rows(head, order)),
        ("I32", (50,), Rows(d2t, order, "I32")),
        ("F32", (1,), Rows(refs["scalar"], (0,))),
        ("U8", (3,), Literal(b"1234")),
    ]
    for dtype, shape, operation in wrong:
        with pytest.raises(ValueError, match="out"):
            PlannedTensor("out", dtype, shape, operation)
    PlannedTensor("out", "BF16", (72, 24), Copy(fc))
    PlannedTensor("out", "BF16", (50, 24), Rows(head, order, "BF16"))
    PlannedTensor("out", "I64", (2,), Rows(d2t, (7, 7)))


def test_one_file_in_the_order_of_safetensors(refs: dict[str, TensorRef]) -> None:
    plan = Plan(tuple(PlannedTensor(ref.name, ref.dtype, ref.shape, Copy(ref)) for ref in refs.values()))
    (shard,) = plan.shards()
    assert shard.file_name == SINGLE
    assert [placed.tensor.name for placed in shard.tensors] == list(refs)
    assert [placed.start for placed in shard.tensors] == [ref.offset for ref in refs.values()]
    assert shard.size == next(iter(refs.values())).file.size
    assert plan.total_bytes == sum(ref.nbytes for ref in refs.values())
    assert plan.index() is None
    assert plan.metadata == {"format": "pt"}


def test_shards_and_index() -> None:
    plan = Plan(tuple(literal(name, size) for name, size in [("d", 3), ("c", 3), ("b", 9), ("a", 1)]), shard_size=6)
    assert [(shard.file_name, [placed.tensor.name for placed in shard.tensors]) for shard in plan.shards()] == [
        ("model-00001-of-00003.safetensors", ["c", "d"]),
        ("model-00002-of-00003.safetensors", ["b"]),
        ("model-00003-of-00003.safetensors", ["a"]),
    ]
    assert plan.index() == {
        "metadata": {"total_size": 16},
        "weight_map": {
            "a": "model-00003-of-00003.safetensors",
            "b": "model-00002-of-00003.safetensors",
            "c": "model-00001-of-00003.safetensors",
            "d": "model-00001-of-00003.safetensors",
        },
    }
    assert json.loads(plan.small_files(Hashes({}, {}))[INDEX]) == plan.index()


def test_small_files_are_plain_json_and_text() -> None:
    plan = Plan(
        (literal("a"),),
        {"config.json": {"b": "ä", "a": [1]}, "README.md": "# hé\n"},
        metadata={"who": "me", "format": "np"},
    )
    assert plan.small_files(Hashes({}, {})) == {
        "config.json": '{\n  "b": "ä",\n  "a": [\n    1\n  ]\n}\n'.encode(),
        "README.md": "# hé\n".encode(),
    }
    assert plan.metadata == {"who": "me", "format": "pt"}


@pytest.mark.parametrize(
    ("tensors", "names", "fault"),
    [
        ((), ("config.json",), "without tensors"),
        (("a", "a"), (), "twice"),
        (("__metadata__",), (), "reserved"),
        (("a",), ("../config.json",), "not plain"),
        (("a",), ("x/config.json",), "not plain"),
        (("a",), (SINGLE,), "taken"),
        (("a",), (INDEX,), "taken"),
    ],
)
def test_plan_refuses(tensors: tuple[str, ...], names: tuple[str, ...], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Plan(tuple(literal(name) for name in tensors), {name: {} for name in names})


def test_a_shard_holds_something() -> None:
    with pytest.raises(ValueError, match="shard size of 0"):
        Plan((literal("a"),), shard_size=0)


def test_files_that_tell_of_computed_tensors_come_last() -> None:
    plan = Plan((literal("a"),), {"config.json": {}}, lambda made: {"made.json": dict(made.tensors), "README.md": "hé"})
    assert plan.small_files(Hashes({"b": "12ab"}, {})) == {
        "config.json": b"{}\n",
        "made.json": b'{\n  "b": "12ab"\n}\n',
        "README.md": "hé".encode(),
    }


@pytest.mark.parametrize("name", ["config.json", "../made.json", SINGLE])
def test_the_last_files_have_names_of_their_own(name: str) -> None:
    plan = Plan((literal("a"),), {"config.json": {}}, lambda _: {name: ""})
    with pytest.raises(ValueError, match="taken or not plain"):
        plan.small_files(Hashes({}, {}))


def test_peak_memory_is_known_beforehand(refs: dict[str, TensorRef]) -> None:
    fc = refs["fc.weight"]
    copy = Plan((PlannedTensor("a", "BF16", fc.shape, Copy(fc)),))
    cast = Plan((PlannedTensor("a", "F32", fc.shape, Cast(fc, "F32")), literal("b", 1000)))
    assert copy.peak_memory < cast.peak_memory < 250 * 1024 * 1024


def test_peak_memory_counts_the_largest_computation(refs: dict[str, TensorRef]) -> None:
    """They run one after another, however many parts and tensors they yield."""

    def plan(*sizes: int) -> Plan:
        computations = [Halves(refs["fc.weight"], memory=size) for size in sizes]
        return Plan(
            tuple(
                PlannedTensor(f"{i}.{part}", "U8", (1728,), Computed(computation, part))
                for i, computation in enumerate(computations)
                for part in ("low", "high")
            )
        )

    assert plan(1 << 30).peak_memory - plan(1 << 20).peak_memory == (1 << 30) - (1 << 20)
    assert plan(1 << 20, 1 << 30, 1 << 25).peak_memory == plan(1 << 30).peak_memory
