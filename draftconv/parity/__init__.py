"""Accept-length parity: what a target did (traces), what drafters make of it (replay), and what that proves.

Under greedy verification the target's text does not depend on the drafter. So the target
runs once, and every drafter is replayed on its tokens and hidden states, paired step by step.
"""
