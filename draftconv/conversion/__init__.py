"""A drafter on its way to another spelling: what is changed, in which order, and what is said of it.

Here belongs what turns one drafter into another: what is decided of quantized weights (`weight_plan`, `repack_plan`,
`quantization_plan`, `backend_choice`, `calibration`), the `passes` in their one order, the `plan` that they end in, the
`record` and the model `card` of what was done. How a layout is spelled belongs to `layouts`, what an engine makes of
the result to `engines`, the numbers to `quantization`.

    read → plan_quantization (if asked) → plan_drafter: plan_weights → run_passes → spell → judge → Conversion.write
"""
