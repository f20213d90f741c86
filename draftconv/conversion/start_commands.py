"""How engines are started with an output: the command of each, for its model card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftconv.drafter.drafter import Drafter
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, EngineSpec, ServeRequest
from draftconv.engines.server_requirements import start_command
from draftconv.engines.serving import ServeCommand, wrapped
from draftconv.engines.target_stops import refuse_target
from draftconv.errors import DraftconvError

HERE = "."
"""The drafter: the directory that the card lies in, wherever somebody puts it."""

PLACEHOLDER = "TARGET"
"""In place of a target whose Hub id is not known: a path may not be told."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
REVISION = re.compile(r"[A-Za-z0-9][\w./-]*", re.ASCII)
ENDS = "EOF"


@dataclass(frozen=True, slots=True)
class Start:
    """How one engine is started, or why that is not known.

    Attributes:
        script: what to paste into a shell; empty where no start is known. `reason`: why not.
    """

    engine: str
    script: str = ""
    notes: tuple[str, ...] = ()
    reason: str = ""


def hub_target(target: Target | None) -> str | None:
    """The target's id on the Hub, with its revision where one was named."""
    if target is None or target.path is not None:
        return None
    repo, _, revision = target.repo.partition("@")
    return target.repo if HUB_ID.fullmatch(repo) and (not revision or REVISION.fullmatch(revision)) else None


def start_commands(drafter: Drafter, specs: Sequence[EngineSpec], target: Target | None) -> tuple[Start, ...]:
    """One start for each engine.

    Args:
        drafter: as it will be written.
    """
    return tuple(_start(drafter, spec, target) for spec in specs)


def _start(drafter: Drafter, spec: EngineSpec, target: Target | None) -> Start:
    title = f"{ENGINES[spec.name].title} {spec.version}" + (f" on {spec.hardware}" if spec.hardware else "")
    if target is None or not target.model_type:
        again = f"draftconv serve {HERE} --for {spec.name} --target {PLACEHOLDER}"
        return Start(title, again, ("it prints the command, which depends on the target, and nobody named one",))
    named = target if hub_target(target) else replace(target, path=None, repo=PLACEHOLDER)
    try:
        refuse_target(spec, named)
        request = ServeRequest(HERE, drafter.facts, named)
        command = start_command(drafter, spec, request, remedy="quantize the 16-bit drafter for this hardware")
    except DraftconvError as error:
        return Start(title, reason="; ".join(filter(None, (error.what, error.why, error.cure))))
    return Start(title, _script(command), command.notes)


def _script(command: ServeCommand) -> str:
    files = [f"cat > {name} <<'{ENDS}'\n{text}{ENDS}\n" for name, text in command.files.items()]
    return "".join(files) + wrapped(command.argv, command.environment)
