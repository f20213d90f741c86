"""The shapes of files that people write about their machines: profiles, and how long steps take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from draftconv.drafter.yaml_file import YamlMapping
from draftconv.report.verdict import Kind

Text = Annotated[str, Field(min_length=1)]
Number = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class SuiteSchema(YamlMapping):
    """An entry of `suites:`."""

    prompts: Text
    limit: Number | None = None
    max_tokens: Number


class MarginsSchema(YamlMapping):
    """`margins:` of a profile."""

    conversion: Share
    eight: Share = Field(alias="8-bit")
    four: Share = Field(alias="4-bit")

    def by_kind(self) -> dict[Kind, float]:
        """The allowed loss, by what was done to a drafter."""
        return {"conversion": self.conversion, "8-bit": self.eight, "4-bit": self.four}


class ProfileSchema(YamlMapping):
    """A whole profile."""

    former: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"tensor_parallel": "tensor_parallel_size", "depth": "num_speculative_tokens"}
    )

    about: Text
    engine: Text
    target: Text | None = None
    tensor_parallel_size: Number
    num_speculative_tokens: Number
    server_args: list[str]
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], str]
    recipe: Text
    suites: Annotated[list[SuiteSchema], Field(min_length=1)]
    margins: MarginsSchema
    evidence: Literal["run", "read"]


Milliseconds = Annotated[float, Field(gt=0)]


class LoadSchema(YamlMapping):
    """An entry of `loads:`; `step_ms` has the time of a step by its drafted tokens, 0 for the target alone."""

    concurrency: Number
    step_ms: dict[Annotated[int, Field(ge=0)], Milliseconds]
    draft_ms: Milliseconds | None = None

    @model_validator(mode="after")
    def _told_once(self) -> Self:
        if 0 not in self.step_ms:
            raise ValueError("step_ms lacks 0, a step without drafted tokens")
        if self.draft_ms is not None and len(self.step_ms) > 1:
            raise ValueError("draft_ms and a step with drafted tokens are two answers to one question: keep one")
        return self


class StepTimesSchema(YamlMapping):
    """A whole file of step times."""

    engine: Text | None = None
    tensor_parallel_size: Number = 1
    loads: Annotated[list[LoadSchema], Field(min_length=1)]
