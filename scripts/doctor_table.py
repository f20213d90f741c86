"""Have the doctor look at real servers that are wrong in known ways.

    scripts/doctor-table               print the table
    scripts/doctor-table --write       put it into docs/doctor.md
    scripts/doctor-table --sample      a few servers only, as every test run does

Every server is a vLLM on a CPU, in float32, with a trained fixture and one thing about it changed: a file, a flag, an
argument. The doctor gets its address, the drafter as it should be and a trace of the target, and nothing of what was
changed. Sound servers must be called sound, every fault be named, and of two faults at once neither be named wrongly.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from measuring import engine_python
from truth.drafts import DATA, IDS, LAYER, Change, Directory, Makers, family, target_path, whole
from truth.vllm.reader import READER

from draftconv.api.doctor import Diagnosis, doctor
from draftconv.api.serve import serve
from draftconv.api.trace import trace
from draftconv.errors import EngineError
from draftconv.live.capabilities import live_of
from draftconv.live.launch import Launch, address, free_port, launched
from draftconv.live.measuring_command import measuring

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/doctor.md"
PART = re.compile(r"(<!-- doctored: servers -->\n).*?(<!-- end: servers -->)", re.DOTALL)
ENGINE = engine_python()

SPEC = "vllm:cpu"
LENGTH, DEPTH, REQUESTS = 64, 3, 32
SPECULATIVE = "--speculative-config"


def same(directory: Directory) -> Directory:
    """As it is."""
    return directory


def ones(name: str) -> Change:
    """Without the tensors of a norm, whose weights then stay at one."""
    return lambda directory: directory.drop(name)


def zero_map(directory: Directory) -> Directory:
    """A vocabulary map that maps nothing."""
    return directory.put("d2t", torch.zeros_like(directory.tensors["d2t"]))


def without_final_norm(directory: Directory) -> Directory:
    """Without the norm before the head, whose name is part of others'."""
    kept = {name: tensor for name, tensor in directory.tensors.items() if name != "norm.weight"}
    return replace(directory, tensors=kept)


def other_base(directory: Directory) -> Directory:
    """Another base of the rotary embedding, in both spellings."""
    return directory.set(rope_theta=1e6, rope_parameters={"rope_type": "default", "rope_theta": 1e6})


def noise(directory: Directory) -> Directory:
    """A head that was never trained."""
    head = directory.tensors["lm_head.weight"].float()
    generator = torch.Generator().manual_seed(7)
    return directory.put(
        "lm_head.weight", (torch.randn(head.shape, generator=generator) * head.std()).to(torch.bfloat16)
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A server.

    Attributes:
        says: what was done to it. `base`: the fixture that the doctor is given as its drafter.
        expects: `sound`, `unknown`, `refused` by the engine, or what the doctor has to name.
        change: of the directory that is served, which is that of `serves` where it is named.
        speculative: keys of the speculative config, None to leave one out. `alone`: without any.
        arguments: more of the server's. `options`: more of the doctor's. `suspects`: fixtures that it is told of.
    """

    says: str
    base: str
    expects: str
    change: Change = same
    serves: str = ""
    speculative: Mapping[str, object] = field(default_factory=dict)
    alone: bool = False
    arguments: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    suspects: tuple[str, ...] = ()


CASES: tuple[Case, ...] = (
    Case("nothing is wrong", "llama-eagle3", "sound"),
    Case("nothing is wrong", "mla-eagle3.1", "sound"),
    Case("config.json without norm_output", "llama-eagle3.1", "feedback norm", lambda d: d.unset("norm_output")),
    Case("layer ids one too low", "llama-eagle3", "boundaries - 1", lambda d: d.set(**{IDS: [1, 3, 4]})),
    Case("layer ids one too high", "mla-eagle3", "boundaries + 1", lambda d: d.set(**{IDS: [3, 5, 6]})),
    Case("d2t all zero", "llama-eagle3-reduced", "d2t zeroed", zero_map),
    Case("the file lacks hidden_norm", "llama-eagle3", "hidden_norm of ones", ones(f"{LAYER}hidden_norm")),
    Case("the file lacks input_layernorm", "llama-eagle3", "input_layernorm of ones", ones(f"{LAYER}input_layernorm")),
    Case("the file lacks post_attention_layernorm", "mla-eagle3", "post_attention_layernorm of ones",
         ones(f"{LAYER}post_attention_layernorm")),
    Case("the file lacks fc_norm", "llama-eagle3.1", "fusion norm of ones", ones("fc_norm.")),
    Case("the file lacks the final norm", "llama-eagle3.1", "final norm of ones", without_final_norm),
    Case("rope_theta is 1000000", "llama-eagle3", "rope base", other_base),
    Case("norm_before_residual is true", "llama-eagle3", "norm before residual",
         lambda d: d.set(norm_before_residual=True)),
    Case("use_aux_hidden_state is false: EAGLE in place of EAGLE-3", "llama-eagle3", "last state",
         lambda d: d.nest(use_aux_hidden_state=False)),
    Case("a head that was never trained", "llama-eagle3", "random lm_head", noise),
    Case("K is 2, 3 were asked for", "llama-eagle3", "depth", speculative={"num_speculative_tokens": 2},
         options={"num_speculative_tokens": 3}),
    Case("another drafter, which the doctor is told of", "llama-eagle3", "llama-eagle3.1", serves="llama-eagle3.1",
         suspects=("llama-eagle3.1",)),
    Case("no drafter", "llama-eagle3", "drafts", alone=True),
    Case("the server takes 100 tokens", "llama-eagle3", "context", arguments=("--max-model-len", "100")),
    Case("the drafter takes 100 tokens", "llama-eagle3", "drafts end at", speculative={"max_model_len": 100}),
    Case("method is eagle", "llama-eagle3", "refused", speculative={"method": "eagle"}),
    Case("another drafter, which nobody tells of", "llama-eagle3", "unknown", serves="llama-eagle3.1"),
    Case("layer ids of nobody: 1, 4, 6", "llama-eagle3", "unknown", lambda d: d.set(**{IDS: [1, 4, 6]})),
    Case("two faults: layer ids one too low, no norm_output", "llama-eagle3.1", "unknown",
         lambda d: d.set(**{IDS: [1, 3, 4]}).unset("norm_output")),
    Case("two faults: no hidden_norm, rope_theta is 1000000", "llama-eagle3", "unknown",
         lambda d: other_base(d.drop(f"{LAYER}hidden_norm"))),
    Case("two faults: layer ids one too high, norm_before_residual", "mla-eagle3", "unknown",
         lambda d: d.set(**{IDS: [3, 5, 6]}, norm_before_residual=True)),
)  # fmt: skip

RIGHT = "yes"
SAMPLE = (0, 2, 4)
"""What every test run asks."""


@dataclass(frozen=True, slots=True)
class DoctorRow:
    """What the doctor said of a server.

    Attributes:
        seconds: from asking to answer. `found`: None where the engine did not start.
    """

    case: Case
    found: Diagnosis | None
    why: str
    seconds: float

    @property
    def said(self) -> str:
        """The outcome, and what is named."""
        if self.found is None:
            return "refused"
        names = [*(fault.kind for fault in self.found.told), *(reading.name for reading in self.found.named)]
        return f"{self.found.outcome}: {', '.join(names)}" if names else self.found.outcome

    @property
    def right(self) -> bool:
        """Whether that is what was to be said."""
        if self.case.expects in ("sound", "unknown", "refused"):
            return self.said == self.case.expects
        return self.found is not None and self.found.outcome == "fault" and self.case.expects in self.said

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        heard = self.found.heard if self.found else None
        best = heard.judged.explanations[0] if heard else None
        return (
            self.case.base,
            self.case.says,
            self.said,
            f"{best.equal} of {len(best.replayed)}" if best else "",
            f"{heard.judged.server.accept_length:.3f}" if heard and heard.judged.server.steps else "",
            f"{heard.should:.3f}" if heard else "",
            RIGHT if self.right else "NO",
        )


class Clinic:
    """Directories, traces and servers, below one directory."""

    def __init__(self, work: Path, requests: int = REQUESTS) -> None:
        self.work, self.requests, self.makers = work, requests, Makers(work, READER)

    def traced(self, name: str) -> Path:
        """The target's own text, with states of every boundary."""
        path = self.work / "traces" / family(name)
        if not path.exists():
            trace(
                target_path(name), DATA / "prompts.json", path, boundaries=tuple(range(9)), dtype="float32",
                device="cpu", batch=32, max_tokens=LENGTH, ignore_eos=True, num_speculative_tokens=DEPTH,
                limit=self.requests,
            )  # fmt: skip
        return path

    def served(self, number: int, case: Case) -> Path:
        """The directory that the server is started with."""
        path = self.work / "served" / str(number)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            whole(path, case.change(Directory.open(self.makers.base(case.serves or case.base))))
        return path

    def launch(self, number: int, case: Case) -> Launch:
        """The command of a sound server, changed."""
        argv = list(serve(self.makers.base(case.base), engine=SPEC, target=str(target_path(case.base))).argv)
        place = argv.index(SPECULATIVE) + 1
        settings = {**json.loads(argv[place]), "model": str(self.served(number, case)), **case.speculative}
        argv[place] = json.dumps({key: value for key, value in settings.items() if value is not None})
        if case.alone:
            argv = [*argv[: place - 1], *argv[place + 1 :]]
        arguments = ("--dtype", "float32", "--distributed-executor-backend", "uni", *case.arguments)
        return measuring(
            argv, {}, live_of("vllm"), arguments, patience=600, python=ENGINE.absolute(), drafts=not case.alone
        )

    def kept(self, number: int) -> Sequence[str]:
        """Cells of a row, as they were found before where they were."""
        file = self.work / "rows" / f"{number}.json"
        if not file.exists():
            row = self.row(number)
            print(number, " | ".join(row.cells), row.why, f"{row.seconds:.1f} s", flush=True)
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(row.cells), encoding="utf-8")
        cells: list[str] = json.loads(file.read_text(encoding="utf-8"))
        return cells

    def row(self, number: int) -> DoctorRow:
        """One server, from start to end."""
        case, port, started = CASES[number], free_port(), 0.0
        try:
            with launched(self.launch(number, case), port, self.work / "servers" / str(number)):
                started = time.monotonic()
                found = doctor(
                    self.makers.base(case.base),
                    engine=SPEC,
                    url=address(port),
                    target=str(target_path(case.base)),
                    trace=self.traced(case.base),
                    suspect=tuple(str(self.makers.base(name)) for name in case.suspects),
                    **case.options,
                )
        except EngineError as error:
            return DoctorRow(case, None, error.why or error.what, 0.0)
        return DoctorRow(case, found, "", time.monotonic() - started)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    head = ("drafter", "what was done", "the doctor says", "requests equal", "accept length", "as trained", "right")
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(argv: Sequence[str]) -> int:
    """The exit code: 0 if every server was judged rightly."""
    parser = argparse.ArgumentParser(
        prog="scripts/doctor-table", description="Have the doctor look at real servers that are wrong in known ways."
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/doctor.md")
    parser.add_argument("--sample", action="store_true", help="a few servers only")
    parser.add_argument("--only", metavar="N,…", help="servers by number")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keeps what was found, so that a run may be stopped")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        clinic = Clinic((options.work or Path(scratch)).absolute())
        rows = [clinic.kept(number) for number in chosen(options)]
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(PART.sub(lambda found: f"{found[1]}\n{table(rows)}\n\n{found[2]}", text), encoding="utf-8")
    wrong = [row for row in rows if row[-1] != RIGHT]
    print(f"{len(rows) - len(wrong)} of {len(rows)} servers judged rightly")
    return 1 if wrong else 0


def chosen(options: argparse.Namespace) -> Sequence[int]:
    """Numbers of the servers that are asked."""
    if options.sample:
        return SAMPLE
    return [int(part) for part in options.only.split(",")] if options.only else range(len(CASES))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
