"""What engines count: servers and offline runs, the same prompts through every drafter, each request's own counts.

Here belongs what starts, asks and stops engines and looks at the machine under them: `capabilities` is what a run
can ask of its engine, `launch` starts servers, `offline` asks an engine in a process of its own, `requests` sends
those of an arm, `run_directory` keeps what was answered. How one engine is asked and measured belongs to its package,
what the counts prove to `report`.
"""
