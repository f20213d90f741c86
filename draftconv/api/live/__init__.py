"""Parity on an engine that runs: what it takes, what it would run, what it found."""

from draftconv.api.live.options import LiveOptions
from draftconv.api.live.parity import live_parity
from draftconv.api.live.plan import Step, plan_live

__all__ = ["LiveOptions", "Step", "live_parity", "plan_live"]
