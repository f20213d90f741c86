"""Fixtures of live runs."""

from __future__ import annotations

from tests.live.asked import cand as cand
from tests.live.asked import options as options
