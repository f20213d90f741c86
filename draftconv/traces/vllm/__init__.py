"""Traces through vLLM, for targets that only an engine can hold.

vLLM's `extract_hidden_states` method proposes the sampled token as its own draft, so the text
is that of plain decoding, and a connector writes each request's residual stream to a file.
"""
