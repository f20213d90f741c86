"""Faults that somebody could make in one line of draftconv, and that a test of the same room has to notice.

One row per fault. A row is added with the code that it breaks; one that survives gets a test, and is never taken out.
Left out are faults that change no result: another block size, a message in other words.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault.

    Attributes:
        module: the file, in `draftconv/`.
        old: what is there exactly once; `new` takes its place.
        breaks: what is then wrong, in words.
        tests: which tests of the room are asked, if not all of them.
    """

    module: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...] = ()

    @property
    def room(self) -> str:
        """Whose tests have to notice it."""
        return self.module.partition("/")[0].removesuffix(".py")

    @property
    def file(self) -> str:
        """The file, from the root of a checkout."""
        return f"draftconv/{self.module}"

    @property
    def run(self) -> tuple[str, ...]:
        """The tests, from the root of a checkout."""
        home = Path("tests", self.room) if "/" in self.module else Path("tests")
        return tuple((home / name).as_posix() for name in self.tests or ("",))


CHECKPOINT = (
    Mutation(
        "checkpoint/headers.py",
        "limits.HEADER.check(length,", "limits.HEADER.check(length // 10,",
        "a header over the limit is read", ("test_headers.py",)),
    Mutation(
        "checkpoint/headers.py",
        "(-len(raw) % 8)", "(-len(raw) % 4)",
        "tensors start off the multiple of 8", ("test_headers.py",)),
    Mutation(
        "checkpoint/headers.py",
        "if ref.offset < reached:", "if ref.offset < 0:",
        "tensors may share bytes", ("test_headers.py",)),
    Mutation(
        "checkpoint/text.py",
        "if len(mapping) != len(pairs):", "if len(mapping) > len(pairs):",
        "a key that stands twice is read", ("test_text.py", "test_headers.py")),
    Mutation(
        "checkpoint/text.py",
        r'any(character in "/\\\0" for', r'any(character in "\\\0" for',
        "an index may name files in other directories", ("test_text.py", "test_checkpoint.py")),
    Mutation(
        "checkpoint/text.py",
        'c if c.isprintable() else c.encode("unicode_escape").decode()', "c",
        "control characters reach the terminal", ("test_text.py",)),
    Mutation(
        "checkpoint/local.py",
        "if target.parent not in allowed:", "if target.parent is None:",
        "a link may lead out of the directory", ("test_checkpoint.py",)),
    Mutation(
        "checkpoint/files.py",
        "offset + length > file.size", "offset > file.size",
        "a range may end beyond the file", ("test_files.py", "test_tensors.py")),
    Mutation(
        "checkpoint/hashing.py",
        "digest.update(ref.rows(start, stop))", "start or digest.update(ref.rows(start, stop))",
        "only the first block of a tensor is hashed", ("test_checkpoint.py",)),
    Mutation(
        "checkpoint/hashing.py",
        "file.readinto(done, piece)", "file.readinto(0, piece)",
        "the first block of a file is hashed again and again", ("test_checkpoint.py",)),
    Mutation(
        "checkpoint/hashing.py",
        "if found != listed:", "if self.sha256 and found != listed:",
        "a small file may be another than the Hub lists", ("test_listed.py",)),
    Mutation(
        "checkpoint/hashing.py",
        "os.path.realpath(file.path)", "str(file.path)",
        "the cure removes a link of the cache, and the damaged file stays", ("test_listed.py",)),
    Mutation(
        "checkpoint/execute.py",
        "file.check_unchanged()", "pass",
        "a source may change between its hash and its copy", ("test_listed.py",)),
    Mutation(
        "checkpoint/staging.py",
        "why=_left(room, published=published)", 'why="nothing was left behind"',
        "an error says that nothing is left where something is", ("test_staging.py",)),
    Mutation(
        "checkpoint/compare_values.py",
        "for start, stop in row_blocks(mine, BLOCK):", "for start, stop in list(row_blocks(mine, BLOCK))[:1]:",
        "only the first block of two tensors is compared", ("test_compare_values.py",)),
    Mutation(
        "checkpoint/compare_values.py",
        "zero = zero and not np.any(bits & float_bits.magnitude)", "zero = not np.any(bits & float_bits.magnitude)",
        "a tensor whose last block is zeros is called all zeros", ("test_compare_values.py",)),
    Mutation(
        "checkpoint/casts.py",
        "wide + (((wide >> 16) & 1) + np.uint32(0x7FFF))", "wide + np.uint32(0x8000)",
        "BF16 ties are rounded away from zero", ("test_casts.py",)),
    Mutation(
        "checkpoint/casts.py",
        "if values.dtype.itemsize == 8:", "if values.dtype.itemsize == 16:",
        "F64 is rounded twice on the way to BF16", ("test_casts.py",)),
    Mutation(
        "checkpoint/pickles.py",
        "if name not in GLOBALS:", 'if name not in GLOBALS and "." in name:',
        "the unpickler lets names of modules through", ("test_torchbin.py",)),
    Mutation(
        "checkpoint/pickles.py",
        "if name in STORAGES and count >= 0:", "if name in STORAGES:",
        "a storage may have a negative length", ("test_torchbin.py",)),
    Mutation(
        "checkpoint/weights.py",
        "where.get(tensor) != name:", "tensor not in where:",
        "a tensor may lie in another shard than the index says", ("test_checkpoint.py",)),
    Mutation(
        "checkpoint/hub_file.py",
        'f"bytes={offset}-{offset + length - 1}"', 'f"bytes={offset}-{offset + length}"',
        "a range read asks for one byte too many", ("test_hub.py",)),
    Mutation(
        "checkpoint/hub_file.py",
        "if content_range is None or int(content_range[1]) != offset:", "if content_range is None:",
        "another range than the one asked for is taken", ("test_hub.py",)),
    Mutation(
        "checkpoint/hub_file.py",
        "if self._token is not None and origin(url) == origin(self._endpoint):", "if self._token is not None:",
        "the token is shown to every host", ("test_hub.py",)),
    Mutation(
        "checkpoint/hub_file.py",
        'if scheme == "http" and urlsplit(url).scheme == "https":', "if not scheme:",
        "a redirection from https to http is followed", ("test_hub.py",)),
    Mutation(
        "checkpoint/staging.py",
        "if not (overwrite or empty):", "if mark is None and not empty:",
        "an output of ours is replaced without --overwrite", ("test_staging.py",)),
    Mutation(
        "checkpoint/staging.py",
        "                _refuse_target(out, mark, overwrite=overwrite)  # hours may have passed\n", "",
        "what appeared at the output meanwhile is replaced", ("test_staging.py",)),
    Mutation(
        "checkpoint/staging.py",
        "return digest.sha256 is None or sha256(file) == digest.sha256", "return True",
        "--overwrite deletes a file that was edited", ("test_staging.py",)),
    Mutation(
        "checkpoint/directories.py",
        "        os.fsync(descriptor)\n", "        os.fstat(descriptor)\n",
        "names in a directory are not made durable", ("test_staging.py", "test_faults.py", "test_execute.py")),
    Mutation(
        "checkpoint/execute.py",
        "os.fsync(descriptor)\n        return digest.result()", "return digest.result()",
        "weights are not made durable before the rename", ("test_faults.py", "test_execute.py", "test_staging.py")),
    Mutation(
        "checkpoint/execute.py",
        "and pending.source + pending.length == ref.offset", "and pending.source + pending.length <= ref.offset",
        "copies with a hole between them become one", ("test_execute.py",)),
    Mutation(
        "checkpoint/execute.py",
        "            if digest.done():\n                digest.result()\n", "",
        "work goes on when what was written cannot be read", ("test_execute.py",)),
    Mutation(
        "checkpoint/front.py",
        "self._reached = self._beyond.pop(self._reached)", "self._reached = self._beyond.pop(max(self._beyond))",
        "a hash reads over a gap that is not written yet", ("test_front.py",)),
    Mutation(
        "checkpoint/front.py",
        "if self._reached != self._size:", "if self._reached > self._size:",
        "a file with a hole in it counts as written", ("test_front.py",)),
)  # fmt: skip

DRAFTER = (
    Mutation(
        "drafter/boundaries.py",
        "return (2, layers // 2, layers - 3)", "return (2, layers // 2, layers - 2)",
        "the default triple ends one layer later", ("test_boundaries.py",)),
    Mutation(
        "drafter/boundaries.py",
        'tuple(i + 1 if convention == "after" else i', 'tuple(i + 1 if convention == "before" else i',
        "ids before and after a layer are exchanged", ("test_boundaries.py",)),
    Mutation(
        "drafter/boundaries.py",
        "absolute = [i + (layers or 0) if i < 0", "absolute = [i + (layers or 0) + 1 if i < 0",
        "ids from the end are off by one", ("test_boundaries.py",)),
    Mutation(
        "drafter/boundaries.py",
        'return "after" if ids and ids[0] == 1 else "before"', 'return "after" if 1 in ids else "before"',
        "DeepSeek's rule looks at all ids, not at the first", ("test_boundaries.py",)),
    Mutation(
        "drafter/boundaries.py",
        "max(ids) == layers else", "max(ids) == layers - 1 else",
        "gpt-oss's rule looks for the last layer, not for the count", ("test_boundaries.py",)),
    Mutation(
        "drafter/boundaries.py",
        'reach = layers if family == "gpt-oss" else layers - 1', "reach = layers",
        "boundary L is said to be captured for every family", ("test_boundaries.py",)),
    Mutation(
        "drafter/boundaries.py",
        'tuple(boundaries) if family == "deepseek" else shifted',
        'shifted if family == "deepseek" else tuple(boundaries)',
        "ids of DeepSeek and of all others are spelled the other way", ("test_boundaries.py",)),
    Mutation(
        "drafter/boundaries.py",
        '    if family == "deepseek" and boundaries[0] == 1:', '    if family == "deepseek" and boundaries[0] == -1:',
        "boundary 1 first is written for DeepSeek, which reads it otherwise", ("test_boundaries.py",)),
    Mutation(
        "drafter/vocabulary.py",
        "*(target - i for i, target in enumerate(self.ids))", "*self.ids",
        "d2t is written as target ids", ("test_vocabulary.py",)),
    Mutation(
        "drafter/vocabulary.py",
        "ids = tuple(i + offset for i, offset in enumerate(offsets))", "ids = tuple(offsets)",
        "d2t is read as target ids", ("test_vocabulary.py",)),
    Mutation(
        "drafter/vocabulary.py",
        "if not 0 <= target < vocab]", "if not 0 <= target <= vocab]",
        "a draft id may stand for the token after the last", ("test_vocabulary.py",)),
    Mutation(
        "drafter/vocabulary.py",
        "if usable and t2d is not None and (not agrees or", "if usable and t2d is not None and (",
        "a t2d that contradicts d2t is not noticed", ("test_vocabulary.py",)),
    Mutation(
        "drafter/vocabulary.py",
        "quotient += rest > half or (rest == half and quotient & 1)", "quotient += rest >= half",
        "offsets that a cast rounded are looked for with ties away from zero", ("test_vocabulary.py",)),
    Mutation(
        "drafter/rope.py",
        'config.flag("rope_interleave") is not False', 'config.flag("rope_interleave") is True',
        "MLA without rope_interleave is rotated in halves", ("test_rope.py",)),
    Mutation(
        "drafter/rope.py",
        '"rope_type": rope.kind, "rope_theta": rope.theta, **scaling}', '"rope_type": rope.kind, **scaling}',
        "rope_parameters lacks the base", ("test_rope.py",)),
    Mutation(
        "drafter/rope.py",
        'thetas.get("rope_parameters.rope_theta", next(', 'thetas.get("rope_theta", next(',
        "the old key wins over rope_parameters", ("test_rope.py",)),
    Mutation(
        "drafter/names.py",
        '"layers.0.hidden_norm."),', '"layers.0.input_layernorm."),',
        "ModelOpt's norm of the state is taken for that of the embedding", ("test_names.py",)),
    Mutation(
        "drafter/names.py",
        r'(r"^aux_norm_mid\.", "fc_norm.1."),', r'(r"^aux_norm_mid\.", "fc_norm.2."),',
        "the middle norm of the first EAGLE-3.1 files is taken for the last", ("test_names.py",)),
    Mutation(
        "drafter/names.py",
        "        if bare in into:\n", "        if bare in stale:\n",
        "of two tensors of one name the later wins", ("test_names.py",)),
    Mutation(
        "drafter/fused_qparams.py",
        "if len(set(values.values())) > 1:", "if len(set(values.values())) > 2:",
        "two scales that differ in a joined weight are let through", ("test_fused_qparams.py",)),
    Mutation(
        "drafter/fused_qparams.py",
        "bool((factor == factors[0]).all())", "bool((factor == factors[0]).any())",
        "smoothing that differs in some inputs is let through", ("test_fused_qparams.py",)),
    Mutation(
        "drafter/kinds/eagle31.py",
        ' or facts.feedback == "post-norm"', "",
        "a drafter with post-norm feedback is called EAGLE-3", ("test_kinds.py",)),
    Mutation(
        "drafter/kinds/unsupported.py",
        "fc[1] != 2 * fc[0]", "fc[1] != 3 * fc[0]",
        "an EAGLE-1 drafter is taken for EAGLE-3", ("test_kinds.py",)),
    Mutation(
        "drafter/kinds/unsupported.py",
        "or _called(\"dflash\")(fingerprint) or _reads_one_state(fingerprint)", "or _called(\"dflash\")(fingerprint)",
        "a DFlash drafter whose config.json says nothing is called EAGLE-3", ("test_kinds.py",)),
    Mutation(
        "drafter/kinds/unsupported.py",
        "return bool(_dflash_config(fingerprint).data) or ", "return ",
        "dflash_config is no mark of DFlash", ("test_kinds.py",)),
    Mutation(
        "drafter/random_table.py",
        "return max(abs(self.row_lengths), abs(self.common_column), abs(self.row_similarity))",
        "return max(abs(self.row_lengths), abs(self.common_column))",
        "tables whose rows point the same way in pairs look random", ("test_random_table.py",)),
    Mutation(
        "drafter/random_table.py",
        "/ (width * excess) - 1)", "/ (2 * width) - 1)",
        "tables that were drawn from no normal distribution do not look random", ("test_random_table.py",)),
    Mutation(
        "drafter/random_table.py",
        " & rows.any(axis=1)]", "]",
        "padding makes a random table look trained", ("test_random_table.py",)),
    Mutation(
        "drafter/targets.py",
        '"kimi_k25": "deepseek",', '"kimi_k25": "llama",',
        "Kimi-K2.5 counts layers as Llama does", ("test_targets.py",)),
    Mutation(
        "drafter/checks.py",
        'yield Problem("tensor-missing", name)', "yield from ()",
        "a tensor that is missing is not reported", ("test_problems.py",)),
)  # fmt: skip

LAYOUTS = (
    Mutation(
        "layouts/config_json.py",
        '"norm_output": facts.feedback == "post-norm",', '"norm_output": False,',
        "norm_output is always written as false", ("test_writing.py",)),
    Mutation(
        "layouts/config_json.py",
        '        "norm_before_residual": facts.norm_before_residual,\n', "",
        "norm_before_residual is not written", ("test_writing.py",)),
    Mutation(
        "layouts/config_json.py",
        '"fc_norm": facts.fusion == "fc_norm",', '"fc_norm": False,',
        "fc_norm is always written as false", ("test_writing.py",)),
    Mutation(
        "layouts/config_json.py",
        "if facts.target_hidden != facts.hidden:", "if facts.target_hidden:",
        "target_hidden_size is written where it makes engines keep the embedding", ("test_writing.py",)),
    Mutation(
        "layouts/config_json.py",
        "{IDS: [b - 1 for b in writing.boundaries]}", "{IDS: list(writing.boundaries)}",
        "trainers' ids are one layer later", ("test_writing.py",)),
    Mutation(
        "layouts/config_json.py",
        "if first != 2 and writing.target", "if first > 2 and writing.target",
        "ids that a trainer mis-reads on DeepSeek targets are written", ("test_writing.py",)),
    Mutation(
        "layouts/config_json.py",
        'facts.rope.pairs == "interleaved"', 'facts.rope.pairs == "halves"',
        "rope_interleave is written the wrong way round", ("test_writing.py",)),
    Mutation(
        "layouts/speculators.py",
        'ProducerIds("speculators", "before", True,', 'ProducerIds("speculators", "after", True,',
        "speculators' ids are read one layer later", ("test_ambiguity.py",)),
    Mutation(
        "layouts/speculators.py",
        't2d=True, order="ascending", o_bias', 't2d=True, order="any", o_bias',
        "speculators gets a vocabulary out of order", ("test_writing.py",)),
    Mutation(
        "layouts/modelopt.py",
        'has("next_layer_regular") or fingerprint', 'has("next_layer_regular") and fingerprint',
        "ModelOpt's double norm is told by two keys only", ("test_reader.py",)),
    Mutation(
        "layouts/reader.py",
        'if self.layout.norm_output == "final-norm":', "if not self.layout.norm_output:",
        "SpecForge's norm_output is read as the engines read theirs", ("test_ambiguity.py",)),
    Mutation(
        "layouts/reader.py",
        "return bool(flag)", "return flag is not False",
        "norm_before_residual is true where it is absent", ("test_detect.py",)),
    Mutation(
        "layouts/reader.py",
        'self.eagle.flag("norm_before_fc") or self.config', "self.config",
        "norm_before_fc in eagle_config is ignored", ("test_reader.py",)),
    Mutation(
        "layouts/reader.py",
        "size = rows or written or vocab", "size = written or rows or vocab",
        "draft_vocab_size wins over the rows of lm_head", ("test_reader.py",)),
    Mutation(
        "layouts/reader.py",
        '{"gate_proj": rows // 2, "up_proj": rows // 2}', '{"up_proj": rows // 2, "gate_proj": rows // 2}',
        "gate and up are exchanged when a joined weight is split", ("test_reader.py",)),
    Mutation(
        "layouts/reader.py",
        "flag is not None and nested is not None and flag is not nested", "flag and nested is False",
        "one of two contradictions about the feedback is not noticed", ("test_reader.py",)),
    Mutation(
        "layouts/aux_layers.py",
        "if nested == tuple(b - 1 for b in top):", "if nested == tuple(b + 1 for b in top):",
        "ids of two conventions that agree are called a contradiction", ("test_reader.py",)),
    Mutation(
        "layouts/aux_layers.py",
        "if list(boundaries) != sorted(set(boundaries)) or boundaries[0] < 0", "if boundaries[0] < 0",
        "boundaries out of order are not noticed", ("test_reader.py",)),
    Mutation(
        "layouts/aux_layers.py",
        "(ids[-1] + 3, ids[-1] + 4)", "(ids[-1] + 3, ids[-1] + 3)",
        "the usual triple `after the layer` is looked for one layer off", ("test_reader.py",)),
    Mutation(
        "layouts/detect.py",
        "    _refuse_strangers(fingerprint)  # --from names a spelling, not a network\n",
        "",
        "what is no drafter is read as one", ("test_detect.py",)),
    Mutation(
        "layouts/ambiguity.py",
        "if len(distinct) > 1 else ()", "if len(distinct) > 2 else ()",
        "of two readings that differ one is taken without a word", ("test_ambiguity.py",)),
    Mutation(
        "layouts/limits.py",
        'lambda f: f.feedback == "post-norm",', 'lambda f: f.feedback == "pre-norm" and f.window is not None,',
        "post-norm feedback is written for readers without it", ("test_alternatives.py", "test_writing.py")),
)  # fmt: skip

ENGINES = (
    Mutation(
        "engines/rules.py",
        "return self.numbers[: len(version)] < version", "return self.numbers[: len(version)] <= version",
        "a rule that holds since a version starts one later", ("test_engines.py",)),
    Mutation(
        "engines/rules.py",
        'for status in ("refused", "mis-read", "undecided"):',
        'for status in ("mis-read", "refused", "undecided"):',
        "what is mis-read and refused is called mis-read", ("test_engines.py",)),
    Mutation(
        "engines/vllm/aux_layers.py",
        "b >= 0 and (target is None or b <= target.layers)", "b >= 0 and (target is None or b < target.layers)",
        "vLLM is said not to capture boundary L", ("test_vllm.py",)),
    Mutation(
        "engines/sglang/aux_layers.py",
        "sorted({i + 1 for i in ids})", "sorted({i for i in ids})",
        "SGLang's ids are read one layer earlier", ("test_sglang.py",)),
    Mutation(
        "engines/sglang/aux_layers.py",
        '1 if target.family == "minimax-m3-vl" else 0', "0",
        "MiniMax-M3's default triple is that of all others", ("test_aux_layers.py",)),
    Mutation(
        "engines/trtllm/aux_layers.py",
        "return tuple(b - 1 for b in boundaries)", "return tuple(boundaries)",
        "TensorRT-LLM's ids are one layer later", ("test_aux_layers.py",)),
    Mutation(
        "engines/trtllm/refusals.py",
        'OLD, "read", until=(1, 3))  # fmt: skip\ndef _draft_vocab',
        'OLD, "read", since=(1, 3))  # fmt: skip\ndef _draft_vocab',
        "a rule of old versions holds for new ones", ("test_trtllm.py", "test_versions.py")),
    Mutation(
        "engines/vllm/refusals.py",
        'inputs.text("type") == "float" and chip != "sm90"', 'inputs.text("type") == "float" and chip == "sm90"',
        "INT4 by FP8 is refused on Hopper and let through elsewhere", ("test_vllm.py",)),
    Mutation(
        "engines/sglang/misreadings.py",
        'RULES.row("sglang-residual", "mis-read",', 'RULES.row("sglang-residual", "note",',
        "SGLang's missing norm_before_residual is only a note", ("test_engines.py",)),
    Mutation(
        "engines/sglang/misreadings.py",
        'RULES.row("sglang-norm-output", "mis-read",', 'RULES.row("sglang-norm-output", "refused",',
        "SGLang is said to refuse what it mis-reads", ("test_engines.py",)),
    Mutation(
        "engines/vllm/quantized_modules.py",
        'if entry := named(module.name, declared.config.texts("exclude")):',
        'if entry := inside(module.name, declared.config.texts("exclude")):',
        "vLLM is said to match Quark's exclusions by parts of names",
        ("test_quantized_modules.py", "test_ignore_lists.py")),
    Mutation(
        "engines/quantized_modules.py",
        "if compiled(entry[3:]).match(name):", "if compiled(entry[3:]).search(name):",
        "`re:` is matched anywhere and not from the start", ("test_quantized_modules.py",)),
    Mutation(
        "engines/quantized_modules.py",
        'name.endswith(f".{e}")', "name.endswith(e)",
        "SGLang's suffixes need no dot before them", ("test_quantized_modules.py",)),
    Mutation(
        "engines/sglang/quantized_modules.py",
        'return BuiltModule("stops", "no target matches it")', 'return BuiltModule("plain", "no target matches it")',
        "a linear that no target matches is said to be plain in SGLang",
        ("test_quantized_modules.py", "test_sglang.py")),
    Mutation(
        "engines/trtllm/quantized_modules.py",
        'name = name.rpartition(".")[0]', 'name = ""',
        "TensorRT-LLM's patterns are not tried on what is around a module", ("test_quantized_modules.py",)),
    Mutation(
        "engines/ignore_lists.py",
        r'return rf"re:.*\b{re.escape(tail)}$"', r'return rf"re:\b{re.escape(tail)}$"',
        "exclusions are written that match no runtime name", ("test_ignore_lists.py",)),
    Mutation(
        "engines/ignore_lists.py",
        "(chosen if inside else others).append(module)", "(chosen if not inside else others).append(module)",
        "what is kept and what is quantized are exchanged in lists", ("test_ignore_lists.py",)),
    Mutation(
        "engines/vllm/kernels.py",
        "_MARLIN_GROUPS = (32, 64, 128)", "_MARLIN_GROUPS = (32, 64, 128, 256)",
        "Marlin is said to take groups of 256", ("test_kernels.py",)),
    Mutation(
        "engines/kernels.py",
        "and (self.mla if mla else self.gqa)", "",
        "kernels are said to serve every kind of attention", ("test_kernels.py",)),
    Mutation(
        "engines/kernels.py",
        "and scheme.inputs == self.inputs\n", "\n",
        "a kernel is said to fit whatever activations become", ("test_kernels.py",)),
    Mutation(
        "engines/kernels.py",
        "return None if self.weight_only else self.inputs", "return self.inputs",
        "activations that a kernel ignores are said to be rounded", ("test_arithmetic.py",)),
    Mutation(
        "engines/target_stops.py",
        "if target.model and other.model == target.model and target_stop(spec, other) is None:",
        "if target_stop(spec, other) is None:",
        "another model is named in place of a target that stops an engine", ("test_target_stops.py",)),
    Mutation(
        "engines/shapes.py",
        "return max(rows // tp, facts.attention.head_dim), columns", "return rows // tp, columns",
        "key heads that are copied to several ranks are cut", ("test_shapes.py",)),
    Mutation(
        "engines/shapes.py",
        'BY_INPUT = ("o_proj", "down_proj")', 'BY_INPUT = ("o_proj",)',
        "down_proj is said to be whole on every rank", ("test_shapes.py",)),
    Mutation(
        "engines/quantization_mismatch.py",
        'elif "plain" in stored and codes:', 'elif "plain" in stored and not codes and not stored:',
        "projections that are quantized in part are let through", ("test_quantization_mismatch.py", "test_vllm.py")),
    Mutation(
        "engines/request_output.py",
        "steps[-1] - surplus]", "steps[-1]]",
        "what is accepted beyond the end counts", ("test_request_output.py",)),
    Mutation(
        "engines/request_output.py",
        "length <= total <= length + counts.depth + hidden", "total <= length + counts.depth + hidden",
        "counts that do not make the text are taken", ("test_request_output.py",)),
    Mutation(
        "engines/request_output.py",
        "(counts.steps, counts.accepted) != (steps, accepted)", "counts.steps != steps",
        "a histogram that contradicts the accepted tokens is taken", ("test_request_output.py",)),
    Mutation(
        "engines/vllm/counters.py",
        "if self.born != before.born or self.drafts < before.drafts:", "if self.drafts < before.drafts:",
        "a server that was started again is not noticed", ("test_clients.py",)),
    Mutation(
        "engines/vllm/counters.py",
        "zip((steps, *reached), (*reached, 0), strict=True)", "zip(reached, (*reached[1:], 0), strict=True)",
        "steps that accept nothing are not in the histogram", ("test_clients.py",)),
    Mutation(
        "engines/sglang/client.py",
        "hidden=int(stopped)", "hidden=1",
        "a count too many is always forgiven", ("test_clients.py",)),
    Mutation(
        "engines/sglang/client.py",
        '    "speculative_eagle_topk": 1,\n', "",
        "an SGLang server that drafts trees is asked", ("test_clients.py",)),
    Mutation(
        "engines/trtllm/client.py",
        "if requests != 1:", "if requests < 1:",
        "iterations of several requests are counted as one's", ("test_clients.py",)),
    Mutation(
        "engines/vllm/tracing/states.py",
        "if mine != theirs:", "if mine < 0:",
        "states of another text are taken", ("tracing/test_states.py",)),
    Mutation(
        "engines/vllm/tracing/states.py",
        "if path is None or path.parent != Path(os.path.realpath(storage))", "if path is None",
        "a server may point at any file", ("tracing/test_states.py",)),
    Mutation(
        "engines/vllm/live.py",
        'Switch(r"synthetic_acceptance\\w*"', 'Switch(r"synthetic_rate\\w*"',
        "vLLM's made-up acceptance is not known as such", ("test_live.py",)),
)  # fmt: skip

QUANTIZATION = (
    Mutation(
        "quantization/gptq.py",
        "error_B /= diagonal[position]", "error_B *= diagonal[position]",
        "errors are not divided by what the factor says", ("test_gptq.py",)),
    Mutation(
        "quantization/gptq.py",
        "alpha=-1)\n    value_BI", "alpha=1)\n    value_BI",
        "errors of a block of inputs are added to the inputs beyond it", ("test_gptq.py",)),
    Mutation(
        "quantization/gptq.py",
        "if error < chosen[name].rounding.error:", "if damping:",
        "GPTQ is written where rounding to nearest errs less", ("test_gptq.py",)),
    Mutation(
        "quantization/inverse_factor.py",
        "diagonal_I += share *", "diagonal_I += 2 * share *",
        "a second moment is damped twice", ("test_gptq.py",)),
    Mutation(
        "quantization/second_moments.py",
        "self.rows += len(x_NI)", "self.rows = len(x_NI)",
        "rows per input are those of the last block", ("test_gptq.py",)),
    Mutation(
        "quantization/pack_int32.py",
        "bitwise_xor_(8).sub_(8)", "sub_(8)",
        "words are read as unsigned nibbles", ("test_pack_int32.py",)),
    Mutation(
        "quantization/pack_int32.py",
        '"reorder": ((12, 0x0000FFFF0000FFFF), (-8, 0x00FF00FF00FF00FF), (24, 0x00000000FFFFFFFF)),',
        '"reorder": ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)),',
        "`reorder` is the natural order of nibbles", ("test_pack_int32.py",)),
    Mutation(
        "quantization/pack_bytes.py",
        "(first & 0xF).bitwise_or_(second << 4)", "(second & 0xF).bitwise_or_(first << 4)",
        "two FP4 codes are written in the other order", ("test_pack_bytes.py",)),
    Mutation(
        "quantization/pack_bytes.py",
        "torch.stack((first, wide >> 4), axis + 1)", "torch.stack((wide >> 4, first), axis + 1)",
        "two FP4 codes are read in the other order", ("test_pack_bytes.py",)),
    Mutation(
        "quantization/formats/autoawq.py",
        'pack(weight.quantized.qvalues.T, "reorder")', 'pack(weight.quantized.qvalues.T, "order")',
        "AutoAWQ's words are written in natural order", ("formats/test_gptq_awq.py",)),
    Mutation(
        "quantization/formats/gptq.py",
        "ZERO = 8 - 1", "ZERO = 8",
        "GPTQ's zero points are written and read as those of version 2", ("formats/test_gptq_awq.py",)),
    Mutation(
        "quantization/formats/gptq.py",
        "device=device) // (inputs // groups)", "device=device) % groups",
        "g_idx names scales in turn", ("formats/test_gptq_awq.py",)),
    Mutation(
        "quantization/formats/quark_int4.py",
        'qvalues = pack_int32.unpack(words, "order" if', 'qvalues = pack_int32.unpack(words, "reorder" if',
        "Quark's file-to-file exports are read as their label says", ("formats/test_quark_int4.py",)),
    Mutation(
        "quantization/formats/quark_int4.py",
        "pack_int32.pack(qvalues_OI.T.contiguous(), order)",
        "pack_int32.pack(qvalues_OI.T.contiguous().flip(0), order)",
        "the inputs of Quark's groups are written back to front", ("formats/test_quark_int4.py",)),
    Mutation(
        "quantization/formats/quark_mxfp4.py",
        "if (scale == 255).any():", "if (scale == 256).any():",
        "an MXFP4 scale that is no number is read", ("formats/test_quark_mxfp4.py",)),
    Mutation(
        "quantization/formats/compressed_pack.py",
        "qvalues.contiguous().bitwise_xor(-128).view(torch.int32)", "qvalues.contiguous().view(torch.int32)",
        "INT8 words lack the offset of 128", ("formats/test_compressed_tensors.py",)),
    Mutation(
        "quantization/formats/compressed_pack.py",
        "torch.tensor(qvalues.shape, dtype=torch.int64)", "torch.tensor(codes.T.shape, dtype=torch.int64)",
        "weight_shape has inputs before outputs", ("formats/test_compressed_tensors.py",)),
    Mutation(
        "quantization/formats/modelopt_nvfp4.py",
        "weight.quantized.unit.float().reshape(())", "weight.quantized.unit.reciprocal().reshape(())",
        "NVFP4's scale of scales is stored upside down", ("formats/test_modelopt.py",)),
    Mutation(
        "quantization/scales.py",
        "exponent_OG = torch.frexp(torch.where(ratio_OG > 0, ratio_OG, 1)).exponent - 1",
        "exponent_OG = torch.frexp(torch.where(ratio_OG > 0, ratio_OG, 1)).exponent",
        "MXFP4 scales are rounded up", ("test_rounding.py",)),
    Mutation(
        "quantization/scales.py",
        'whole / (DTYPES["nvfp4"].high * FP8_MAX)', 'whole / DTYPES["nvfp4"].high',
        "NVFP4's scale of scales leaves E4M3 no room", ("test_rounding.py",)),
    Mutation(
        "quantization/scales.py",
        "return torch.where((top_OG > 0) & (scale_OG > 0), scale_OG, 1)", "return scale_OG",
        "rows of zeros get a scale of zero", ("test_rounding.py",)),
    Mutation(
        "quantization/scales.py",
        "torch.where(now_OG < error_OG, stored_OG", "torch.where(now_OG > error_OG, stored_OG",
        "mse keeps the scale that errs most", ("test_rounding.py",)),
    Mutation(
        "quantization/scales.py",
        "torch.mul(wide_OGg, step_OG1.reciprocal(), out=out_OGg)", "torch.div(wide_OGg, step_OG1, out=out_OGg)",
        "a rule that multiplies by the reciprocal divides", ("test_rounding.py", "test_vectors.py")),
    Mutation(
        "quantization/scales.py",
        "(clipped_OG * 0.9999 > error_OG).all()", "(clipped_OG * 0.9999 > error_OG).any()",
        "a scale is passed over that some groups would take", ("test_rounding.py",)),
    Mutation(
        "quantization/binned_search.py",
        "(rounded_TOK > -level_K)", "(rounded_TOK >= -level_K)",
        "weights half way between two quantized values all go to the smaller one", ("test_binned_search.py",)),
    Mutation(
        "quantization/binned_search.py",
        "(second_O - least_O > TOLERANCE * least_O)", "(second_O >= least_O)",
        "counts decide between scales that err alike",
        ("test_binned_search.py",)),
    Mutation(
        "quantization/binned_search.py",
        "certain_O &= (refined_O == other_O) & now.seen_TO[0] & told_O", "certain_O &= now.seen_TO[0] & told_O",
        "a refined scale on the edge between two BF16 numbers is taken as counted", ("test_binned_search.py",)),
    Mutation(
        "quantization/rounding.py",
        "torch.unflatten(rows_BI.float(), 1, (-1, group))",
        "torch.unflatten(rows_BI.float(), 1, (group, -1)).transpose(1, 2)",
        "a scale covers inputs that are not neighbours", ("test_rounding.py",)),
    Mutation(
        "quantization/rounding.py",
        'return peak.float() / (FP8_MAX * DTYPES["nvfp4"].high)', "return peak.float() / FP8_MAX",
        "NVFP4's input_scale is that of FP8", ("test_rounding.py",)),
    Mutation(
        "quantization/rounding.py",
        "scale = (top / FP8_MAX).clamp_min", "scale = (top / 240).clamp_min",
        "activations are scaled to the E4M3 of AMD", ("test_rounding.py",)),
    Mutation(
        "quantization/quantized_values.py",
        "return x.round_().clamp_(", "return x.trunc_().clamp_(",
        "integers are cut off and not rounded", ("test_rounding.py",)),
    Mutation(
        "quantization/quantized_values.py",
        "torch.where(magnitude < 4, 1.0, 2.0)", "torch.where(magnitude < 6, 1.0, 2.0)",
        "FP4 has a 5", ("test_rounding.py",)),
    Mutation(
        "quantization/exclusions.py",
        '(".q_a_proj.weight", ".kv_a_proj_with_mqa.weight")', '(".q_a_proj.weight",)',
        "a_projections names one of the two", ("test_exclusions.py",)),
    Mutation(
        "quantization/exclusions.py",
        "    _check_fused(recipe, selection)\n", "",
        "a recipe may tear joined weights apart", ("test_exclusions.py",)),
    Mutation(
        "quantization/exclusions.py",
        ".weights.dtype].bits == 4:", ".weights.dtype].bits == 2:",
        "a head is rounded to the nearest of 4 bits", ("test_exclusions.py",)),
    Mutation(
        "quantization/exclusions.py",
        "_first_entry(recipe.roles, name, tensor.role) or MAIN,", "MAIN,",
        "no weight has the scheme of its role", ("test_exclusions.py",)),
    Mutation(
        "quantization/simulate.py",
        "for other in together]).amax()", "for other in together]).amin()",
        "joined weights share the smallest scale", ("test_simulate.py",)),
    Mutation(
        "quantization/compare_weights.py",
        "SLACK = 2.0**-20", "SLACK = 2.0**0",
        "a code may be the nearest but one", ("test_compare_weights.py",)),
)  # fmt: skip

REFERENCE = (
    Mutation(
        "reference/attention.py",
        "hidden_BTS = row_S > row_BT1\n", "hidden_BTS = row_S >= row_BT1\n",
        "a row does not see itself", ("test_drafter.py",)),
    Mutation(
        "reference/attention.py",
        "(row_S <= row_BT1 + span.step - window)", "(row_S < row_BT1 + span.step - window)",
        "a sliding window is one row wider", ("test_drafter.py",)),
    Mutation(
        "reference/cache.py",
        "return self.row_BT + self.step", "return self.row_BT",
        "drafted tokens stand at the position of their root", ("test_drafter.py",)),
    Mutation(
        "reference/cache.py",
        "self.chains.clear()\n        else:", "pass\n        else:",
        "chains of an earlier step are still seen", ("test_drafter.py",)),
    Mutation(
        "reference/drafter.py",
        "residual_BTH = m_BTH if self.norm_before_residual else state_BTH",
        "residual_BTH = state_BTH if self.norm_before_residual else m_BTH",
        "norm_before_residual is read as the opposite", ("test_drafter.py",)),
    Mutation(
        "reference/drafter.py",
        "torch.cat((e_BTH, m_BTH), dim=-1)", "torch.cat((m_BTH, e_BTH), dim=-1)",
        "attention reads state and embedding in the other order", ("test_drafter.py",)),
    Mutation(
        "reference/drafter.py",
        'if self.facts.feedback == "post-norm":', 'if self.facts.feedback == "pre-norm":',
        "the other state is fed back", ("test_drafter.py",)),
    Mutation(
        "reference/drafter.py",
        "return draft_ids + self.d2t[draft_ids] if self.facts.reduced_vocab else draft_ids", "return draft_ids",
        "d2t is ignored", ("test_drafter.py",)),
    Mutation(
        "reference/drafter.py",
        "self.double_norm = as_trained and facts.double_norm", "self.double_norm = facts.double_norm",
        "the state is normalised twice, as no engine does", ("test_drafter.py", "test_load.py")),
    Mutation(
        "reference/drafter.py",
        "joined = self.input_norm(joined)", "pass",
        "norm_before_fc is left out", ("test_drafter.py",)),
    Mutation(
        "reference/load.py",
        "return ids - torch.arange(len(ids))", "return ids",
        "target ids are loaded where offsets belong", ("test_load.py",)),
    Mutation(
        "reference/accept_length.py",
        "return 1 + self.accepted / self._some_steps()", "return self.accepted / self._some_steps()",
        "accept length leaves the bonus token out", ("test_accept_length.py",)),
    Mutation(
        "reference/accept_length.py",
        "return sum(self.histogram[j:]) / self._some_steps()",
        "return sum(self.histogram[j + 1 :]) / self._some_steps()",
        "p_j is that of more than j tokens", ("test_accept_length.py",)),
    Mutation(
        "reference/rope.py",
        '_number(rope, "mscale_all_dim", 0)) ** 2', '_number(rope, "mscale_all_dim", 0))',
        "MLA's softmax factor under YaRN is not squared", ("test_rope.py",)),
    Mutation(
        "reference/rope.py",
        'return _geometric(rope.theta, dim) / _number(rope, "factor")',
        'return _geometric(rope.theta, dim) * _number(rope, "factor")',
        "linear rope stretches the wrong way", ("test_rope.py",)),
    Mutation(
        "reference/rope.py",
        "a, b = x_BTND[..., 0::2], x_BTND[..., 1::2]", "b, a = x_BTND[..., 0::2], x_BTND[..., 1::2]",
        "interleaved pairs turn backwards", ("test_rope.py",)),
    Mutation(
        "reference/accept_length.py",
        "root += accepted[root] + 1", "root += max(1, accepted[root])",
        "the bonus token is left out of a walk", ("test_accept_length.py",)),
)  # fmt: skip

REPLAY = (
    Mutation(
        "replay/settings.py",
        "    if depth > kept + 1:", "    if depth > kept + 2:",
        "a trace that keeps too few tokens is replayed", ("test_baseline.py",)),
    Mutation(
        "replay/accept.py",
        "request.prompt + 1, roots(request)", "request.prompt, roots(request)",
        "what a map lacks is counted from one token too early", ("test_accept.py",)),
    Mutation(
        "replay/baseline.py",
        "if baseline.about.trace != trace:", "if False:",
        "a baseline of another trace is taken", ("test_baseline.py",)),
    Mutation(
        "replay/batches.py",
        "return max(0, request.counted - 1)", "return max(0, request.counted - 2)",
        "the last step of a text is left out", ("test_replay.py",)),
    Mutation(
        "replay/batches.py",
        "beyond < depth - 1", "beyond < depth - 2",
        "clipped steps are counted", ("test_replay.py",)),
    Mutation(
        "replay/replay.py",
        "= k + 1\n", "= k\n",
        "a chain counts one token less", ("test_replay.py",)),
    Mutation(
        "replay/batches.py",
        "return [boundaries.index(b) for b in wanted]", "return [*range(len(wanted))]",
        "a drafter is fed the trace's first boundaries", ("test_replay.py",)),
    Mutation(
        "replay/replay.py",
        "token_BTK[..., k], self.cache, k)", "token_BTK[..., 0], self.cache, k)",
        "every step of a chain is fed the first token", ("test_replay.py",)),
    Mutation(
        "replay/misreadings.py",
        "tuple(boundary + by for boundary in of.arm.boundaries)",
        "tuple(boundary + abs(by) for boundary in of.arm.boundaries)",
        "two controls shift boundaries the same way", ("test_controls.py", "test_misreadings.py")),
    Mutation(
        "replay/controls.py",
        "scale=weight.scale * 2", "scale=weight.scale * 1",
        "a control doubles nothing", ("test_controls.py",)),
    Mutation(
        "replay/controls.py",
        'unpack(pack(qvalues, "order"), "reorder")', 'unpack(pack(qvalues, "order"), "order")',
        "a control permutes nothing", ("test_controls.py",)),
    Mutation(
        "replay/tally.py",
        "lost=int((right_r & ~right_c).sum()),", "lost=int((right_c & ~right_r).sum()),",
        "gains are called losses", ("test_tally.py",)),
    Mutation(
        "replay/tally.py",
        "at = request.prompt + 1 + root", "at = request.prompt + root",
        "a loss is shown one token too early", ("test_tally.py",)),
    Mutation(
        "replay/tally.py",
        "request.tokens_N[: request.prompt + request.counted].tolist()", "request.tokens_N.tolist()",
        "records hash what lies beyond the text", ("test_tally.py",)),
    Mutation(
        "replay/tally.py",
        "accepted_2R[:, :, None] > torch.arange(self.depth)", "accepted_2R[:, :, None] >= torch.arange(self.depth)",
        "acceptance by depth is that of one token less", ("test_tally.py",)),
    Mutation(
        "replay/target_tables.py",
        "if facts.hidden == facts.target_hidden else missing", "if facts.hidden else missing",
        "the target's tables are put into a drafter of another width", ("test_load_arm.py",)),
    Mutation(
        "replay/load_arm.py",
        'if not alike or ("d2t" in mine', 'if not alike and ("d2t" in mine',
        "drafters of other vocabularies are taken apart tensor by tensor", ("test_load_arm.py",)),
    Mutation(
        "replay/calibration.py",
        "x_BI.abs().amax(0).float().cpu())", "x_BI.amax(0).float().cpu())",
        "negative activations do not count for a scale", ("test_calibration.py",)),
    Mutation(
        "replay/lm_head.py",
        "better_R = (value_R > self.value_R)", "better_R = (value_R >= self.value_R)",
        "of equal logits the last is drafted, not the first", ("test_replay.py",)),
)  # fmt: skip

REPORT = (
    Mutation(
        "report/verdict.py",
        '"inconclusive": 3,', '"inconclusive": 0,',
        "inconclusive ends as a pass", ("test_verdict.py",)),
    Mutation(
        "report/verdict.py",
        "elif low > 1 - margin:", "elif high > 1 - margin:",
        "what may be as bad as the margin passes", ("test_verdict.py",)),
    Mutation(
        "report/verdict.py",
        "elif high < 1 - margin:", "elif low < 1 - margin:",
        "what may be within the margin fails", ("test_verdict.py",)),
    Mutation(
        "report/verdict.py",
        '"equivalent" if high < 1 + margin', '"equivalent" if high > 1 + margin',
        "equivalent and pass are exchanged", ("test_verdict.py",)),
    Mutation(
        "report/verdict.py",
        "if result.clusters < FEWEST_CLUSTERS:", "if result.clusters <= FEWEST_CLUSTERS:",
        "thirty prompts are too few", ("test_verdict.py",)),
    Mutation(
        "report/verdict.py",
        "return min(CATEGORY_FLOOR, 1 - margin)", "return max(CATEGORY_FLOOR, 1 - margin)",
        "a wide margin fails by a category", ("test_verdict.py",)),
    Mutation(
        "report/verdict.py",
        "if part.interval.high < floor]", "if part.interval.low < floor]",
        "a category of few prompts fails a run", ("test_verdict.py",)),
    Mutation(
        "report/verdict.py",
        "if errors > MOST_ERRORS * requests:", "if errors > 2 * MOST_ERRORS * requests:",
        "a tenth of the requests may fail", ("test_verdict.py",)),
    Mutation(
        "report/verdict.py",
        ".reached(1)) < LEAST_FIRST", ".reached(0)) < LEAST_FIRST",
        "a reference that is wired wrongly is compared with", ("test_verdict.py",)),
    Mutation(
        "report/verdict.py",
        "sum(not pair.equal for pair in aa)", "sum(not pair.counted for pair in aa)",
        "a reference that differs from itself is compared with", ("test_verdict.py",)),
    Mutation(
        "report/verdict.py",
        "more = None if extended else more_prompts(result, margin)", "more = more_prompts(result, margin)",
        "a sample may be extended again and again", ("test_verdict.py",)),
    Mutation(
        "report/statistics.py",
        "            plus=1.0,\n", "            plus=0.0,\n",
        "accept length leaves the bonus token out", ("test_statistics.py",)),
    Mutation(
        "report/acceptance/records.py",
        "[min(count, depth) for count in self.accepted]", "[min(count, depth + 1) for count in self.accepted]",
        "a smaller K accepts what it did not draft", ("acceptance/test_records.py",)),
    Mutation(
        "report/acceptance/records.py",
        "return self.prompt + 1 + root", "return self.prompt + root",
        "the target's first token is left out of the context", ("acceptance/test_records.py",)),
    Mutation(
        "report/acceptance/measure.py",
        "draws_BX[:, first : first + width]", "draws_BX[:, :width]",
        "every slice has the resamples of the first", ("acceptance/test_measure.py",)),
    Mutation(
        "report/acceptance/model.py",
        "if low > min_al:", "if whole.length.value > min_al:",
        "the gate looks at the figure in place of its interval", ("acceptance/test_model.py",)),
    Mutation(
        "report/acceptance/model.py",
        "lost[token_ended] += depth - accepted", "lost[token_ended] += 1",
        "a token that a map lacks costs one, however early it comes", ("acceptance/test_model.py",)),
    Mutation(
        "report/acceptance/write.py",
        "if rows != requests[names[0]]:", "if len(rows) != len(requests[names[0]]):",
        "drafters of a baseline may have other requests", ("acceptance/test_write.py",)),
    Mutation(
        "report/intervals.py",
        "Interval(min(low, value - half), max(high, value + half))",
        "Interval(max(low, value - half), min(high, value + half))",
        "the narrower of two intervals is taken", ("test_statistics.py",)),
    Mutation(
        "report/statistics.py",
        "candidate.value - reference.value,", "reference.value - candidate.value,",
        "a gain of a depth is called a loss", ("test_statistics.py",)),
    Mutation(
        "report/certification.py",
        "alpha / candidates) * RESAMPLES", "alpha / 1) * RESAMPLES",
        "several candidates are each judged as if they were the only one", ("test_certification.py",)),
    Mutation(
        "report/certification.py",
        "self.clusters >= FEWEST_CLUSTERS and self.low > 1 - self.max_loss", "self.low > 1 - self.max_loss",
        "a handful of prompts certifies a drafter", ("test_certification.py",)),
    Mutation(
        "search/path.py",
        "return (now.bytes - choice.bytes) / max(choice.loss - now.loss, LEAST_LOSS)",
        "return now.bytes - choice.bytes",
        "a search goes on by bytes alone", ("test_path.py",)),
    Mutation(
        "search/choices.py",
        "yield from (role for role in (HEAD, FC) if role not in chosen)", "yield from ()",
        "a search quantizes the head where only the layers were chosen", ("test_choices.py",)),
    Mutation(
        "search/heads.py",
        "most = (rows // 2).bit_length() - 1", "most = rows.bit_length() - 1",
        "a head is pruned to as many rows as it has", ("test_heads.py",)),
    Mutation(
        "search/again.py",
        '("draftconv", name, self.pruned, AGAIN,', '("draftconv", name, self.source, AGAIN,',
        "the last command makes the whole drafter again and not the pruned one", ("test_again.py",)),
    Mutation(
        "live/step_times.py",
        'own if cost.evidence == "estimate" else cost.shrunk(share)', "cost",
        "a smaller drafter is as slow as the whole one", ("test_step_times.py",)),
    Mutation(
        "report/resampling.py",
        "np.minimum(low, ratio / factor)", "np.maximum(low, ratio / factor)",
        "the gate looks at the higher of two lower ends", ("test_statistics.py",)),
    Mutation(
        "report/resampling.py",
        "return length[1] / length[0],", "return length[0] / length[1],",
        "the ratio is that of reference to candidate", ("test_statistics.py",)),
    Mutation(
        "report/resampling.py",
        "reach(psi_C, outside)", "reach(psi_C, 2 * outside)",
        "the delta interval is one of 90 %", ("test_statistics.py", "test_student.py")),
    Mutation(
        "report/resampling.py",
        "last = RESAMPLES - 1 - first", "last = RESAMPLES - 1 - 2 * first",
        "the bootstrap's upper end leaves 5 % above it", ("test_statistics.py",)),
    Mutation(
        "report/records.py",
        "(record.depth, record.steps, record.accepted) != (counts.depth, counts.steps, counts.accepted)",
        "(record.depth, record.steps) != (counts.depth, counts.steps)",
        "a record whose accepted tokens were edited is read", ("test_records.py",)),
    Mutation(
        "report/records.py",
        "        if record.id in arm:\n", "        if record.id in arms:\n",
        "a request that stands twice counts twice", ("test_records.py",)),
    Mutation(
        "report/merge_extension.py",
        "if (was := earlier.arm(name)).content != now.content:",
        "if (was := earlier.arm(name)).name != now.name:",
        "another drafter under the name of the first extends its report", ("test_extension.py",)),
    Mutation(
        "report/junit.py",
        '    "inconclusive": "error",', '    "inconclusive": "passed",',
        "inconclusive looks green in CI", ("test_report_pages.py",)),
    Mutation(
        "report/model.py",
        '= ("void", "fail", "inconclusive"', '= ("fail", "void", "inconclusive"',
        "a failure hides that the measurement is void", ("test_model.py",)),
    Mutation(
        "report/model.py",
        'outcomes |= {"fail" for control', 'outcomes |= {"pass" for control',
        "a report passes though a broken drafter was not noticed", ("test_model.py",)),
)  # fmt: skip

TRACES = (
    Mutation(
        "traces/engine_target.py",
        "ends = (i + 1 for i, token", "ends = (i for i, token",
        "the end of a text is not counted", ("test_engine_target.py",)),
    Mutation(
        "traces/engine_target.py",
        "extracted.states_TAW[: len(tokens) - 1]", "extracted.states_TAW[1 : len(tokens)]",
        "states are those of the token after", ("test_engine_target.py",)),
    Mutation(
        "traces/trace.py",
        "if token_hash(tokens) != entry.tokens:", "if not tokens:",
        "tokens that were edited are replayed", ("test_trace.py",)),
    Mutation(
        "traces/trace.py",
        "if found != entry.states:", "if not found:",
        "states that were edited are replayed", ("test_trace.py",)),
    Mutation(
        "traces/trace.py",
        "        return [stored.index(b) for b in boundaries]", "        return [*range(len(boundaries))]",
        "the first columns are taken for the ones asked for", ("test_trace.py",)),
    Mutation(
        "traces/trace.py",
        "if tensor_hash(ref) != table.sha256:", "if not table.sha256:",
        "a table of another target is lent", ("test_trace.py",)),
    Mutation(
        "traces/trace.py",
        'if not is_plain_name(file) or not file.endswith(".safetensors"):', 'if not file.endswith(".safetensors"):',
        "a trace may name files in other directories", ("test_trace.py",)),
    Mutation(
        "traces/trace.py",
        "if not 0 < prompt < rows + 1 - about.depth:", "if not 0 < prompt <= rows + 1:",
        "a request without a counted token is read", ("test_trace.py",)),
    Mutation(
        "traces/writer.py",
        "elif not all(bool(block_TAW.isfinite().all())", "elif not any(bool(block_TAW.isfinite().all())",
        "states that are not numbers are kept", ("test_writer.py",)),
    Mutation(
        "traces/writer.py",
        'if file.metadata.get("id") != self.slots[index].id:', "if not self.slots[index].id:",
        "a stopped run goes on with another's request", ("test_writer.py",)),
    Mutation(
        "traces/writer.py",
        "                os.fsync(file.fileno())\n", "",
        "a request is not made durable before it is renamed", ("test_writer.py",)),
    Mutation(
        "traces/chat_template.py",
        "return answer[:-1] if answer and answer[-1] in self.eos else answer", "return answer",
        "the token that ends an answer is quoted in the next turn", ("test_chat_template.py",)),
    Mutation(
        "traces/transformers_target.py",
        "- 1).clamp(min=0)[:, start:]", "- 1).clamp(min=0)[:, : token_BT.shape[1]]",
        "a token that was generated stands at the first position", ("test_transformers_target.py",)),
    Mutation(
        "traces/transformers_target.py",
        "into.update({b + 1: state for b, state in last.items()})",
        "into.update({b + 1: state * 1.5 for b, state in last.items()})",
        "boundary L is not what the last layer returns", ("test_transformers_target.py",)),
    Mutation(
        "traces/conversations.py",
        "tokens[captured.prompt : captured.prompt + captured.counted]", "tokens[captured.prompt :]",
        "what lies beyond an answer is quoted in the next turn", ("test_conversations.py",)),
    Mutation(
        "traces/token_counts.py",
        "if at == HELD_AT:", "if at > HELD_OUT:",
        "no text is held out", ("test_token_counts.py",)),
    Mutation(
        "traces/written_texts.py",
        "if _role(message) in ASSISTANT:", "if _role(message):",
        "what the target is asked is counted as what it writes", ("test_written_texts.py",)),
    Mutation(
        "traces/suites.py",
        "if all(_column(suite, row, name) == value for", "if not any(_column(suite, row, name) == value for",
        "a suite asks the rows that it leaves out", ("test_suites.py",)),
)  # fmt: skip

LIVE = (
    Mutation(
        "live/forced_acceptance.py",
        "forced = len(used) == 1 or (", "forced = len(used) == 0 or (",
        "acceptance that is made up is measured",
        ("test_capabilities.py", "test_launch.py", "test_requests.py", "test_real.py")),
    Mutation(
        "live/forced_acceptance.py",
        "2 * parted > len(splits)", "parted > len(splits)",
        "arms that write other texts are compared", ("test_launch.py",)),
    Mutation(
        "live/forced_acceptance.py",
        "float(value) > 0", "float(value) > 1",
        "a switch that is set to one is not noticed", ("test_serve_arms.py",)),
    Mutation(
        "live/run_directory.py",
        "if prompt != token_hash(ask.tokens):", "if not prompt:",
        "an answer to another prompt is taken", ("test_requests.py",)),
    Mutation(
        "live/run_directory.py",
        "            os.truncate(path, whole)\n", "            pass\n",
        "an answer is written behind one that was cut short", ("test_requests.py",)),
    Mutation(
        "live/run_directory.py",
        "if begun.get(key) != document.get(key):", "if begun.get(key) is None:",
        "a run goes on with other options", ("test_requests.py",)),
    Mutation(
        "live/requests.py",
        "return int(MOST_ERRORS * requests)", "return int(MOST_ERRORS * requests) + 1",
        "one failure more is survived than the verdict allows", ("test_requests.py",)),
    Mutation(
        "live/requests.py",
        "if len(failures) > allowed:", "if len(failures) >= allowed > 0:",
        "a run is void one failure too early", ("test_requests.py",)),
    Mutation(
        "live/requests.py",
        "for _ in range(patience.attempts - 1):", "for _ in range(patience.attempts):",
        "a request is sent once more than it should be", ("test_requests.py",)),
    Mutation(
        "live/arms.py",
        'gate(kind, margin, "live") if number', 'gate(kind, margin, "replay") if number',
        "a live conversion is asked for equal counts", ("test_serve_arms.py",)),
    Mutation(
        "live/machine.py",
        "return SLICE not in name_words and not name_words.isdisjoint", "return not name_words.isdisjoint",
        "a slice of a GPU is taken for a whole one", ("test_machine.py",)),
    Mutation(
        "live/machine.py",
        "if len(machine.devices) < count:", "if not machine.devices:",
        "a machine with too few devices is taken", ("test_machine.py",)),
    Mutation(
        "live/machine.py",
        "devices = tuple(devices[number] for number in shown)", "devices = devices[: len(shown)]",
        "hidden devices are taken for the first ones", ("test_machine.py",)),
    Mutation(
        "live/servers.py",
        "{**environment, **os.environ})", "environment)",
        "a switch in our own environment reaches the server", ("test_serve_arms.py",)),
    Mutation(
        "live/serve_arms.py",
        "if _base_name(served.drafter) != _base_name(arm.source) and _base_name(served.drafter) in theirs:",
        "if not served:",
        "a server with another arm's drafter is asked", ("test_serve_arms.py",)),
    Mutation(
        "live/serve_arms.py",
        "if its != ours:", "if not its:",
        "arms on different versions of an engine are compared", ("test_serve_arms.py",)),
)  # fmt: skip

CONVERSION = (
    Mutation(
        "conversion/passes/__init__.py",
        '    Pass("rope", rope.run),\n    Pass("limits", limits.run),',
        '    Pass("limits", limits.run),\n    Pass("rope", rope.run),',
        "what a layout cannot express is refused before it is mended", ("passes/test_order.py",)),
    Mutation(
        "conversion/passes/__init__.py",
        '    Pass("biases", biases.run),\n    Pass("dtype", dtype.run),',
        '    Pass("dtype", dtype.run),\n    Pass("biases", biases.run),',
        "biases are added after the cast", ("passes/test_order.py",)),
    Mutation(
        "conversion/passes/prune.py",
        "rows = tuple(row_of[token] for token in ids)", "rows = tuple(range(len(ids)))",
        "a pruned head keeps its first rows", ("passes/test_prune.py",)),
    Mutation(
        "conversion/pruning/choice.py",
        "np.argsort(-score_V[free],", "np.argsort(score_V[free],",
        "the least written tokens stay", ("pruning/test_choice.py",)),
    Mutation(
        "conversion/pruning/choice.py",
        "* kind.counts_V / kind.counts_V.sum()", "* kind.counts_V",
        "a weight is of tokens and not of a kind of text", ("pruning/test_choice.py",)),
    Mutation(
        "conversion/pruning/coverage.py",
        "1 - missing_share(d.held_V, kept))", "1 - missing_share(d.choosing_V, kept))",
        "coverage is told of the text that chose", ("pruning/test_coverage.py",)),
    Mutation(
        "conversion/passes/limits.py",
        "if limit.holds(work.facts):", "if not limit:",
        "a layout writes what its reader does not know", ("passes",)),
    Mutation(
        "conversion/passes/dtype.py",
        "if tensor.dtype in FLOATS and tensor.dtype != dtype:", "if tensor.dtype != dtype:",
        "integers are cast with the floats", ("passes/test_dtype.py",)),
    Mutation(
        "conversion/passes/positions.py",
        "have < target.max_positions", "have > target.max_positions",
        "a context is lowered to the target's, not raised", ("passes/test_positions.py",)),
    Mutation(
        "conversion/passes/biases.py",
        "or not attention.qkv_bias", "or attention.qkv_bias",
        "a bias of o_proj is left as garbage", ("passes",)),
    Mutation(
        "conversion/passes/vocabulary.py",
        "inverse = tuple(sorted(rows, key=recorded.__getitem__))", "inverse = tuple(recorded)",
        "a permutation of lm_head is made twice and not undone", ("passes/test_vocabulary.py",)),
    Mutation(
        "conversion/passes/vocabulary.py",
        'elif spelling.order == "ascending" and mapped.order == "unordered":',
        'elif spelling.order == "ascending" and mapped.order == "full":',
        "a reader that needs ascending ids gets others", ("passes/test_vocabulary.py",)),
    Mutation(
        "conversion/passes/embedding.py",
        "elif difference := table_difference(mine, target_table(target, EMBED_NAMES)):", "elif difference := None:",
        "an embedding of its own is dropped", ("passes/test_embedding.py",)),
    Mutation(
        "conversion/passes/embedding.py",
        'kind: Literal["added", "replaced"] = "replaced" if work.facts.own_embedding else "added"',
        'kind: Literal["added", "replaced"] = "added"',
        "an embedding that was replaced is recorded as added", ("passes/test_embedding.py",)),
    Mutation(
        "conversion/passes/repair.py",
        "if mask is not None and mask.read() != mapped.t2d():", "if mask is None:",
        "d2t is mended against its t2d", ("passes/test_repair.py",)),
    Mutation(
        "conversion/passes/repair.py",
        "np.sqrt(np.mean(outer**2))", "np.mean(np.abs(outer))",
        "two norms are folded by another mean", ("passes/test_repair.py",)),
    Mutation(
        "conversion/passes/repair.py",
        "largest > EXACT.get(stored.dtype, largest) and (mask is None or",
        "largest > EXACT.get(stored.dtype, largest) and (mask is not None and",
        "offsets that may have been rounded are taken for whole", ("passes/test_repair.py",)),
    Mutation(
        "conversion/readers.py",
        "for count in range(len(engines), 0, -1):", "for count in range(1, len(engines) + 1):",
        "an output is for one engine where several could share it", ("test_readers.py",)),
    Mutation(
        "conversion/readers.py",
        "refusals[kept | {e.name}]) for e in engines if", "refusals[everyone]) for e in engines if",
        "an engine is left out for another one's reason", ("test_readers.py",)),
    Mutation(
        "conversion/readers.py",
        "    yield layout(PORTABLE)\n", "",
        "what every engine reads is not what portable writes", ("test_readers.py",)),
    Mutation(
        "conversion/plan.py",
        "            refuse_unread_form(making, spec, facts)\n", "            pass\n",
        "portable packs what one engine has no kernel for", ("test_readers.py",)),
    Mutation(
        "conversion/plan.py",
        "plan_for(engines, unread, [])", "plan_for(engines, (), [])",
        "nobody is named for a form that no engine reads", ("test_readers.py",)),
    Mutation(
        "conversion/repack_plan.py",
        "    if all(scales_fit(stored.outline(module))", "    if any(scales_fit(stored.outline(module))",
        "scales that do not fit are rounded without a word", ("passes/test_repack.py",)),
    Mutation(
        "conversion/weight_plan.py",
        "engines = [ENGINES[name] for name in serves]", "engines = [*ENGINES.values()][:1]",
        "the cure names a format of another engine", ("passes/test_repack.py",)),
    Mutation(
        "conversion/repack_plan.py",
        "if inputs not in fmt.inputs and not lossy:", "if not fmt.inputs and not lossy:",
        "activations are left in 16 bits without a word", ("passes/test_repack.py",)),
    Mutation(
        "conversion/provenance.py",
        "_canonical_json([rows, config, rest])", "_canonical_json([rows, rest])",
        "a record is believed after config.json was edited", ("test_provenance.py",)),
    Mutation(
        "conversion/provenance.py",
        "composed = order if composed is None else tuple(order[row] for row in composed)",
        "composed = order if composed is None else tuple(composed[row] for row in order)",
        "permutations of two conversions are put together the wrong way", ("test_provenance.py",)),
    Mutation(
        "conversion/planned_output.py",
        'for key, item in value.items() if key != "auto_map"', "for key, item in value.items()",
        "code of a stranger comes back with a recorded config", ("test_planned_output.py",)),
    Mutation(
        "conversion/record.py",
        'f"{code}={Path(path).name}" if path else code', 'f"{code}={path}" if path else code',
        "a record tells where it was made", ("passes/test_repair.py",)),
)  # fmt: skip

VERIFICATION = (
    Mutation(
        "verification/result.py",
        "return (*self.tensors, *self.facts, *self.directory)", "return (*self.facts, *self.directory)",
        "a tensor that differs passes", ("test_verify.py",)),
    Mutation(
        "verification/result.py",
        'return self.result == "pass"', 'return self.result != "fail"',
        "what only a record claims passes", ("test_verify.py", "test_forged.py")),
    Mutation(
        "verification/tensors.py",
        "for theirs in output_blocks(expected):", "for theirs in list(output_blocks(expected))[:0]:",
        "no byte of a tensor is compared", ("test_verify.py",)),
    Mutation(
        "verification/tensors.py",
        "if mine.dtype != wanted.dtype:", "if mine.dtype not in FLOATS:",
        "a cast that nobody asked for passes", ("test_verify.py", "test_forged.py")),
    Mutation(
        "verification/claims.py",
        "return expected is not None and tensor_hash(ref) != expected", "return False",
        "what is only claimed is not held to its hash", ("test_verify.py", "test_forged.py")),
    Mutation(
        "verification/claims.py",
        "if said is None or name not in CHANGEABLE_FACTS or (self.fault is None and not open_value):",
        "if said is None:",
        "any fact that a record declares is a claim and no difference", ("test_forged.py",)),
    Mutation(
        "verification/quantized.py",
        "return _unequal(mine, self._wanted(module)) if self._is_remade(module) else []", "return []",
        "quantized weights are not made again", ("test_forged.py", "test_verify_quantized.py")),
    Mutation(
        "verification/stated_quantization.py",
        "if ours_said != wanted:", "if ours_said is None:",
        "what config.json says of quantized weights is believed", ("test_forged.py",)),
    Mutation(
        "verification/recorded_steps.py",
        "max_positions=evidence.max_positions,", 'max_positions=asked.size("max_positions"),',
        "a number is taken from the record", ("test_forged.py",)),
    Mutation(
        "verification/recorded_steps.py",
        "force=evidence.force,", "force=True,",
        "embed_tokens may be missing by the record's word", ("test_forged.py", "test_verify.py")),
    Mutation(
        "verification/directory.py",
        '    "mis-read": "different",', '    "mis-read": "declared",',
        "an output that an engine mis-reads passes", ("test_verify.py",)),
    Mutation(
        "verification/directory.py",
        "served = [named.get(spec.name, spec) for spec in map(parse_engine, writer.serves if writer else ())]",
        "served = list(named.values())",
        "a record without engines keeps them from being asked", ("test_forged.py",)),
    Mutation(
        "verification/vocabulary.py",
        "    return tuple(row_of[target] for target in ours.ids)",
        "    return tuple(row_of[target] for target in theirs.ids)",
        "rows of lm_head are compared in their own order", ("test_verify.py",)),
    Mutation(
        "verification/vocabulary.py",
        "elif ours is None or theirs is None or sorted(ours.ids) != sorted(theirs.ids):",
        "elif ours is None or theirs is None:",
        "a map to other tokens passes", ("test_verify.py",)),
)  # fmt: skip

ATTESTATION = (
    Mutation(
        "attestation/statement.py",
        "for artifact in map(Path, artifacts):", "for artifact in map(Path, artifacts[:0]):",
        "a statement is written into what it is about", ("test_statements.py",)),
    Mutation(
        "attestation/verification.py",
        '    "claimed": "failedTests",', '    "claimed": "passedTests",',
        "what is only claimed is stated as passed", ("test_statements.py",)),
    Mutation(
        "checkpoint/staging.py",
        "os.link(temporary, path)  # unlike a rename, it replaces nothing", "os.replace(temporary, path)",
        "a file that exists is replaced by a statement", ("test_staging.py",)),
)  # fmt: skip

API = (
    Mutation(
        "api/push.py",
        "or (directory / name).is_symlink()", "or False",
        "what a link in the output leads to is uploaded", ("test_push.py",)),
    Mutation(
        "api/push.py",
        "if not head.private and not options.public:", "if head.private and not options.public:",
        "a public repository is pushed to without a word", ("test_push.py",)),
    Mutation(
        "api/push.py",
        "if report.arm(found.candidate).content == ours]", "]",
        "a card tells the accept length of another drafter", ("test_push.py",)),
    Mutation(
        "api/push.py",
        "if head.files.get(FILE) != _blob_id(path) else", "if False else",
        "the report of what stood there stays beside other weights", ("test_push.py",)),
    Mutation(
        "api/push.py",
        "or head.files.get(FILE) == _blob_id(path):", "or FILE in head.files:",
        "what another directory wrote is replaced", ("test_push.py",)),
    Mutation(
        "api/diff.py",
        "elif left.read() != right.read():", "elif not left.dtype:",
        "integers that differ are not told", ("test_diff.py",)),
    Mutation(
        "api/inspect.py",
        "unread = self.misdeclared or self.drafter.readings", "unread = self.misdeclared",
        "a drafter that can be read in several ways passes", ("test_results.py",)),
    Mutation(
        "api/parity.py",
        "reference, candidates, options, recorded_engines,", "reference, candidates, options, lambda _: None,",
        "what an output was written for decides no replay", ("test_parity_as.py",)),
    Mutation(
        "api/parity.py",
        "caught=not all(pair.equal for pair in pairs),", "caught=any(pair.equal for pair in pairs),",
        "a control that nobody notices is called caught", ("test_parity.py",)),
    Mutation(
        "api/inspect.py",
        'level="deep" if options.deep else "sample"', 'level="sample"',
        "--deep reads no more than usual", ("test_inspect.py",)),
    Mutation(
        "api/inspect.py",
        "if inspection.drafter.readings:\n        return None",
        "if inspection.drafter.problems is None:\n        return None",
        "a conversion is offered where a person must say first how to read", ("test_readings.py", "test_inspect.py")),
)  # fmt: skip

CLI = (
    Mutation(
        "cli/__init__.py",
        "        return 130\n", "        return 1\n",
        "an interrupted command ends as a failed check", ("test_program.py", "test_cli.py", "test_streams.py")),
    Mutation(
        "cli/__init__.py",
        "        error.show()\n        return 2\n", "        error.show()\n        return 1\n",
        "a mistyped option ends as a failed check", ("test_program.py", "test_cli.py")),
    Mutation(
        "cli/__init__.py",
        '    end = argv.index("--") if "--" in argv else len(argv)', "    end = len(argv)",
        "--debug behind `--` is taken for ours", ("test_program.py", "test_cli.py")),
    Mutation(
        "cli/inspect.py",
        "sys.exit(1 if bad or faulty else 0)", "sys.exit(1 if faulty else 0)",
        "inspect --for ends with 0 for a drafter that is mis-read", ("test_cli.py",)),
    Mutation(
        "cli/inspect.py",
        'problem.severity != "note"', 'problem.severity == "error"',
        "--strict passes warnings", ("test_cli.py",)),
    Mutation(
        "cli/verify.py",
        "sys.exit(0 if verification.passed else 1)", "sys.exit(0)",
        "verify ends with 0 when it failed", ("test_cli.py",)),
    Mutation(
        "cli/diff.py",
        "sys.exit(0 if differences.none else 1)", "sys.exit(0)",
        "diff ends with 0 when something differs", ("test_cli.py",)),
    Mutation(
        "cli/parity.py",
        "sys.exit(exit_code(report))", "sys.exit(0)",
        "parity ends with 0 whatever its verdict", ("test_parity.py",)),
    Mutation(
        "options.py",
        "Path(argument).name if Path(argument).is_absolute() else argument", "argument",
        "a report tells where it was made", ("test_options.py",)),
    Mutation(
        "cli/output.py",
        "safe(shlex.join(argv))", "safe(' '.join(argv))",
        "the next command is not quoted for a shell", ("test_cli.py", "test_program.py")),
    Mutation(
        "cli/output.py",
        "json.dumps(document, indent=2, ensure_ascii=True)", "json.dumps(document, indent=2, ensure_ascii=False)",
        "a name in JSON may drive a terminal", ("test_cli.py", "test_program.py")),
    Mutation(
        "cli/answer.py",
        "if self.wanted and not self.given:", "if self.wanted:",
        "a program gets two documents", ("test_parity.py",)),
    Mutation(
        "cli/answer.py",
        'json and not {"-q", "--quiet"} & {*words}', "json",
        "an error is printed on stdout although nothing was to be said", ("test_cli.py",)),
    Mutation(
        "cli/tables.py",
        "    if spare < 0:\n        return None\n", "    spare = max(spare, 0)\n",
        "a table is wider than the terminal", ("test_tables.py",)),
    Mutation(
        "cli/tables.py",
        "min(natural[-1], NARROW)", "0",
        "a column of prose is one word wide", ("test_tables.py",)),
    Mutation(
        "cli/streams.py",
        "self.fault, self._over = error, True", "self._over = True",
        "half an output on a full disk looks whole", ("test_streams.py",)),
)  # fmt: skip

BESIDE = (
    Mutation(
        "plugins.py",
        "                if name in owners:\n", "                if name in shipped and not name:\n",
        "a package may take the name of another", ("test_plugins.py",)),
    Mutation(
        "plugins.py",
        "if not isinstance(items, tuple | list) or not all(isinstance(item, kind) for item in items):",
        "if not isinstance(items, tuple | list):",
        "a package may bring something else", ("test_plugins.py",)),
    Mutation(
        "plugins.py",
        'if group == "draftconv.formats" and', "if not group and",
        "a format may have another name than its entry point", ("test_plugins.py",)),
    Mutation(
        "errors.py",
        "    exit_code = 4\n", "    exit_code = 2\n",
        "a void measurement ends as bad input", ("test_errors.py",)),
    Mutation(
        "errors.py",
        "    exit_code = 3\n", "    exit_code = 2\n",
        "a run that waits for a person ends as bad input", ("test_errors.py",)),
)  # fmt: skip

MUTATIONS = (
    *CHECKPOINT, *DRAFTER, *LAYOUTS, *ENGINES, *QUANTIZATION, *REFERENCE, *REPLAY, *REPORT, *TRACES, *LIVE, *CONVERSION,
    *VERIFICATION, *ATTESTATION, *API, *CLI, *BESIDE,
)  # fmt: skip
