"""What a target did: prompts, the texts that it wrote, and the hidden states on the way.

Under greedy verification the text does not depend on the drafter, so the target runs once and every drafter can be
asked afterwards. Here belongs what is asked of a target, what runs it (transformers, an engine) and the files that keep
what it did. What drafters make of them belongs to `replay`.
"""
