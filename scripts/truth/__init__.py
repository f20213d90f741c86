"""What draftconv says of vLLM, held against a real vLLM: see `scripts/engine-truth`.

`engine` asks vLLM, `drafts` makes the directories it is asked about, one module per part holds the
cases and compares, `table` keeps what was found.
"""
