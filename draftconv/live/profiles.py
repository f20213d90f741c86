"""Hardware profiles: a machine, the engine on it, and how parity is run there, under a name or in a file of one's own.

Shipped profiles are `recipes/profiles/*.yaml`; a name that ends in .yaml or .yml is a path. What is
typed on a command line wins over a profile, a variable that is set wins over its environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from draftconv.drafter.shipped_files import YamlText, find_written, recipes
from draftconv.engines import EngineSpec, parse_engine
from draftconv.engines.deployed import Deployment
from draftconv.engines.deployment import resolve
from draftconv.errors import DraftconvError, UsageError
from draftconv.quantization.recipes import find_recipe

if TYPE_CHECKING:
    from draftconv.report.verdict import Kind


@dataclass(frozen=True, slots=True)
class ProfilePrompts:
    """Prompts that a profile asks: a suite or a file, how many of them, and how long their texts are in tokens."""

    prompts: str
    limit: int | None
    max_tokens: int


PROVEN: Mapping[Literal["run", "read"], str] = {
    "run": "run on this hardware",
    "read": "not run on hardware: put together from published cards and the engines' own files",
}


@dataclass(frozen=True, slots=True)
class Profile:
    """How parity is run on one kind of machine.

    Attributes:
        engine: with its hardware. `target`: None where the user must give one.
        tensor_parallel: devices for the target. `depth`: K.
        server_args: for the engine. `environment`: variables that it is started with.
        recipe: what really runs there. `executed`: the arithmetic of it, in words.
        suites: asked one after another; a command asks the first unless it names another.
        margins: allowed loss of accept length, by what was done to the candidate.
        evidence: whether it was run, or put together from what was read.
    """

    name: str
    about: str
    engine: str
    target: str | None
    tensor_parallel: int
    depth: int
    server_args: tuple[str, ...]
    environment: Mapping[str, str]
    recipe: str
    executed: str
    suites: tuple[ProfilePrompts, ...]
    margins: Mapping[Kind, float]
    evidence: Literal["run", "read"]

    def options(self, typed: Mapping[str, object]) -> dict[str, object]:
        """Options of a live run, by their names in `LiveOptions`: what was typed, else what the profile says.

        Args:
            typed: options that the user gave.

        Raises:
            UsageError: another engine than the profile's was typed.
        """
        engine = typed.get("engine")
        engine = self.engine_for(engine if isinstance(engine, str) else None)
        named = str(typed.get("prompts")).lower()
        suite = next((suite for suite in self.suites if suite.prompts.lower() == named), None)
        if suite is None and "prompts" not in typed:
            suite = self.suites[0]
        settings: dict[str, object] = {
            "target": self.target,
            "tensor_parallel_size": self.tensor_parallel,
            "num_speculative_tokens": self.depth,
            "environment": self.environment,
            "margins": self.margins,
            "profile": self.name,
        }
        if suite:
            settings |= {"prompts": suite.prompts, "limit": suite.limit, "max_tokens": suite.max_tokens}
        more = typed.get("server_args")
        server_args = (*self.server_args, *(more if isinstance(more, tuple) else ()))
        return {**settings, **typed, "engine": engine, "server_args": server_args}

    @property
    def proven(self) -> str:
        """Whether it was run, in words."""
        return PROVEN[self.evidence]

    def engine_for(self, engine: str | None) -> str:
        """The engine with its hardware: what was typed, which may add a version, else the profile's.

        Raises:
            UsageError: another engine or hardware was typed, or no engine.
        """
        if engine is None:
            return self.engine
        typed, ours = parse_engine(engine), parse_engine(self.engine)
        if typed.name != ours.name or typed.hardware not in (None, ours.hardware):
            raise UsageError(
                f"profile {self.name} is for {self.engine}, not {engine}",
                cure="leave out --for, or name another profile",
            )
        return engine if typed.hardware else f"{engine}:{ours.hardware}"


def profile_names() -> tuple[str, ...]:
    """The shipped profiles, in alphabetical order."""
    files = (entry.name for entry in recipes().joinpath("profiles").iterdir())
    return tuple(sorted(Path(name).stem for name in files if name.endswith(".yaml")))


def find_profile(spec: str) -> Profile:
    """The shipped profile of this name, or the one in this .yaml file.

    Raises:
        UsageError: no such profile or file, or the file is not a profile; says which key and why.
    """
    return _parse(find_written(spec, "profile", profile_names(), "profiles/"))


def _parse(written: YamlText) -> Profile:
    from draftconv.drafter.yaml_file import read_yaml
    from draftconv.live.profile_schema import ProfileSchema

    file = read_yaml(
        ProfileSchema,
        written.text,
        written.where,
        noun="profile",
        why="a key that is misread would measure something else than was meant",
        example=f"recipes/profiles/{profile_names()[0]}.yaml",
    )
    try:
        spec = parse_engine(file.engine)
        deployment = _deployment(file.recipe, spec)
    except DraftconvError as error:
        raise UsageError(f"{written.where}: {error.what}", why=error.why, cure=error.cure) from error
    return Profile(
        name=written.name,
        about=file.about,
        engine=file.engine,
        target=file.target,
        tensor_parallel=file.tensor_parallel_size,
        depth=file.num_speculative_tokens,
        server_args=tuple(file.server_args),
        environment=file.environment,
        recipe=file.recipe,
        executed=deployment.executed,
        suites=tuple(ProfilePrompts(suite.prompts, suite.limit, suite.max_tokens) for suite in file.suites),
        margins=file.margins.by_kind(),
        evidence=file.evidence,
    )


def _deployment(recipe: str, spec: EngineSpec) -> Deployment:
    """What runs of a recipe on the profile's machine.

    Raises:
        UsageError: no hardware is named, or no such recipe. Refused: the recipe has no form there.
    """
    if spec.hardware is None:
        raise UsageError(f"engine: {spec.name} names no hardware", cure=f"write it as {spec.name}:HARDWARE")
    return resolve(find_recipe(recipe), spec)
