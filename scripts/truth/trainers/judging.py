"""One case asked: what draftconv does with a drafter, what the trainer makes of it, and whether that is right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from draftconv.api.convert import convert
from draftconv.checkpoint import open_checkpoint
from draftconv.conversion import passes, planned_output
from draftconv.drafter.checks import check_drafter
from draftconv.drafter.drafter import Drafter
from draftconv.drafter.facts import Facts
from draftconv.drafter.tensors import EMBEDDING
from draftconv.errors import DraftconvError, Refused
from draftconv.layouts.reader import read_drafter
from draftconv.reference.drafter import DrafterModel
from draftconv.reference.load import forward_of, load_drafter, to_torch
from tests import tiny
from truth.trainers import cases, folding
from truth.trainers.cases import MORE, STILL, TOLD, UNMADE, UNTARGETED, UNWRITTEN, Written
from truth.trainers.quantized import Trained, quantized
from truth.trainers.shared import READER, Directory, Makers, plain, read, target_of, target_path, whole
from truth.trainers.steps import Inputs, Steps, compared, reference_steps
from truth.trainers.table import Row
from truth.trainers.trainer import Producer, Trainer, trainer

LAYERS = 8
"""Of the targets of the fixtures, and of the imaginary one of the tiny drafters."""


def rows(name: str, work: Path) -> Iterator[Row]:
    """Every case of one trainer."""
    asked = trainer(name)
    asked.ORIGIN.prepare()
    makers = Makers(work, READER)
    for case in cases.written(name):
        yield _written(case, asked, makers)
    if name == "modelopt":
        for base in folding.SOURCES:
            yield from folding.rows(asked, base, _of_modelopt(base, makers), makers.work)
    if hasattr(asked, "WRITES"):
        producer: Any = asked
        for variant in cases.made(producer.WRITES):
            yield from _made(name, variant, producer, work)
    if hasattr(asked, "SCHEMES"):
        quantizer: Any = asked
        for base in (*cases.TWICE, "mla-eagle3"):
            trained = Trained(base, _of_modelopt(base, makers), target_of(base), target_path(base))
            yield from quantized(name, quantizer, trained, work, broken=base == cases.TWICE[0])


# ── what draftconv writes ──────────────────────────────────────────────────────────


def _written(case: Written, asked: Trainer, makers: Makers) -> Row:
    path = _source(case.source, makers)
    source, target = _open(path, case.source), None if case.lone or case.source in UNTARGETED else _target(case.source)
    reference = load_drafter(source, target_of(_base(case.source)))
    if case.layout.startswith("modelopt"):  # whoever else reads it normalises the state once, as engines do
        _as_trained(reference, source.facts)
    inputs = Inputs.of(source.facts)
    out = makers.work / "trainers" / case.trainer / case.name.replace("/", "-")
    out.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = (
        {"to": case.layout, "target": target} if target else {"to": case.layout, "target_layers": LAYERS}
    )
    if case.layout == "speculators":
        options["verifier"] = str(target_path(_base(case.source)))
    refusal = next((limit.what for limit in UNWRITTEN.get(case.trainer, ()) if limit.holds(source.facts)), "")
    try:
        convert(path, out, **options)
    except Refused as error:
        refusal = error.what
        try:
            with lifted():
                convert(path, out, **options)
        except Refused as again:
            return Row("written", case.trainer, case.name, "refused", "not spelled", True, f"{refusal}; {again.what}")
    observed, detail = _opened(asked, out, reference.embed_tokens.weight, inputs, reference_steps(reference, inputs))
    if refusal:
        return Row("written", case.trainer, case.name, "refused", observed, observed != "equal", f"{refusal}; {detail}")
    if why := STILL.get((case.trainer, case.source)):
        return Row("written", case.trainer, case.name, f"differs: {why}", observed, observed == "differs", detail)
    return Row("written", case.trainer, case.name, "equal", observed, observed == "equal", detail)


def _base(source: str) -> str:
    name = source.removesuffix(" of ModelOpt")
    return MORE[name][0] if name in MORE else name


def _target(source: str) -> str:
    return str(target_path(_base(source)))


def _source(source: str, makers: Makers) -> Path:
    """The directory of a drafter in vLLM's spelling, or in ModelOpt's."""
    name = source.removesuffix(" of ModelOpt")
    if name in MORE:
        base, change = MORE[name]
        path = makers.work / "more" / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            whole(path, change(Directory.open(makers.base(base))))
        return path
    if name == source:
        return makers.base(name)
    return _of_modelopt(name, makers)


def _of_modelopt(name: str, makers: Makers) -> Path:
    """A drafter as ModelOpt would have written it: its names and keys, no embedding, no t2d."""
    path = makers.work / "modelopt" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        drafter, stored = read(makers.base(name), name), Directory.open(makers.base(name)).tensors
        tensors = {
            canonical: tiny.Tensor(
                drafter.tensors[canonical].dtype,
                tuple(stored[file].shape),
                stored[file].contiguous().view(torch.uint8).numpy().tobytes(),
            )
            for canonical, file in drafter.names.items()
        }
        maps = drafter.maps.map if drafter.maps else None
        variant = tiny.Variant(
            name,
            replace(drafter.facts, own_embedding=True),
            ids=maps.ids if maps and drafter.facts.reduced_vocab else None,
        )
        tiny.spell(variant, "modelopt-layers", trained=tensors).write(path)
    return path


def _open(path: Path, source: str) -> Drafter:
    """As the command line reads it, with the target that it fits."""
    if source in UNTARGETED:
        return read_drafter(open_checkpoint(path))
    return read(path, _base(source))


@contextmanager
def lifted() -> Iterator[None]:
    """What draftconv would write if it refused nothing: limits, required tables and the second look are left out."""
    kept = tuple(step for step in passes.PASSES if step.name not in ("limits", "embedding"))
    with patch.object(passes, "PASSES", kept), patch.object(planned_output, "_remaining", lambda *_: ()):
        yield


def _opened(asked: Trainer, path: Path, embedding: Tensor, inputs: Inputs, mine: Steps) -> tuple[str, str]:
    """What a trainer makes of a directory: `equal`, `differs` or `stops`, and figures or what it said."""
    try:
        theirs = asked.run(asked.load(path, embedding), inputs)
    except Exception as error:  # whatever it raises is its answer
        return "stops", _said(error)
    return compared(mine, theirs)


def _said(error: Exception) -> str:
    return plain(f"{type(error).__name__}: {' '.join(str(error).split())}")


def _as_trained(model: DrafterModel, facts: Facts) -> None:
    """Let the reference normalise the state as its trainer does."""
    first: Any = model.layers[0]
    first.double_norm = facts.double_norm


# ── what trainers write ────────────────────────────────────────────────────────────


def _made(name: str, variant: tiny.Variant, producer: Producer, work: Path) -> Iterator[Row]:
    """A drafter of the trainer's own class with random weights: saved by it and read, and sent back to it."""
    layout, case = producer.WRITES, variant.name
    config = dict(tiny.spell(variant, layout).config)
    inputs = Inputs.of(variant.facts)
    path = work / "made" / name / variant.name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        size = {"draft_vocab_size": variant.facts.draft_vocab}  # which ModelOpt's MLA config keeps to itself
        model = producer.build(config | size, None).float()
        randomise(model, variant)
        theirs = producer.run(model, inputs)
        setattr(model, "written", config)  # noqa: B010 - for trainers that copy their config through
        producer.save(model, path)
    except Exception as error:  # whatever it raises is its answer
        why = UNMADE.get((name, case), "")
        yield Row("read", name, case, "cannot be made" if why else "made", "stops", bool(why), f"{why}; {_said(error)}")
        return
    drafter = read_drafter(open_checkpoint(path))
    predicted, agrees = "equal", True
    for problem in check_drafter(drafter, None).problems:
        if problem.code in TOLD:
            predicted = f"differs: {problem.code}"
            trained = replace(drafter, facts=TOLD[problem.code](drafter.facts))
            agrees = compared(theirs, reference_steps(_reference(trained, model), inputs))[0] == "equal"
    observed, detail = compared(theirs, reference_steps(_reference(drafter, model), inputs))
    agrees = agrees and observed == predicted.partition(":")[0]
    yield Row("read", name, case, predicted, observed, agrees, detail)
    if producer.WRITES in cases.WRITTEN.get(name, ()):
        yield _back(name, case, producer, path, model, inputs, theirs)


def _back(name: str, case: str, producer: Producer, path: Path, model: nn.Module, inputs: Inputs, theirs: Steps) -> Row:
    """What the trainer saved, converted to its own layout and opened by it again."""
    out = path.with_name(f"{path.name}-back")
    target = path.with_name(f"{path.name}-target")
    table = embedding_of(model)
    facts = tiny.VARIANTS[case].facts
    tables = {"model.embed_tokens.weight": table, "lm_head.weight": table}
    Directory(tiny.target_config(facts), tables).write(target)
    options: dict[str, Any] = {"verifier": str(target)} if producer.WRITES == "speculators" else {}
    if facts.target_hidden == facts.hidden:
        options["target"] = str(target)
    else:
        options["target_layers"] = LAYERS  # the drafter's own table is not the target's then
    try:
        convert(path, out, to=producer.WRITES, accept_detected=True, **options)
    except DraftconvError as error:
        return Row("back", name, case, "equal", "refused", False, error.what)
    try:
        observed, detail = compared(theirs, producer.run(producer.load(out, table), inputs))
    except Exception as error:  # whatever it raises is its answer
        observed, detail = "stops", _said(error)
    return Row("back", name, case, "equal", observed, observed == "equal", detail)


def _reference(drafter: Drafter, model: nn.Module) -> DrafterModel:
    """What draftconv takes the file for; without an embedding of its own, the table that the trainer used."""
    tensors = {name: to_torch(ref) for name, ref in drafter.tensors.items() if name not in ("d2t", "t2d")}
    if EMBEDDING not in tensors:
        tensors[EMBEDDING] = embedding_of(model)
    if drafter.facts.reduced_vocab:
        if drafter.maps is None or drafter.maps.map is None:
            raise Refused("the map of a reduced vocabulary was not read")
        ids = torch.tensor(drafter.maps.map.ids)
        tensors["d2t"] = ids - torch.arange(len(ids))
    return forward_of(drafter.facts).from_tensors(drafter.facts, tensors, as_trained=drafter.facts.double_norm)


def embedding_of(model: nn.Module) -> Tensor:
    """The only embedding that a model holds."""
    (table,) = (module.weight for module in model.modules() if isinstance(module, nn.Embedding))
    return table.detach().float()


def randomise(model: nn.Module, variant: tiny.Variant) -> None:
    """Weights that no two tensors share, and the variant's vocabulary map."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.copy_(drawn + 1 if "norm" in name else drawn)
        if variant.ids is not None:
            ids = torch.tensor(variant.ids)
            for name, buffer in model.named_buffers():
                if name.endswith("d2t"):
                    buffer.copy_(ids - torch.arange(len(ids)))
                elif name.endswith("t2d"):
                    buffer.zero_()
                    buffer[ids] = True
