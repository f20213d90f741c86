"""Logits to the distribution that a token is drawn from, in the order of vLLM and transformers.

Temperature, then min_p, then top_k, then top_p: vLLM 0.32.0 v1/sample/sampler.py, v1/sample/ops/topk_topp_sampler.py.
transformers 5.19.0 generation/utils.py takes min_p last, which is the same distribution unless min_p stands beside one
of the other two. Of equally likely tokens at an edge, top_k keeps all, as both do; top_p keeps those of lower ids.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from draftconv.reference.sampling import Sampling


def log_probs(logits_RV: Tensor, sampling: Sampling) -> Tensor:
    """log p [R, V] of every token, -inf for those that cannot be drawn; float32 or better."""
    scaled_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32)) / sampling.temperature
    if sampling.min_p:
        floor_R1 = scaled_RV.amax(-1, keepdim=True) + math.log(sampling.min_p)
        scaled_RV = scaled_RV.masked_fill(scaled_RV < floor_R1, -torch.inf)
    if 0 < sampling.top_k < scaled_RV.shape[-1]:
        least_R1 = scaled_RV.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled_RV = scaled_RV.masked_fill(scaled_RV < least_R1, -torch.inf)
    if sampling.top_p < 1:
        ordered_RV, order_RV = scaled_RV.sort(dim=-1, descending=True, stable=True)
        before_RV = ordered_RV.softmax(-1).cumsum(-1).roll(1, dims=-1)
        before_RV[:, 0] = 0
        outside_RV = torch.zeros_like(before_RV, dtype=torch.bool).scatter(-1, order_RV, before_RV >= sampling.top_p)
        scaled_RV = scaled_RV.masked_fill(outside_RV, -torch.inf)
    return scaled_RV.log_softmax(-1)


def drawn(log_RV: Tensor, generators: list[torch.Generator]) -> Tensor:
    """A token of each row: int64 [R], by Gumbel's maximum, with the row's own generator on the CPU.

    What a request draws depends on no other request beside it.
    """
    uniform_RV = torch.stack([torch.rand(log_RV.shape[1], generator=g, dtype=torch.float64) for g in generators])
    gumbel_RV = -torch.log(-torch.log(uniform_RV.clamp_min(torch.finfo(torch.float64).tiny)))
    best_R: Tensor = (log_RV.double().cpu() + gumbel_RV).argmax(-1)
    return best_R.to(log_RV.device)
