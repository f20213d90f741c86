"""The numbers of quantization: which grid a weight is rounded to, by which scale, and which weights.

`scheme`, `recipes` and `exclusions` say it (no torch); `grids`, `nibbles` and `simulate`
compute it. How the result lies in a file is not decided here.
"""
