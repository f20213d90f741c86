"""The drafter's forward pass in torch, exactly as engines serve it, written to be read.

Shape suffixes used throughout this package:

    B  requests in a batch         N  query heads
    T  rows of this call           G  key/value heads
    S  rows in the cache           R  query heads per key/value head (N = G * R)
    A  captured boundaries         D  elements of a query or key head
    H  hidden width                P  elements of a value head
    W  target's hidden width       V  vocabulary rows
"""
