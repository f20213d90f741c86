"""From an opened checkpoint to a `Drafter`: one reader for every layout.

Tensors win over config.json where both speak; where they contradict each other a
problem says so. Nothing but headers, config and the small vocabulary maps is read.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from draftconv import limits
from draftconv.checkpoint import FLOATS, Checkpoint, TensorRef, row_blocks, show
from draftconv.checkpoint.checkpoint import CONFIG
from draftconv.checkpoint.text import refuse_infinite
from draftconv.drafter.boundaries import IDS
from draftconv.drafter.config import Config
from draftconv.drafter.drafter import FULL_MASK, IDENTITY_MAP, ZERO_BIAS, Detection, Drafter, Reading
from draftconv.drafter.facts import DEFAULT_EPS, Facts, Feedback, Fusion, Gqa, Mla, VocabOrder
from draftconv.drafter.fingerprint import Fingerprint
from draftconv.drafter.names import SortedNames, sort_names
from draftconv.drafter.problems import Problem
from draftconv.drafter.rope import read_rope
from draftconv.drafter.vocabulary import MapReading, read_maps
from draftconv.errors import BadCheckpoint
from draftconv.layouts.ambiguity import readings
from draftconv.layouts.aux_layers import DEFAULT_COUNT, AuxLayerReader
from draftconv.layouts.base import Layout, ReadNotes, ReadOptions
from draftconv.layouts.detect import detect
from draftconv.layouts.quantization_name import quantization_name

logger = logging.getLogger(__name__)

BLOCK = 1024 * 1024
"""Bytes of a bias that are in memory at a time."""


def _per_head(width: int | None, heads: int) -> int | None:
    """What each head has of a width; None when it does not divide."""
    return width // heads if width and width % heads == 0 else None


def _difference(whole: int | None, part: int | None) -> int | None:
    return whole - part if whole and part and whole > part else None


def _is_zero(ref: TensorRef) -> bool:
    """Whether every byte is 0; read in blocks, whatever size a header gives it."""
    return not any(any(ref.rows(start, stop)) for start, stop in row_blocks(ref, BLOCK))


_LATER_LAYER = re.compile(r"layers\.([1-9][0-9]{0,3})\.")
_ONE_PER_ELEMENT = FLOATS | {"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8"}
"""Dtypes that hold one value per element, so that a quantized weight's shape is the weight's own."""

NORM_FLAGS: Mapping[str, Fusion] = {"fc_norm": "fc_norm", "norm_before_fc": "norm_before_fc"}


def read_drafter(checkpoint: Checkpoint, options: ReadOptions | None = None) -> Drafter:
    """Detect the layout of a checkpoint and read its facts.

    Raises:
        NotADrafter: it is something else.
        BadCheckpoint: facts that nothing can stand in for are missing or of the wrong type.
    """
    options = options or ReadOptions()
    for name, document in {CONFIG: checkpoint.config, **checkpoint.sidecars}.items():
        refuse_infinite(document, name)
    names = sort_names(checkpoint.tensors)
    fingerprint = Fingerprint(checkpoint, names)
    layout, detection = detect(fingerprint, options)
    limits.DRAFTER_TENSORS.check(len(names.canonical), f"{show(checkpoint.name)} has {len(checkpoint.tensors)} tensors")
    clues = "; ".join(detection.reasons)
    logger.info("%s: layout %s, %s: %s", show(checkpoint.name), layout.id, detection.confidence, clues)
    drafter = _Reader(fingerprint, layout, options).drafter(detection.confidence, detection.reasons)

    def read(option: tuple[str, str], layout: Layout, options: ReadOptions) -> Reading:
        return _Reader(fingerprint, layout, options).reading(option)

    alternatives = readings(fingerprint, layout, detection, options, read)
    doubt = (Problem("reading-doubtful", "; ".join(map(str, alternatives))),) if alternatives else ()
    return replace(drafter, problems=(*drafter.problems, *doubt), readings=alternatives)


@dataclass
class _Reader:
    fingerprint: Fingerprint
    layout: Layout
    options: ReadOptions
    notes: ReadNotes = field(default_factory=ReadNotes)

    def __post_init__(self) -> None:
        self.config = Config(self.layout.flatten(self.fingerprint.checkpoint.config))
        self.eagle = self.config.section("eagle_config")
        self.names: SortedNames = self.fingerprint.names
        self.tensors, self.file_names = self._tensors()
        self.qparams = {name: self.fingerprint.checkpoint.tensors[file] for name, file in self.names.qparams.items()}
        self.quantization = quantization_name(self.fingerprint, self.qparams, self.tensors)

    def drafter(self, confidence: str, reasons: tuple[str, ...]) -> Drafter:
        dropped = dict(self.names.stale)
        self._drop_zero_o_bias(dropped)
        facts = self._facts()
        maps = self._maps(facts.vocab)
        if maps is not None:
            facts = replace(facts, vocab_order=self._order(maps, facts))
            if facts.vocab_order == "full":
                for name in ("d2t", "t2d"):
                    if self.tensors.pop(name, None):
                        dropped[self.file_names.pop(name)] = IDENTITY_MAP
        elif facts.draft_vocab < facts.vocab:
            self.notes.problem("d2t-missing", f"lm_head has {facts.draft_vocab} rows, the target {facts.vocab} tokens")
            facts = replace(facts, vocab_order="unordered")
        elif "t2d" in self.tensors:
            dropped[self.file_names.pop("t2d")] = FULL_MASK
            del self.tensors["t2d"]
        return Drafter(
            checkpoint=self.fingerprint.checkpoint,
            detection=Detection(self.layout.id, confidence, reasons),
            facts=facts,
            tensors=self.tensors,
            names=self.file_names,
            config=self.config.data,
            dropped=dropped,
            qparams=self.qparams,
            reasons=self.notes.reasons,
            problems=tuple(self.notes.problems),
            maps=maps,
        )

    def reading(self, option: tuple[str, str]) -> Reading:
        """What this layout and these options make of the facts that producers spell alike and mean otherwise."""
        facts = self._facts()
        final_norm = all(problem.code != "final-norm-off" for problem in self.notes.problems)
        return Reading(option, facts.boundaries, facts.feedback, final_norm)

    # ── tensors ────────────────────────────────────────────────────────────────────

    def _tensors(self) -> tuple[dict[str, TensorRef], dict[str, str]]:
        """Canonical tensors, with pre-fused projections (vLLM accepts them) seen as their row ranges."""
        tensors: dict[str, TensorRef] = {}
        files: dict[str, str] = {}
        for name, file in self.names.canonical.items():
            for part, ref in self._split(name, self.fingerprint.checkpoint.tensors[file]).items():
                if part in tensors:
                    raise BadCheckpoint(
                        f"tensors {show(files[part])} and {show(file)} both hold {show(part)}",
                        why="which of the two was trained cannot be told",
                        cure="remove one of them",
                    )
                tensors[part], files[part] = ref, file
        return tensors, files

    def _split(self, name: str, ref: TensorRef) -> dict[str, TensorRef]:
        rows = ref.row_count if ref.shape else 0
        match name.rsplit(".", 2)[-2:]:
            case ["qkv_proj", kind]:
                heads = self.config.required("num_attention_heads")
                kv = self.config.size("num_key_value_heads") or heads
                unit = rows // (heads + 2 * kv)
                parts = {"q_proj": heads * unit, "k_proj": kv * unit, "v_proj": kv * unit}
            case ["gate_up_proj", kind]:
                parts = {"gate_proj": rows // 2, "up_proj": rows // 2}
            case _:
                return {name: ref}
        if not rows or sum(parts.values()) != rows:
            raise BadCheckpoint(
                f"{show(ref.name)} is {list(ref.shape)}, which does not split into {', '.join(parts)}",
                cure="correct num_attention_heads and num_key_value_heads, or export again",
            )
        stem, start, split = name.rsplit(".", 2)[0], 0, {}
        for part, size in parts.items():
            split[f"{stem}.{part}.{kind}"] = ref.row_range(start, start + size)
            start += size
        return split

    def _drop_zero_o_bias(self, dropped: dict[str, str]) -> None:
        """Zeros in o_proj.bias beside q/k/v biases: `convert` adds them for readers with one flag for all."""
        for layer in range(self._layers()):
            stem = f"layers.{layer}.self_attn"
            bias = self.tensors.get(f"{stem}.o_proj.bias")
            if bias and f"{stem}.q_proj.bias" in self.tensors and _is_zero(bias):
                del self.tensors[f"{stem}.o_proj.bias"]
                dropped[self.file_names.pop(f"{stem}.o_proj.bias")] = ZERO_BIAS

    def _shape(self, name: str) -> tuple[int, ...] | None:
        """Shape in elements; None when absent, empty or packed."""
        ref = self.tensors.get(name)
        if ref is None or 0 in ref.shape or (self.quantization and ref.dtype not in _ONE_PER_ELEMENT):
            return None
        return ref.shape

    def _rows(self, name: str) -> int | None:
        shape = self._shape(name)
        return shape[0] if shape else None

    def _columns(self, name: str) -> int | None:
        shape = self._shape(name)
        return shape[1] if shape and len(shape) == 2 else None

    def _has_weight(self, module: str) -> bool:
        """True when a module's weight is stored, plain or quantized under any name."""
        stored = (*self.tensors, *self.qparams)
        return any(name.startswith(f"{module}.") and not name.endswith(".bias") for name in stored)

    # ── facts ──────────────────────────────────────────────────────────────────────

    def _facts(self) -> Facts:
        hidden = self._agreed_size("hidden_size", self._rows("norm.weight") or self._rows("fc.weight"))
        vocab = self._vocab()
        rope, rope_reason, contradictions = read_rope(self.config, mla=self._is_mla())
        self.notes.reasons["rope"] = rope_reason
        for contradiction in contradictions:
            self.notes.problem("rope-contradiction", contradiction)
        target_hidden, aux = self._captured_states(hidden)
        fusion = self._fusion()
        return Facts(
            attention=self._attention(),
            layers=self._layers(),
            hidden=hidden,
            target_hidden=target_hidden,
            intermediate=self._agreed_size("intermediate_size", self._rows("layers.0.mlp.gate_proj.weight")),
            vocab=vocab,
            draft_vocab=self._draft_vocab(vocab),
            aux=aux,
            boundaries=AuxLayerReader(self.fingerprint, self.layout, self.options, self.config, self.notes).read(aux),
            rope=rope,
            eps=self._eps(),
            fusion=fusion,
            feedback=self._feedback(),
            norm_before_residual=self._norm_before_residual(),
            double_norm=self.layout.double_norm(self.fingerprint) or self.eagle.has("parallel_draft_step"),
            activation=self.config.text("hidden_act") or "silu",
            mlp_bias="layers.0.mlp.gate_proj.bias" in self.tensors,
            fc_bias="fc.bias" in self.tensors,
            own_embedding="embed_tokens.weight" in self.tensors,
            own_head=self._has_weight("lm_head"),
            max_positions=self.config.size("max_position_embeddings"),
            window=self._window(),
            quantization=self.quantization,
        )

    def _agreed_size(self, key: str, stored: int | None) -> int:
        """The tensors' word for a size, with a problem when config.json says otherwise."""
        written = self.config.size(key)
        if stored is None:
            return self.config.required(key)
        if written is not None and written != stored:
            self.notes.problem("tensor-shape", f"{key} is {written} in config.json, {stored} in the tensors")
        self.notes.reasons.setdefault(key, "tensor shapes")
        return stored

    def _is_mla(self) -> bool:
        return self._has_weight("layers.0.self_attn.kv_a_proj_with_mqa")

    def _layers(self) -> int:
        """Layers stored without a gap; an index beyond one belongs to no layer of this drafter."""
        stored = {m[1] for name in (*self.tensors, *self.qparams) if (m := _LATER_LAYER.match(name))}
        count = 1
        while str(count) in stored:
            count += 1
        limits.DRAFTER_LAYERS.check(count, f"{show(self.fingerprint.checkpoint.name)} stores {count} layers")
        self.config.size("num_hidden_layers", limits.DRAFTER_LAYERS)  # what engines build; problems compare it
        return count

    def _attention(self) -> Gqa | Mla:
        return self._mla() if self._is_mla() else self._gqa()

    def _gqa(self) -> Gqa:
        heads = self.config.required("num_attention_heads")
        stem = "layers.0.self_attn"
        width = self._columns(f"{stem}.o_proj.weight")
        written = self.config.size("head_dim")
        hidden = self.config.size("hidden_size") or self._rows("norm.weight") or heads
        head_dim = width // heads if width else written or hidden // heads
        if written is not None and written != head_dim:
            self.notes.problem("tensor-shape", f"head_dim is {written} in config.json, {head_dim} in o_proj")
        if written is None and head_dim != hidden // heads:
            self.notes.problem("head-dim-missing", f"o_proj says {head_dim}, hidden_size / heads is {hidden // heads}")
        self.notes.reasons["head_dim"] = "o_proj columns / heads" if width else "config.json"
        rows = self._rows(f"{stem}.k_proj.weight")
        kv_heads = rows // head_dim if rows and head_dim else self.config.size("num_key_value_heads") or heads
        written_kv = self.config.size("num_key_value_heads")
        if written_kv is not None and written_kv != kv_heads:
            self.notes.problem("tensor-shape", f"num_key_value_heads is {written_kv}, k_proj holds {kv_heads}")
        return Gqa(
            heads,
            kv_heads,
            head_dim,
            qkv_bias=f"{stem}.q_proj.bias" in self.tensors,
            o_bias=f"{stem}.o_proj.bias" in self.tensors,
            qk_norm=f"{stem}.q_norm.weight" in self.tensors,
        )

    def _mla(self) -> Mla:
        stem = "layers.0.self_attn"
        compressed = self._has_weight(f"{stem}.q_a_proj")
        if compressed != (self.config.raw("q_lora_rank") is not None) and self.config.has("q_lora_rank"):
            self.notes.problem(
                "tensor-shape", f"q_lora_rank is {self.config.raw('q_lora_rank')}, the tensors say otherwise"
            )
        heads = self.config.required("num_attention_heads")
        latent = self._rows(f"{stem}.kv_a_layernorm.weight")
        # o_proj reads heads x v, kv_b_proj writes heads x (nope + v), kv_a_proj_with_mqa latent + rope.
        v = _per_head(self._columns(f"{stem}.o_proj.weight"), heads)
        both = _per_head(self._rows(f"{stem}.kv_b_proj.weight"), heads)
        joined = self._rows(f"{stem}.kv_a_proj_with_mqa.weight")
        return Mla(
            heads=heads,
            q_lora=self._agreed_size("q_lora_rank", self._rows(f"{stem}.q_a_layernorm.weight")) if compressed else None,
            kv_lora=self._agreed_size("kv_lora_rank", latent),
            nope=self._agreed_size("qk_nope_head_dim", _difference(both, v)),
            rope=self._agreed_size("qk_rope_head_dim", _difference(joined, latent)),
            v=self._agreed_size("v_head_dim", v),
        )

    def _vocab(self) -> int:
        t2d = self.tensors.get("t2d")
        return self._agreed_size(
            "vocab_size", self._rows("embed_tokens.weight") or (math.prod(t2d.shape) if t2d else None)
        )

    def _draft_vocab(self, vocab: int) -> int:
        written = self.config.size("draft_vocab_size")
        rows = self._rows("lm_head.weight")
        if written is None and rows is not None:
            self.notes.problem("draft-vocab-missing", f"lm_head has {rows} rows")
        if written is not None and rows is not None and written != rows:
            self.notes.problem("head-rows", f"draft_vocab_size is {written}, lm_head has {rows} rows")
        size = rows or written or vocab
        d2t = self.tensors.get("d2t")
        if d2t is not None and d2t.shape != (size,):
            self.notes.problem("head-rows", f"d2t is {list(d2t.shape)}, lm_head has {size} rows")
        if size > vocab:
            self.notes.problem("head-rows", f"lm_head has {size} rows, the target {vocab} tokens")
        return size

    def _maps(self, vocab: int) -> MapReading | None:
        d2t = self.tensors.get("d2t")
        if d2t is None:
            return None
        reading = read_maps(d2t, self.tensors.get("t2d"), vocab)
        for code, detail in reading.faults:
            self.notes.problem(code, detail)
        return reading

    def _order(self, maps: MapReading, facts: Facts) -> VocabOrder:
        if maps.map is None:
            return "unordered"
        if facts.draft_vocab == facts.vocab:
            identity = maps.map.order == "full"
            effect = "is all zeros over" if identity else "permutes"
            self.notes.problem("d2t-on-full-vocab", f"d2t {effect} the whole vocabulary")
            if identity:
                return "full"
        return "ascending" if maps.map.order != "unordered" else "unordered"

    def _eps(self) -> float:
        eps = self.config.number("rms_norm_eps")
        self.notes.reasons["eps"] = "config.json" if eps is not None else f"absent: transformers' default {DEFAULT_EPS}"
        return eps if eps is not None else DEFAULT_EPS

    def _window(self) -> int | None:
        width = self.config.size("sliding_window")
        kinds = set(self.config.texts("layer_types"))
        if width is not None and kinds == {"sliding_attention", "full_attention"}:
            raise BadCheckpoint(
                "config.json: layer_types mixes full_attention and sliding_attention",
                why="draftconv holds one window for the whole drafter, and would lose one of the two",
                cure="no trainer read so far writes this; please report where the drafter comes from",
            )
        return width if kinds == {"sliding_attention"} else None

    # ── norms ──────────────────────────────────────────────────────────────────────

    def _fusion(self) -> Fusion:
        stored = {
            "fc_norm": any(name.startswith("fc_norm.") for name in self.tensors),
            "norm_before_fc": "input_norm.weight" in self.tensors,
        }
        flags = {
            "fc_norm": bool(self.config.flag("fc_norm") or self.config.flag("use_aux_norm")),
            "norm_before_fc": bool(self.eagle.flag("norm_before_fc") or self.config.flag("norm_before_fc")),
        }
        for name in NORM_FLAGS:
            if stored[name] and not flags[name]:
                self.notes.problem("norm-without-flag", f"{name} tensors are stored, config.json does not set {name}")
            if flags[name] and not stored[name]:
                self.notes.problem("flag-without-norm", f"{name} is true and its tensors are missing")
        norms = [name for name in NORM_FLAGS if stored[name] or flags[name]]
        if len(norms) == 2:
            self.notes.problem("both-fusion-norms", "fc_norm and norm_before_fc (input_norm)")
            return "both"
        self.notes.reasons["fusion"] = "tensors and flag" if norms else "no norm tensors, no flag"
        return NORM_FLAGS[norms[0]] if norms else "plain"

    def _feedback(self) -> Feedback:
        flag = self.config.flag("norm_output")
        if self.layout.norm_output == "final-norm":
            self.notes.reasons["feedback"] = f"{self.layout.title} always feeds back the pre-norm state"
            if flag is True:
                self.notes.problem("norm-output-specforge", "norm_output: true")
            if flag is False:
                self.notes.problem("final-norm-off", "norm_output: false")
            return "pre-norm"
        nested = self.eagle.flag("return_hidden_post_norm")
        if flag is not None and nested is not None and flag is not nested:
            message = f"norm_output is {str(flag).lower()}, eagle_config.return_hidden_post_norm {str(nested).lower()}"
            self.notes.problem("feedback-contradiction", message)
        post = flag or nested
        written = flag is not None or self.eagle.has("return_hidden_post_norm")
        self.notes.reasons["feedback"] = (
            "norm_output in config.json" if written else "norm_output absent: false everywhere"
        )
        return "post-norm" if post else "pre-norm"

    def _norm_before_residual(self) -> bool:
        flag = self.config.flag("norm_before_residual")
        self.notes.reasons["norm_before_residual"] = (
            "config.json" if flag is not None else f"absent: {self.layout.title} adds the raw state"
        )
        return bool(flag)

    # ── captured layers ────────────────────────────────────────────────────────────

    def _captured_states(self, hidden: int) -> tuple[int, int]:
        """Return (target hidden, number of captured states), from fc's width and what else speaks of it."""
        target = self.options.target
        stored = self._rows("fc_norm.0.weight")
        written = self.config.size("target_hidden_size")
        widths = [stored, written] if stored or written else [hidden, target.hidden if target else None]
        choices = [width for width in widths if width]
        count = self._state_count()
        width = self._columns("fc.weight")
        if width is None:
            self.notes.reasons["aux"] = "config.json" if count else "the default triple: fc's width cannot be read"
            return choices[0], count or DEFAULT_COUNT
        target_hidden = next((w for w in choices if w * (count or DEFAULT_COUNT) == width), None)
        if target_hidden is None and count is None:
            whole = (w for w in choices if width % w == 0 and width // w <= limits.CAPTURED.value)
            target_hidden = next(whole, None)
        if target_hidden is not None:
            aux = width // target_hidden
            if target_hidden != (written or hidden):
                key = f"target_hidden_size is {written or 'missing'}"
                self.notes.problem("fc-width", f"fc reads {width} = {aux} x {target_hidden}, {key}")
        elif not written and count and width % count == 0:
            # The key is missing; the ids still say how many states share the width.
            target_hidden, aux = width // count, count
            key = "target_hidden_size is missing"
            self.notes.problem("fc-width", f"fc reads {width} = {aux} x {target_hidden}, {key}")
        else:
            target_hidden = choices[0]
            aux = count or min(max(width // target_hidden, 1), limits.CAPTURED.value)
            captured = f"{count} captured layers" if count else "captured layers"
            self.notes.problem("fc-width", f"fc reads {width} values; {captured} x {target_hidden} do not give that")
        if target and target.hidden and target.hidden != target_hidden:
            message = f"{target.name} has hidden size {target.hidden}, fc expects {target_hidden}"
            self.notes.problem("hidden-target", message)
        self.notes.reasons["aux"] = f"fc columns {width} / target hidden {target_hidden}"
        return target_hidden, aux

    def _state_count(self) -> int | None:
        """How many states are captured, by everything but fc: a norm stored for each, else config.json."""
        ids = self.config.integers(IDS) or self.eagle.integers(IDS)
        norms = sum(name.startswith("fc_norm.") and name.endswith(".weight") for name in self.tensors)
        return norms or self.config.size("num_aux_hidden_states", limits.CAPTURED) or (len(ids) if ids else None)
