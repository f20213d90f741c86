"""The counters of a vLLM server in Prometheus' text format: vLLM 0.32.0, v1/spec_decode/metrics.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from draftconv.checkpoint import show
from draftconv.engines.request_output import counted
from draftconv.errors import BadCheckpoint, Void
from draftconv.reference.accept_length import Counts

_SAMPLE = re.compile(r"vllm:spec_decode_(\w+)\{(.*)\} (\S+)")
_STARTED = re.compile(r"^process_start_time_seconds (\S+)$", re.MULTILINE)
_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\} \S+$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_POSITION = re.compile(r'(?:^|,)position="(\d+)"')
_DRAFTS, _ACCEPTED, _REACHED = "num_drafts_total", "num_accepted_tokens_total", "num_accepted_tokens_per_pos_total"
_BORN = "num_drafts_created"


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals of a server since it was started.

    Attributes:
        reached: steps that accepted more than j tokens, by j.
        born: when the counters were created, or the process where they do not tell (prometheus_client leaves it out
            on request). `settings`: of its cache, as the report names them.
    """

    drafts: int
    accepted: int
    reached: tuple[int, ...]
    born: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def since(self, before: Counters) -> Counts:
        """What was counted between two readings.

        Raises:
            Void: a counter went backwards, or they contradict each other.
        """
        if self.born != before.born or self.drafts < before.drafts:
            raise Void(
                "the server's counters went backwards",
                why="it was started again, and nobody can say with which drafter",
                cure="see that the right server runs, and repeat the command: it goes on",
            )
        reached = [now - then for now, then in zip(self.reached, before.reached, strict=True)]
        steps = self.drafts - before.drafts
        histogram = [a - b for a, b in zip((steps, *reached), (*reached, 0), strict=True)]
        return counted(histogram, steps, self.accepted - before.accepted, len(reached))


def read_counters(text: str) -> Counters | None:
    """The counters in Prometheus' text format, summed over engines; None where there are none.

    Raises:
        BadCheckpoint: one of them is missing or no whole number.
    """
    sums: dict[tuple[str, int], int] = {}
    born = ""
    for name, labels, value in _samples(text):
        if name == _BORN:
            born = max(born, value)
        elif name in (_DRAFTS, _ACCEPTED, _REACHED):
            position = _POSITION.search(labels)
            key = name, int(position[1]) if position else 0
            sums[key] = sums.get(key, 0) + _integer(value)
    if not sums:
        return None
    depth = sum(name == _REACHED for name, _ in sums)
    try:
        reached = tuple(sums[_REACHED, position] for position in range(depth))
        if not born and (started := _STARTED.search(text)):
            born = started[1]
        return Counters(sums[_DRAFTS, 0], sums[_ACCEPTED, 0], reached, born, _cache_settings(text))
    except KeyError as error:
        raise BadCheckpoint(f"/metrics has no {show(error.args[0][0])} for every position") from error


def _cache_settings(text: str) -> dict[str, str]:
    """What `vllm:cache_config_info` tells of what accept length depends on."""
    match = _CACHE.search(text)
    labels = dict(_LABEL.findall(match[1])) if match else {}
    return {f"server, {name}": labels[name] for name in ("cache_dtype", "enable_prefix_caching") if name in labels}


def _samples(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines():
        if match := _SAMPLE.fullmatch(line):
            yield match[1], match[2], match[3]


def _integer(value: str) -> int:
    try:
        number = float(value)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise BadCheckpoint(f"/metrics has a count of {show(value)}")
