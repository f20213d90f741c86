"""Parity on a running engine: the same prompts through every arm, and the engine's own counts of each request.

`client` is what an engine must answer; `vllm`, `sglang` and `trtllm` ask servers, `offline` asks vLLM in
a process of its own. `collect` runs an arm, `store` keeps what was answered, `launch` starts servers.
"""
