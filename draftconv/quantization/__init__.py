"""The numbers of quantization: which dtype a weight is rounded to, by which scale, and which weights.

`scheme`, `recipes` and `exclusions` say it (no torch); `rounding`, `pack_int32` and
`simulate` compute it. How the result lies in a file is not decided here.
"""
