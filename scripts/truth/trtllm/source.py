"""Which versions of which files were read, and where the rules' symbols stand in them.

No single commit of TensorRT-LLM's tree could be had, only files one by one from an index of its history.
All are of the main line that became the 1.3 release candidates, at the commit that the index names; where it
names none, the length of the file in characters says which version it was. Lines were counted in exactly that
version, checked by the position in characters at which the symbol stands in it: in another one, and the files
are of different commits, they lead elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

READ_ON = "2026-11-23"


@dataclass(frozen=True, slots=True)
class Source:
    """One file as it was read.

    Attributes:
        path: below `tensorrt_llm/`. `version`: a commit, or a length in characters where none was named.
        lines: cited symbol → the line, from 1, of its `def` or `class`, or of the statement that it names.
    """

    path: str
    version: str
    lines: Mapping[str, int] = field(default_factory=dict)

    def at(self, symbol: str) -> str:
        """A citation of one function, class or statement in it.

        Raises:
            KeyError: its line was not counted.
        """
        if symbol not in self.lines:
            raise KeyError(
                f"{symbol} in {self.path} at {self.version}: its line is not known; count it in that version, and add "
                "it to `lines`"
            )
        return f"{self.path} at {self.version}, line {self.lines[symbol]}, {symbol}"


SPECULATIVE = Source(
    "_torch/models/modeling_speculative.py",
    "00679c66",
    {
        "Eagle3Attention.__init__": 465,
        "Eagle3MLAttention.__init__": 522,
        "Eagle3DecoderLayer.__init__": 583,
        "Eagle3DraftModel.__init__": 686,
        "Eagle3ForCausalLM.forward": 915,
        "Eagle3ForCausalLM.apply_eagle3_fc": 996,
    },
)
UTILS = Source(
    "_torch/models/modeling_utils.py",
    "80154 characters",
    {"DecoderModelForCausalLM.__init__": 477},
)
DEEPSEEK = Source(
    "_torch/models/modeling_deepseekv3.py",
    "82516 characters",
    {"DeepseekV3WeightLoader.load_weights": 150, "load_kv_b_proj_and_k_b_proj_trans": 210, "nvfp4_fused_a": 403},
)
MODEL_CONFIG = Source(
    "_torch/model_config.py",
    "008e0af8",
    {
        "ModelConfig._build_modelopt_quant_config": 498,
        "ModelConfig.load_hf_quant_config": 599,
        "ModelConfig.from_pretrained": 951,
    },
)
CONFIG_UTILS = Source(
    "_torch/pyexecutor/config_utils.py",
    "00679c66",
    {"load_pretrained_config": 802},
)
DEEPSEEK_CONFIG = Source(
    "_torch/configs/deepseek_v3.py",
    "65b31db1",
    {"DeepseekV3Config": 11},
)
LINEAR = Source(
    "_torch/modules/linear.py",
    "00bbf71e",
    {
        # of a linear method the class is cited, which loads single, q/k/v and gate/up weights in functions of their own
        "load_weights, plain": 446,
        "load_weights, fp8": 576,
        "load_weights, fp8-rows": 909,
        "load_weights, fp8-blocks": 1055,
        "load_weights, nvfp4": 1255,
        "load_weights, weight-only": 1965,
        "load_weights, weight-only-int4": 1965,
        "load_weights, awq": 2087,
        "load_weights, awq-fp8": 2231,
        "UnquantizedLinearMethod.apply": 472,
        "FP8BlockScalesLinearMethod.apply": 1084,
        "get_quant_method": 2508,
        "create_weights": 2669,
    },
)
EMBEDDING = Source("_torch/modules/embedding.py", "06d0733f")
GATED_MLP = Source("_torch/modules/gated_mlp.py", "01503f55")
RMS_NORM = Source("_torch/modules/rms_norm.py", "b35ac1b6")
ATTENTION = Source(
    "_torch/attention/attention.py",
    "047098b7",
    {"Attention.__init__": 392},
)
MLA = Source(
    "_torch/attention/mla.py",
    "047098b7",
    {"MLA.__init__": 206},
)
ROPE = Source(
    "_torch/attention_backend/interface.py",
    "44753 characters",
    {"RopeParams.from_config": 664},
)
ROPE_TABLES = Source(
    "functional.py",
    "19347 characters",
    {"RotaryScalingType.from_string": 35, "RopeEmbeddingUtils": 214, "create_sinusoidal_positions_long_rope": 392},
)
MAPPER = Source("_torch/models/checkpoints/hf/weight_mapper.py", "088aa36b")
BASE_MAPPER = Source(
    "_torch/models/checkpoints/base_weight_mapper.py",
    "0c8de69a",
    {"BaseWeightMapper.handle_manual_copy": 114},
)
CAPTURE = Source(
    "_torch/speculative/eagle3.py",
    "48275 characters",
    {"Eagle3OneModelSpecMetadata": 319, "is_layer_capture": 382},
)
SPEC_UTILS = Source("_torch/speculative/utils.py", "44165 characters")
ARGUMENTS = Source("llmapi/llm_args.py", "256191 characters")
COMPRESSED = Source(
    "models/quant_config_utils.py",
    "21156a7a",
    {"_quant_config_from_config_group": 91, "update_quant_config_from_compressed_tensors": 245},
)
MODELOPT = Source(
    "quantization/modelopt_config.py",
    "7542 characters",
    {"read_modelopt_quant_config": 116},
)
QUANT_CONFIG = Source("models/modeling_utils.py", "22144 characters")
QUANT_MODE = Source(
    "quantization/mode.py",
    "17986 characters",
    {"QuantAlgo": 23},
)

RUN = "5.8.1 (this tree's comments pin 5.5.4)"
TRANSFORMERS = Source(
    "(transformers) configuration_utils.py", RUN, {"strict fields": 121, "PreTrainedConfig.__post_init__": 243}
)
TRANSFORMERS_ROPE = Source("(transformers) modeling_rope_utils.py", RUN, {"validate_rope": 775})
PHI3 = Source("(transformers) models/phi3/configuration_phi3.py", RUN, {"Phi3Config.validate_rope": 107})
DIVIDED: Mapping[str, Source] = {
    "llama": Source("(transformers) models/llama/configuration_llama.py", RUN, {"validate_architecture": 94}),
    "deepseek_v2": Source(
        "(transformers) models/deepseek_v2/configuration_deepseek_v2.py", RUN, {"validate_architecture": 122}
    ),
}
"""Model types of which hidden_size must be a multiple of num_attention_heads."""

SOURCES: tuple[Source, ...] = (
    SPECULATIVE,
    UTILS,
    DEEPSEEK,
    MODEL_CONFIG,
    CONFIG_UTILS,
    DEEPSEEK_CONFIG,
    LINEAR,
    EMBEDDING,
    GATED_MLP,
    RMS_NORM,
    ATTENTION,
    MLA,
    ROPE,
    ROPE_TABLES,
    MAPPER,
    BASE_MAPPER,
    CAPTURE,
    SPEC_UTILS,
    ARGUMENTS,
    COMPRESSED,
    MODELOPT,
    QUANT_CONFIG,
    QUANT_MODE,
    TRANSFORMERS,
    TRANSFORMERS_ROPE,
    PHI3,
    *DIVIDED.values(),
)
