"""The same sources as for the commands, and no waiting for the disk."""

from __future__ import annotations

from tests.api.conftest import no_waiting as no_waiting
from tests.api.conftest import source as source
