"""A second reading of TensorRT-LLM's loader, written from its source alone.

Nothing here imports draftconv, and nothing of TensorRT-LLM can be run: `reading.read` says what its
PyTorch backend would do with a drafter's config.json and tensor headers, `verdict.judge` what that is
worth beside what was trained. `compare` puts it beside draftconv's own prediction, the first reading.
"""
