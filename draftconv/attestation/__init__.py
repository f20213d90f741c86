"""Statements about an output that can be signed: what it was made from and how, and what verifying it found.

Here belongs the form of in-toto's statements (`statement`), the files that they name by their digests (`inputs`), and
one module per predicate (`provenance`, `verification`). A statement lies beside an artifact and never in it; draftconv
signs nothing.
"""
