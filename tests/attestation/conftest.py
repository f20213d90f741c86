"""Outputs that statements are about."""

from __future__ import annotations

from tests.api.conftest import no_waiting as no_waiting
from tests.api.conftest import source as source
from tests.traces.recorded import recorded as recorded
