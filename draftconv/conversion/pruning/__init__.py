"""A head with fewer rows: which tokens it keeps, what they cover, what that costs, and whether it was worth counting.

`choice` picks tokens by counts, `coverage` tells what a choice covers of text that did not choose, `law` what that
costs, `tokens` is what is handed to a conversion (the pass `prune`), and `plan` puts them together for a drafter.
`draftconv.traces.token_counts` counts, and `draftconv.replay.pruned` replays a choice that is not written.
"""
