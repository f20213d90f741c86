"""What scripts/fuzz is made of: inputs to start from, ways to break them, and a process that runs one under watch.

`seeds` makes good inputs of the trained fixtures. `mutators` breaks them, each kind in its own ways and all of them
by a seed. `case` is one broken input with the commands that get it, as it lies on disk. `child` runs one and tells
what it did; `served` answers it as a Hub or an engine would. `loop` runs many, and knows which fault is new.
"""
