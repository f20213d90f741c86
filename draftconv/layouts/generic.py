"""Nobody's fingerprint: names and shapes are clear, conventions have to be told."""

from draftconv.layouts.base import Layout

LAYOUTS = (Layout("generic", "unknown producer", 1000, "weak", (), "generic", "names and shapes only"),)
