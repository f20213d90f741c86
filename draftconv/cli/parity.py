"""`draftconv parity`."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftconv.checkpoint.text import safe
from draftconv.cli.examples import ENGINE, OTHER
from draftconv.cli.interrupted import keeping
from draftconv.cli.options import command_line, format_option, options_of
from draftconv.cli.replaying import STAGES, decoder
from draftconv.errors import UsageError, WriteError
from draftconv.live.options import LiveOptions
from draftconv.options import without_places
from draftconv.replay.options import ParityOptions

if TYPE_CHECKING:
    from draftconv.report import Report

EPILOG = f"""\b
Examples:
  draftconv parity drafter out --trace trace
  draftconv parity drafter --fake-quant w4a16 --trace trace --margin 0.02 --report report
  draftconv parity drafter --fake-quant w4a8 --as {ENGINE}:b200 --trace trace
  draftconv parity drafter --self-test --trace trace
  draftconv parity out --baseline baseline/accept.json --trace trace
  draftconv parity drafter --trace trace --trace-cand fp8-trace
  draftconv parity drafter out --for {ENGINE} --target Qwen/Qwen3-8B --launch --run run
  draftconv parity drafter out --profile b200-trtllm --launch --run run --dry-run
  draftconv parity drafter out --for {OTHER} --target target --run run --url-ref http://a:30000 --url-cand http://b:30000
"""

BOTH = ("reference", "candidates", "margin", "num_speculative_tokens", "limit", "extend", "out", "overwrite",
        "layout", "aux_convention", "accept_detected", "fmt")  # fmt: skip
REPLAY = (
    "trace",
    "baseline",
    "trace_cand",
    "semantics",
    "fake_quant",
    "calibrate",
    "as_engine",
    "draft_sample_method",
    "attribute",
    "self_test",
    "dtype",
    "device",
)
"""Parameters of a replay; all that are in neither list are of a live run."""


@click.command(epilog=EPILOG)
@click.argument("reference")
@click.argument("candidates", nargs=-1, metavar="[CANDIDATE]...")
@options_of(ParityOptions, LiveOptions)
@click.option("--report", "out", type=click.Path(path_type=Path), metavar="DIR",
              help="Write report.html, report.md, report.json, records.jsonl and junit.xml.")  # fmt: skip
@click.option("--overwrite", is_flag=True,
              help="Replace the directory of --report if it holds a report and nothing else.")  # fmt: skip
@click.option("--profile", metavar="NAME|FILE",
              help="Live: take engine, target, devices, arguments, prompts and margins from a hardware profile; what "
              "is typed as well wins. `draftconv recipes` lists them.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Live: print every command that would be run, and run none.")
@format_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    reference: str,
    candidates: tuple[str, ...],
    trace: str | None,
    engine: str | None,
    out: Path | None,
    overwrite: bool,
    fmt: str,
    **options: object,
) -> None:
    """Judge whether each CANDIDATE accepts as much as REFERENCE.

    With --trace every drafter is replayed on the target's own text and hidden states, step by step as
    an engine would, and compared on the same steps; with --baseline as well, each is compared with
    what `draftconv accept` recorded of the reference. With --for an engine serves each of them, and its
    own counts are compared. Exit code 0 when every candidate passes, 1 when one fails, 3 when there is
    too little to tell, 4 when the measurement itself is not to be trusted.
    """
    from draftconv.api.parity import exit_code
    from draftconv.report import refuse_place

    if options["profile"] is not None and trace is None:
        engine = _fill_from_profile(ctx, engine, options)
    _refuse_misplaced(ctx, trace, engine, options)
    if out is not None:
        refuse_place(out, overwrite=overwrite)
    options["command"] = without_places(command_line(ctx))
    if options.pop("dry_run"):
        _show_plan(reference, candidates, {**options, "engine": engine}, fmt)
        return
    if engine is None:
        report = _run_replay(reference, candidates, str(trace), options)
    else:
        report = _run_live(reference, candidates, {**options, "engine": engine})
    if out is not None:
        try:
            report.save(out, decode=decoder(Path(trace)) if trace else None, overwrite=overwrite)
        except WriteError:
            _print(ctx, report, None, fmt)  # a full disk does not cost what was measured
            raise
    _print(ctx, report, out, fmt)
    sys.exit(exit_code(report))


def _fill_from_profile(ctx: click.Context, engine: str | None, options: dict[str, object]) -> str:
    """Put what a profile says into the options that were not typed; returns the engine."""
    from draftconv.live.profiles import find_profile

    names = [str(parameter.name) for parameter in _typed_params(ctx)]
    typed = {name: options[name] for name in names if name in options and name != "profile"}
    values = find_profile(str(options["profile"])).options({**typed, **({"engine": engine} if engine else {})})
    options |= {name: value for name, value in values.items() if name != "engine"}
    return str(values["engine"])


def _typed_params(ctx: click.Context) -> list[click.Parameter]:
    """The parameters of the measurement that the user gave; how much is said of it belongs to any."""
    typed = click.core.ParameterSource.COMMANDLINE
    exposed = (param for param in ctx.command.params if param.expose_value)
    return [param for param in exposed if ctx.get_parameter_source(str(param.name)) is typed]


def _refuse_misplaced(ctx: click.Context, trace: str | None, engine: str | None, options: Mapping[str, object]) -> None:
    """Refuse a command that is neither a replay nor a live run, or some of both."""
    if (trace is None) == (engine is None):
        raise UsageError(
            "parity needs a trace to replay, or an engine to run"
            if trace is None
            else "--trace and --for exclude one another",
            cure="give --trace DIR, or --for ENGINE with --target, --run and a way to reach the engine",
        )
    for parameter in _typed_params(ctx):
        name = str(parameter.name)
        if name not in (*BOTH, "engine") and (name in REPLAY) != (engine is None):
            raise UsageError(
                f"{max(parameter.opts, key=len)} has no meaning with {'--for' if engine else '--trace'}",
                cure="leave it out",
            )
    if engine and (options["target"] is None or (options["run"] is None and not options["dry_run"])):
        raise UsageError(
            "--for needs --target and --run",
            why="prompts are tokenized for the target, and every answer is kept",
            cure="give the model that is served, and a directory that does not exist",
        )


def _run_replay(reference: str, candidates: tuple[str, ...], trace: str, options: Mapping[str, object]) -> Report:
    from draftconv.api.parity import parity
    from draftconv.cli import output

    chosen: dict[str, Any] = {name: value for name, value in options.items() if name in (*BOTH, *REPLAY, "command")}
    with output.stages(STAGES) as progress:
        return parity(reference, candidates, **chosen, trace=trace, progress=progress, announce=_announce)


def _run_live(reference: str, candidates: tuple[str, ...], options: Mapping[str, object]) -> Report:
    from draftconv.api.live import live_parity
    from draftconv.cli import output

    chosen: dict[str, Any] = {name: value for name, value in options.items() if name not in REPLAY}
    stages = output.stages(defaultdict(lambda: "requests", STAGES))
    with keeping(Path(chosen["run"]), "answered"), stages as progress:
        return live_parity(reference, candidates, **chosen, progress=progress, announce=_announce)


def _announce(line: str) -> None:
    from draftconv.cli import output

    output.print_notes([line])


def _show_plan(reference: str, candidates: tuple[str, ...], options: Mapping[str, object], fmt: str) -> None:
    """Print what a run would do, as commands that a person could type."""
    from dataclasses import asdict

    from draftconv.api.live import plan_live
    from draftconv.cli import output
    from draftconv.engines.serving import wrapped

    chosen = {name: value for name, value in options.items() if name not in REPLAY}
    steps = plan_live(reference, candidates, LiveOptions(**{**chosen, "run": chosen["run"] or Path("RUN")}))  # type: ignore[arg-type]
    match fmt:
        case "json":
            output.print_json([asdict(step) for step in steps])
        case "human":
            printed: set[str] = set()
            for number, step in enumerate(steps, 1):
                print(f"# {number}. {safe(step.title)}")
                for note in step.notes:
                    if note not in printed:
                        print(f"# note: {safe(note)}")
                printed |= {*step.notes}
                for name, text in step.files.items():
                    print("\n".join([f"cat > {safe(name)} <<'END'", *map(safe, text.splitlines()), "END"]))
                for argv in step.commands:
                    print("\n".join(map(safe, wrapped(argv, step.environment).split("\n"))))
                if step.then:
                    print(f"# {safe(step.then)}")
                print()


def _print(ctx: click.Context, report: Report, out: Path | None, fmt: str) -> None:
    from draftconv.cli import output

    if fmt == "human":
        output.show(dict.fromkeys(arm.facts["read"] for arm in report.arms if "read" in arm.facts))
    output.print_warnings(dict.fromkeys(arm.facts["doubtful"] for arm in report.arms if "doubtful" in arm.facts))
    match fmt:
        case "json":
            output.print_json(_json(report))
        case "human":
            _show(ctx, report, out)


# ── for a person ───────────────────────────────────────────────────────────────────


def _show(ctx: click.Context, report: Report, out: Path | None) -> None:
    from draftconv.cli import output

    output.show(report.blocks())
    if out is not None:
        output.show([f"Report: {out / 'report.html'}"])
    if len(report.comparisons) == 1 and (more := report.comparisons[0].verdict.more_prompts) and out is not None:
        live = report.about.how == "live"
        prompts = f"{more} other prompts" if live else f"a trace of {more} other prompts"
        output.print_notes([f"with {prompts}, this run can be extended"])
        more_of = {"prompts": "MORE.jsonl", "run": "MORE"} if live else {"trace": "MORE"}
        changes = {**more_of, "limit": None, "extend": out, "out": f"{out}-extended", "overwrite": None}
        output.print_next(command_line(ctx, **changes))


# ── for a program ──────────────────────────────────────────────────────────────────


def _json(report: Report) -> dict[str, object]:
    import json

    from pydantic import TypeAdapter

    from draftconv.api.parity import exit_code
    from draftconv.report import Report

    document = json.loads(TypeAdapter(Report).dump_json(report, exclude={"records"}))
    return {"exit_code": exit_code(report), **document}
