"""Everything that a record may declare changed: how `verify` makes it again, and what it has to be given for that."""

from __future__ import annotations

from dataclasses import dataclass

from draftconv.conversion.working_drafter import ChangeKind


@dataclass(frozen=True, slots=True)
class ChangeDeclaration:
    """One kind of change.

    Attributes:
        kind: as in `changes` of a record. `what`: which tensors or facts it is of, in words, or a fact's name.
        made: the pass that makes it again, and from what.
        needs: what whoever verifies has to give; empty where the source is enough.
    """

    kind: ChangeKind
    what: str
    made: str
    needs: str = ""


WEIGHTS = "--target with weights"
TRACE = "--calibrate, where activations are static or smoothed, or GPTQ rounded"

DECLARATIONS = (
    ChangeDeclaration("dropped", "a leftover of training", "reading: the source is read again"),
    ChangeDeclaration("dropped", "a key of config.json", "nothing: what a key means is a fact, and facts are compared"),
    ChangeDeclaration(
        "dropped", "embed_tokens", "embedding: compared with the target's table", f"{WEIGHTS}, or --force"
    ),
    ChangeDeclaration("dropped", "embed_tokens of a layout that never stores it", "embedding: the rule of the layout"),
    ChangeDeclaration("dropped", "t2d", "vocabulary: it follows from d2t"),
    ChangeDeclaration("dropped", "parts of a quantized weight", "dequantize, repack: the weight is made again"),
    ChangeDeclaration("dropped", "tensors of no kind of drafter", "repair: `tensor-unexpected`"),
    ChangeDeclaration("added", "embed_tokens", "embedding: the target's table", WEIGHTS),
    ChangeDeclaration("added", "o_proj.bias", "biases: zeros"),
    ChangeDeclaration("added", "d2t and t2d", "vocabulary: the identity, or the mask of d2t; prune: the tokens kept"),
    ChangeDeclaration("added", "lm_head", "prune: rows of the target's head", WEIGHTS),
    ChangeDeclaration("replaced", "embed_tokens", "embedding: the target's table", WEIGHTS),
    ChangeDeclaration(
        "replaced", "a weight that was dequantized", "dequantize: the floats that the integers stand for"
    ),
    ChangeDeclaration("replaced", "a weight that was packed anew", "repack: the same integers and scales"),
    ChangeDeclaration("replaced", "a weight that was quantized", "quantize: rounded by the recorded recipe", TRACE),
    ChangeDeclaration("requantized", "a weight", "quantize: what was stored, rounded by the recorded recipe", TRACE),
    ChangeDeclaration("cast", "a float tensor", "dtype: rounded once to nearest even"),
    ChangeDeclaration("cast", "d2t", "vocabulary: every value exact"),
    ChangeDeclaration("permuted", "lm_head", "vocabulary: its rows follow the maps of both sides"),
    ChangeDeclaration("pruned", "lm_head", "prune: the rows of the tokens that the output's d2t names"),
    ChangeDeclaration("pruned", "d2t", "prune: the tokens of the output, which must be the source's"),
    ChangeDeclaration("repaired", "d2t", "repair: `d2t-absolute`, `d2t-t2d-mismatch`, `d2t-dtype`"),
    ChangeDeclaration("repaired", "lm_head", "repair: `head-pruned-by-offset`", "--repair head-pruned-by-offset=PATH"),
    ChangeDeclaration("repaired", "hidden_norm", "repair: `double-norm`"),
    ChangeDeclaration("repaired", "the norms before fc", "repair: `norm-without-flag`"),
    ChangeDeclaration("fact", "own_embedding", "embedding: as embed_tokens", f"{WEIGHTS}, or --force"),
    ChangeDeclaration("fact", "vocab_order", "vocabulary, prune, repair: as d2t"),
    ChangeDeclaration("fact", "draft_vocab", "prune: as lm_head"),
    ChangeDeclaration("fact", "own_head", "prune: as lm_head", WEIGHTS),
    ChangeDeclaration("fact", "max_positions", "positions: the target's", "--target, or --max-positions"),
    ChangeDeclaration(
        "fact",
        "rope",
        "repair: `rope-injected`, `rope-base-untrained`; rope: YaRN's defaults, for a reader without them",
    ),
    ChangeDeclaration("fact", "double_norm", "repair: `double-norm`"),
    ChangeDeclaration("fact", "quantization", "dequantize, repack, quantize: what the same steps write", TRACE),
    ChangeDeclaration("fact", "activations", "repack, quantize: what the same steps write"),
)
"""A record that declares another change was not written by draftconv, and declares nothing by it."""

CHANGEABLE_FACTS = frozenset(row.what for row in DECLARATIONS if row.kind == "fact")
