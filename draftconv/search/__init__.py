"""The smallest drafter that is still as good: what may be small, what it costs, and a proof on prompts nobody saw.

Candidates per role of a drafter's weights, measured on one half of a trace; their combinations, the cheapest loss
per byte first; and a certificate on the other half for the one that is written.
"""
