"""What engines count: servers and offline runs, the same prompts through every drafter, each request's own counts.

Here belongs what starts, asks and stops engines and looks at the machine under them: `client` is what an engine must
answer, `vllm`, `sglang` and `trtllm` ask servers, `offline` asks vLLM in a process of its own; `collect` runs an arm,
`store` keeps what was answered, `launch` starts servers. What the counts prove belongs to `report`.
"""
