"""Whether an output is its source: every bit, every fact, everybody who reads it.

Here belongs what an output is held to: its source made anew by the steps that its record names (`remaking`), the
tensors (`tensors`, `quantized`, `vocabulary`), facts and files of the two compared with that (`facts`, `directory`),
and what only the record says (`claims`). How a drafter is changed belongs to `conversion`, which does it again.

    read both → remake the source by the steps of the record → compare → Verification
"""
