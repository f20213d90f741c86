"""draftconv: convert, check and prove EAGLE-3 drafters."""

__version__ = "0.1.0"
