"""What stands in for the decoder layer that ModelOpt's MLA drafter fetches from the Hub: transformers' DeepSeek-V3.

Kimi-K2's remote code is DeepSeek-V3's of an older transformers, whose attention computes its rotary embedding itself.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def decoder() -> type[nn.Module]:
    """A class as `_setup_kimi_k2_decoder` returns it: it is called without position embeddings."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RotaryEmbedding

    class Layer(DeepseekV3DecoderLayer):  # type: ignore[no-untyped-call]
        def __init__(self, config: Any, layer_idx: int) -> None:
            super().__init__(config, layer_idx)
            self.turns = DeepseekV3RotaryEmbedding(config)
            self.register_forward_pre_hook(self._turned, with_kwargs=True)

        def _turned(self, _: nn.Module, args: tuple[Tensor], given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, given | {"position_embeddings": self.turns(args[0], given["position_ids"])}

    return Layer
