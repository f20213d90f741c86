"""The directories that both readings are asked about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from draftconv.api.inspect import inspect
from draftconv.api.quantize import quantize
from draftconv.checkpoint import open_checkpoint
from draftconv.errors import Refused
from truth.drafts import DATA, FIXTURES, Directory, Makers, read, target_of, target_path
from truth.producers import spelled, spellings
from truth.trtllm.compare import Question, View
from truth.trtllm.mutations import MUTATIONS
from truth.trtllm.outcome import Header
from truth.vllm import loader_cases, matcher
from truth.vllm.reader import READER

DTYPES = {
    "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "float8_e4m3fn": "F8_E4M3", "int8": "I8",
    "uint8": "U8", "int16": "I16", "int32": "I32", "int64": "I64", "bool": "BOOL",
}  # fmt: skip
"""torch dtype → as safetensors spells it."""


def view(directory: Directory) -> View:
    """A directory in memory as its headers would be."""
    tensors = {
        name: Header(DTYPES[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape))
        for name, tensor in directory.tensors.items()
    }
    return View(directory.config, tensors, directory.sidecars)


def made_for_vllm(work: Path) -> Iterator[Question]:
    """The cases of vLLM's table: other engines' spellings, and every change that was ever found to matter."""
    makers = Makers(work, READER)
    for case in loader_cases.CASES:
        base = makers.base(case.base)
        facts = replace(read(base, case.base).facts, **case.facts)  # type: ignore[arg-type]
        directory = case.change(Directory.open(base))
        yield Question(f"as for vLLM: {case.name}", view(directory), facts, target_of(case.base), case.known)


def declared(work: Path) -> Iterator[Question]:
    """The declarations of vLLM's table of matchers, each on a drafter that is not quantized or is so otherwise."""
    makers = Makers(work, READER)
    for case in matcher.CASES:
        base = makers.base(case.base)
        facts = read(base, case.base).facts
        directory = Directory.open(base).set(quantization_config=dict(case.declared))
        yield Question(f"declared: {case.name}", view(directory), facts, target_of(case.base))


def producers(work: Path) -> Iterator[Question]:
    """Every fixture in every layout whose producer could have trained it."""
    for name, layout in spellings():
        yield opened(f"{name} as {layout} writes it", spelled(work, name, layout), name)


def opened(case: str, path: Path, name: str) -> Question:
    """A directory on disk, with the facts and problems that `inspect` finds in it."""
    inspection = inspect(path, target=str(target_path(name)), deep=True)
    known = frozenset(problem.code for problem in inspection.problems)
    return Question(case, View.of(open_checkpoint(path)), inspection.drafter.facts, target_of(name), known)


def converted(work: Path) -> Iterator[Question]:
    """What draftconv itself writes for TensorRT-LLM."""
    makers = Makers(work, READER)
    for name in FIXTURES:
        source = DATA / "drafters" / name
        for layout in ("trtllm", "portable"):
            try:
                path = makers.converted(source, name, layout)
            except Refused:  # TensorRT-LLM, or one engine of the three, reads no spelling of it
                continue
            yield opened(f"{name} --to {layout}", path, name)


def quantized(work: Path) -> Iterator[Question]:
    """What draftconv quantizes for TensorRT-LLM, by recipes whose activations need no trace."""
    (work / "quantized").mkdir(exist_ok=True)
    for name in FIXTURES:
        for recipe in RECIPES:
            path = work / "quantized" / f"{name}-{recipe}"
            if not path.exists():
                quantize(
                    DATA / "drafters" / name,
                    path,
                    recipe=recipe,
                    engines=("trtllm:b200",),
                    target=str(target_path(name)),
                )
            yield opened(f"{name} quantized with {recipe}", path, name)


def mutated(work: Path) -> Iterator[Question]:
    """draftconv's own files, each changed in one point."""
    makers = Makers(work, READER)
    for mutation in MUTATIONS:
        path = makers.converted(DATA / "drafters" / mutation.base, mutation.base, "trtllm")
        facts = replace(read(path, mutation.base).facts, **mutation.facts)  # type: ignore[arg-type]
        directory = mutation.change(Directory.open(path))
        yield Question(mutation.name, view(directory), facts, target_of(mutation.base), mutation.known)


RECIPES = ("w4a16-awq", "w4a16-g128")


def everything(work: Path) -> Iterator[Question]:
    yield from made_for_vllm(work)
    yield from declared(work)
    yield from producers(work)
    yield from converted(work)
    yield from quantized(work)
    yield from mutated(work)
