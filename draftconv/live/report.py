"""What a run found, as a report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

import draftconv
from draftconv.engines import ENGINES
from draftconv.engines.draft_methods import draft_method
from draftconv.engines.request_output import RequestOutput, first_split
from draftconv.live.arms import LiveArm
from draftconv.live.launch import LOG
from draftconv.live.logged_kernels import kernels_in_log
from draftconv.live.options import Way
from draftconv.live.requests import LiveRequest
from draftconv.live.run import LiveRun
from draftconv.options import several
from draftconv.report.arms import gate
from draftconv.report.model import Accuracy, ArmInfo, Comparison, Diagnostics, Report, RunInfo, Speed, Texts
from draftconv.report.records import Record
from draftconv.traces.trace import token_hash


def report_of(run: LiveRun, answers: Sequence[Mapping[str, RequestOutput]]) -> Report:
    """What was found; a request that one arm failed to answer counts for none."""
    asks = [ask for ask in run.asks() if all(ask.id in arm_answers for arm_answers in answers)]
    errors = run.requests - len(asks)
    records = tuple(
        Record(
            arm=arm.name,
            id=ask.id,
            cluster=ask.cluster,
            category=ask.category,
            prompt=len(ask.tokens),
            counted=len(arm_answers[ask.id].tokens),
            counts=arm_answers[ask.id].counts,
            tokens=token_hash((*ask.tokens, *arm_answers[ask.id].tokens)),
        )
        for ask in asks
        for arm, arm_answers in zip(run.arms, answers, strict=True)
    )
    reference, again, *rest = run.arms
    repeated = _texts(asks, answers[0], answers[1])
    comparisons = tuple(
        Comparison.of(
            records,
            reference.name,
            arm.name,
            arm.gate or gate("conversion", None, "live"),
            how="live",
            again=again.name,
            errors=errors,
            diagnostics=Diagnostics(texts=_texts(asks, answers[0], arm_answers), again=repeated),
        )
        for arm, arm_answers in zip(rest, answers[2:], strict=True)
    )
    speed, accuracy = _benchmark_results(run)
    return Report(
        _about(run, len(asks)),
        tuple(_with_kernels(run, arm) for arm in run.arms),
        records,
        comparisons,
        speed=speed,
        accuracy=accuracy,
    )


def _with_kernels(run: LiveRun, arm: LiveArm) -> ArmInfo:
    """What the report says of an arm, with the kernels that its engine said it chose."""
    if run.way not in ("launch", "offline"):
        return arm.about
    kernels = kernels_in_log(run.live.lines, run.store.arm(arm.number).directory / LOG)
    return replace(arm.about, facts={**arm.about.facts, "kernels, by the engine's log": kernels})


def _benchmark_results(run: LiveRun) -> tuple[tuple[Speed, ...], tuple[Accuracy, ...]]:
    """Speed and accuracy of every server, the target alone first."""
    if run.benchmarks is None:
        return (), ()
    arms = [(arm.name, run.store.arm(arm.number).directory) for arm in run.arms if arm.number != 1]
    return run.benchmarks.results([(None, run.store.alone), *arms])


def _texts(
    asks: Sequence[LiveRequest], ours: Mapping[str, RequestOutput], theirs: Mapping[str, RequestOutput]
) -> Texts:
    positions = [first_split(ours[ask.id].tokens, theirs[ask.id].tokens) for ask in asks]
    splits = sorted(at for at in positions if at is not None)
    return Texts(len(positions), len(positions) - len(splits), tuple(splits))


def _about(run: LiveRun, requests: int) -> RunInfo:
    terms, reference = run.terms, run.store.arm(0).terms()
    title = ENGINES[run.spec.name].title
    version, counting = (reference.version, reference.counting) if reference else ("", "")
    served, settings = (reference.served, reference.settings) if reference else ("", {})
    return RunInfo(
        how="live",
        target=terms.target,
        prompts=terms.prompts,
        prompts_sha256=terms.prompts_sha256,
        depth=terms.depth,
        version=draftconv.__version__,
        command=run.options.command,
        settings={
            "requests": str(requests),
            "tokens": f"{terms.length} per request, its end ignored"
            if terms.ignore_eos
            else f"at most {terms.length} per request, to its natural end",
            "sampling": str(terms.sampling or "greedy"),
            "drafts": _drafts(run),
            "engine": f"{title} {version}",
            "for": str(run.spec),
            "devices": str(run.options.tensor_parallel_size),
            "reached": WAYS[run.way].format(engine=title),
            "counts": counting,
            "requests at a time": str(terms.concurrency),
            "draftconv's client": f"run on {run.live.proven}"
            if run.live.proven
            else "not run on the engine: held to its documented answers by stub servers",
            **({"server": _added_arguments(run)} if run.way in ("launch", "offline") else {"server, model": served}),
            **terms.machine,
            **settings,
        },
    )


def _drafts(run: LiveRun) -> str:
    """How the engine chooses its drafts; of a server that somebody else started, what is usual."""
    if not run.launches:
        return f"{draft_method(run.spec, ())}, unless the server was told otherwise"
    launch = run.launches[0]
    return draft_method(run.spec, (*launch.argv, *launch.files.values()))


WAYS: Mapping[Way, str] = {
    "two servers": "running servers, one for each drafter",
    "one server": "a running server, one drafter after another",
    "launch": "servers that draftconv started, one after another",
    "offline": "{engine} without a server, one process for each drafter",
}


def _added_arguments(run: LiveRun) -> str:
    """Arguments that were added to the command of `draftconv serve`, for both arms alike."""
    return shlex.join((*run.live.counting, *run.live.measuring, *several(run.options.server_args)))
