"""report.json and the lines of records.jsonl, checked by pydantic: types, nothing missing, nothing unknown.

The dataclasses of `model`, `verdict` and `statistics` are the schema; this module adds what the
files have around them. It is imported where a report is written or read, not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftconv.checkpoint import show
from draftconv.checkpoint.text import parse_object
from draftconv.errors import BadCheckpoint, BadReport, UsageError
from draftconv.report.model import Accuracy, ArmInfo, Comparison, Control, RunInfo, Speed

FORMAT: Final = "draftconv-parity-report"

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[int | float, Field(ge=0)]
"""A count; an expected one where drafts are drawn."""
Context = Annotated[str, Field(pattern=r"^[1-9][0-9]* to [1-9][0-9]*$")]


class _Strict(BaseModel):
    """Dataclasses inside a model follow its rules."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class RecordLine(_Strict):
    """One line of records.jsonl: what one drafter did on one request.

    Attributes:
        arm: name of the drafter. `id`: of the request, unique within an arm.
        cluster: the prompt that the request belongs to, with all its turns; prompts are resampled.
        category: of the prompt.
        prompt_tokens: before the text. `counted_tokens`: generated tokens that count.
        depth: K, drafted tokens per step. `steps`: verify steps D. `accepted`: draft tokens A; AL is 1 + A / D.
        histogram: steps that accepted exactly 0, 1 … K tokens.
        tokens: SHA-256 of prompt and text as token ids, little-endian int64; equal texts have equal hashes.
        contexts: histograms by the tokens that were known when a step started; absent where nobody said.
    """

    arm: str
    id: str
    cluster: str
    category: str
    prompt_tokens: Count
    counted_tokens: Count
    depth: Annotated[int, Field(ge=1)]
    steps: Amount
    accepted: Amount
    histogram: tuple[Amount, ...]
    tokens: str
    contexts: Mapping[Context, tuple[Amount, ...]] = {}


class Document(_Strict):
    """report.json.

    Attributes:
        format, version: of the file.
        about: what all arms share. `arms`: the drafters, the reference first.
        comparisons: every candidate with its verdict. `controls`: drafters broken on purpose (`--self-test`).
        speed, accuracy: of the servers of a live run (`--also-speed`, `--accuracy`).
        records_sha256: of the records.jsonl that it was computed from.
    """

    format: Literal["draftconv-parity-report"] = FORMAT
    version: Literal[1] = 1
    about: RunInfo
    arms: tuple[ArmInfo, ...]
    comparisons: tuple[Comparison, ...]
    controls: tuple[Control, ...]
    speed: tuple[Speed, ...] = ()
    accuracy: tuple[Accuracy, ...] = ()
    records_sha256: str


M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], data: bytes, where: str) -> M:
    """A JSON object as a model.

    Raises:
        BadReport: it is no such object; the message names the first place that is wrong.
    """
    try:
        parse_object(data, where, constants=False)
        return model.model_validate_json(data)
    except (BadCheckpoint, UsageError) as error:
        raise BadReport(error.what, why=error.why, cure=error.cure) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise BadReport(
            f"{where}: {show(place)}: {first['msg'][:1].lower()}{first['msg'][1:]}",
            why="it was edited, or another version of draftconv wrote it",
            cure="write the report again",
        ) from error
