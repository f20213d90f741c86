"""The shape of a profile file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from draftconv.drafter.yaml_file import Part
from draftconv.report.verdict import Kind

Text = Annotated[str, Field(min_length=1)]
Number = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Asked(Part):
    """An entry of `suites:`."""

    prompts: Text
    limit: Number | None = None
    max_tokens: Number


class Margins(Part):
    """`margins:` of a profile."""

    conversion: Share
    eight: Share = Field(alias="8-bit")
    four: Share = Field(alias="4-bit")

    def by_kind(self) -> dict[Kind, float]:
        """The allowed loss, by what was done to a drafter."""
        return {"conversion": self.conversion, "8-bit": self.eight, "4-bit": self.four}


class File(Part):
    """A whole profile."""

    about: Text
    engine: Text
    target: Text | None = None
    tensor_parallel: Number
    depth: Number
    server_args: list[str]
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], str]
    recipe: Text
    suites: Annotated[list[Asked], Field(min_length=1)]
    margins: Margins
    evidence: Literal["run", "read"]


WANTED: Mapping[str, str] = {
    "about": "line of text",
    "engine": "engine with its hardware, ENGINE[@VERSION]:HARDWARE",
    "target": "directory, Hub id or known name",
    "tensor_parallel": "whole number of devices from 1",
    "depth": "whole number of drafted tokens from 1",
    "server_args": 'list of texts, such as [--dtype, bfloat16]; a number goes in quotes: "0.95"',
    "environment": 'mapping of variables to texts, such as {NAME: "1"}',
    "recipe": "name of a recipe, or the path of one that ends in .yaml",
    "suites": "list such as [{prompts: mt-bench, limit: 80, max_tokens: 256}]",
    "suites.prompts": "suite or file of prompts",
    "suites.limit": "whole number of prompts from 1",
    "suites.max_tokens": "whole number of tokens from 1",
    "margins": "mapping such as {conversion: 0.005, 8-bit: 0.01, 4-bit: 0.02}",
    "margins.conversion": "share from 0 to below 1, such as 0.005",
    "margins.8-bit": "share from 0 to below 1, such as 0.01",
    "margins.4-bit": "share from 0 to below 1, such as 0.02",
}
"""What keys hold, in words."""
