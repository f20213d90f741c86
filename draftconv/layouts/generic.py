"""Nobody's fingerprint: names and shapes are clear, conventions have to be told."""

from draftconv.layouts.base import Layout, ProducerIds

_IDS = ProducerIds("generic", None, True, "no known producer's fingerprint, so `before` or `after` is unknown")

LAYOUTS = (Layout("generic", "unknown producer", 1000, "weak", (), _IDS, "names and shapes only"),)
