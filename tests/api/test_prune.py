"""Pruned heads: which rows stay, what is told of them beforehand, and that every row that stays keeps its bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import draftconv
from draftconv.api.prune import Pruning
from draftconv.api.verify import Verification
from draftconv.drafter.drafter import Drafter
from draftconv.errors import BadCheckpoint, BadPrompts, DraftconvError, Refused, UsageError
from draftconv.traces.trace import open_trace
from tests import opening, quantized, tiny
from tests.counted import LLAMA, VOCAB, Counts, target
from tests.reference.test_fixtures import DATA
from tests.traces.recorded import Recorded

HEAD = "lm_head.weight"
MLA = DATA / "drafters/mla-eagle3"


def ids_of(drafter: Drafter) -> tuple[int, ...]:
    assert drafter.maps is not None
    assert drafter.maps.map is not None
    return drafter.maps.map.ids


def stored(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor, as the safetensors library reads it."""
    return load_file(path / "model.safetensors")


def rows_of(path: Path) -> tuple[int, ...]:
    """The token of every row of a head."""
    drafter = opening.read(path)
    return ids_of(drafter) if drafter.facts.reduced_vocab else tuple(range(len(stored(path)[HEAD])))


def assert_rows(out: Path, source: Path) -> None:
    """Plainly: row by row, by the token that each stands for."""
    before, after, tensors = rows_of(source), ids_of(opening.read(out)), stored(out)
    assert list(after) == sorted({*after})
    row_of = {token: row for row, token in enumerate(before)}
    expected = stored(source)[HEAD][[row_of[token] for token in after]]
    assert tensors[HEAD].dtype == expected.dtype
    assert torch.equal(tensors[HEAD].view(torch.int16), expected.view(torch.int16))
    assert tensors["d2t"].dtype == torch.int64
    assert tensors["d2t"].tolist() == [token - row for row, token in enumerate(after)]


@pytest.mark.parametrize("name", quantized.NAMES)
def test_rows_that_stay_keep_every_bit_and_verify_makes_them_again(name: str, counts: Counts, tmp_path: Path) -> None:
    source = DATA / "drafters" / name
    done = draftconv.prune(source, tmp_path / "out", vocab=256, counts=counts(), target=target(source))
    assert isinstance(done, Pruning)
    assert_rows(tmp_path / "out", source)
    assert len(ids_of(opening.read(tmp_path / "out"))) == 256
    assert json.loads((tmp_path / "out/config.json").read_text())["draft_vocab_size"] == 256
    found = draftconv.verify(tmp_path / "out", source, target=target(source))
    assert isinstance(found, Verification)
    assert found.passed
    rows = {row.what: row for row in found.rows}
    left = len(rows_of(source)) - 256
    assert rows[HEAD].outcome == "declared"
    assert "equal in every bit" in rows[HEAD].how
    assert f"and {left - 6} more" in rows[HEAD].how
    assert rows["draft_vocab"].outcome == "declared"
    others = {row.what for row in found.tensors if row.outcome != "equal"}
    assert {HEAD, "d2t and t2d"} <= others <= {HEAD, "d2t and t2d", "t2d", "embed_tokens.weight"}


def test_the_most_written_tokens_stay_with_those_that_have_to(counts: Counts, tmp_path: Path) -> None:
    done = draftconv.prune(
        LLAMA, tmp_path / "out", vocab=256, counts=counts(), keep=("7", "100-103"), target=target(LLAMA)
    )
    written = np.zeros(VOCAB, np.int64)
    for number, ids in enumerate(map(json.loads, Path(counts()).read_text().splitlines())):
        if number % 10 != 1:
            written += np.bincount(ids, minlength=VOCAB)
    forced = {0, 7, 100, 101, 102, 103}  # 0 is the end of a text
    ranked = sorted({*range(VOCAB)} - forced, key=lambda token: (-written[token], token))
    assert {*done.decided.kept.ids} == forced | {*ranked[: 256 - len(forced)]}
    assert done.decided.forced == len(forced)
    assert ids_of(opening.read(tmp_path / "out")) == done.decided.kept.ids


LAYOUTS = ("vllm", "sglang", "trtllm", "portable", "speculators", "specforge", "torchspec")
MASKED = {"speculators", "specforge", "torchspec"}
"""Those whose trainer stores t2d."""


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize(
    ("variant", "layout"),
    [("llama", "torchspec-native"), ("reduced", "specforge-hf"), ("frequency", "modelopt-layers")],
)
def test_every_layout_gets_its_own_maps(variant: str, layout: str, to: str, counts: Counts, tmp_path: Path) -> None:
    source, target = tiny.spell(variant, layout).write(tmp_path / "in"), str(tiny.write_target(tmp_path / "target"))
    how: dict[str, Any] = {"to": to, "target": target}
    draftconv.prune(source, tmp_path / "out", vocab=24, counts=counts(3, 4000, tiny.VOCAB), force=True, **how)
    assert_rows(tmp_path / "out", source)
    kept, made = ids_of(opening.read(tmp_path / "out")), stored(tmp_path / "out")
    assert len(kept) == 24
    assert ("t2d" in made) == (to in MASKED)
    if to in MASKED:
        assert made["t2d"].nonzero()[:, 0].tolist() == list(kept)
    assert draftconv.verify(tmp_path / "out", source, target=target).passed


def test_a_pruned_drafter_goes_on_as_any_other(counts: Counts, tmp_path: Path) -> None:
    """Converted, quantized and pruned once more, it is proven from the very first source."""
    how: dict[str, Any] = {"counts": counts(), "target": target(LLAMA)}
    draftconv.prune(LLAMA, tmp_path / "a", vocab=512, **how)
    draftconv.convert(tmp_path / "a", tmp_path / "b", to="specforge", target=target(LLAMA))
    draftconv.prune(tmp_path / "b", tmp_path / "c", vocab=256, **how)
    draftconv.quantize(tmp_path / "c", tmp_path / "d", recipe="fp8", target=target(LLAMA))
    assert_rows(tmp_path / "d", LLAMA)
    assert draftconv.verify(tmp_path / "d", LLAMA, target=target(LLAMA)).passed
    assert draftconv.verify(tmp_path / "c", tmp_path / "a", target=target(LLAMA)).passed


def test_a_drafter_without_a_head_gets_rows_of_the_target(counts: Counts, tmp_path: Path) -> None:
    draftconv.convert(LLAMA, tmp_path / "in", to="sglang", target=target(LLAMA))
    plain = tmp_path / "in/model.safetensors"
    save_file({k: v for k, v in load_file(plain).items() if k != HEAD}, plain, metadata={"format": "pt"})
    (tmp_path / "in/draftconv.json").unlink()
    with pytest.raises(UsageError, match="in has no lm_head of its own") as caught:
        draftconv.prune(tmp_path / "in", tmp_path / "out", vocab=256, counts=counts(), keep="0", force=True)
    assert "--target DIRECTORY" in caught.value.cure
    draftconv.prune(tmp_path / "in", tmp_path / "out", vocab=256, counts=counts(), target=target(LLAMA))
    kept = ids_of(opening.read(tmp_path / "out"))
    table = load_file(Path(target(LLAMA)) / "model.safetensors")[HEAD]
    assert torch.equal(load_file(tmp_path / "out/model.safetensors")[HEAD], table[list(kept)])
    assert draftconv.verify(tmp_path / "out", tmp_path / "in", target=target(LLAMA)).passed
    assert draftconv.verify(tmp_path / "out", tmp_path / "in").result == "claimed"


# ── quantized ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("recipe", ["w4a16", "fp8"])
def test_quantized_layers_stay_as_they_are(
    recipe: str, counts: Counts, tmp_path: Path, written: quantized.Written
) -> None:
    source = written("llama-eagle3", recipe)
    draftconv.prune(source, tmp_path / "out", vocab=256, counts=counts(), target=target(LLAMA))
    assert_rows(tmp_path / "out", source)
    before, after = stored(source), stored(tmp_path / "out")
    assert after.keys() - before.keys() == {"d2t"}
    assert all(
        torch.equal(before[name].view(torch.uint8), after[name].view(torch.uint8)) for name in before.keys() - {HEAD}
    )
    said = [
        json.loads((path / "config.json").read_text())["quantization_config"] for path in (source, tmp_path / "out")
    ]
    assert said[0] == said[1]
    assert draftconv.verify(tmp_path / "out", source, target=target(LLAMA)).passed
    assert draftconv.verify(tmp_path / "out", LLAMA, target=target(LLAMA)).passed


@pytest.mark.parametrize("recipe", ["w4a16", "w4a16-g128", "fp8"])
def test_a_quantized_head_is_gathered_and_not_requantized(
    recipe: str, counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.api.test_heads import headed

    source = headed("llama-eagle3", recipe, tmp_path, monkeypatch)
    config = json.loads((source / "config.json").read_text())
    for group in config["quantization_config"]["config_groups"].values():
        group["targets"] = ["Linear", "re:.*lm_head$"]  # what engines that read one look for
    (source / "config.json").write_text(json.dumps(config))
    (source / "draftconv.json").unlink()
    draftconv.prune(source, tmp_path / "out", vocab=256, counts=counts(), target=target(LLAMA))
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "out/model.safetensors")
    kept = list(ids_of(opening.read(tmp_path / "out")))
    parts = {name for name in before if name.startswith("lm_head.") and name != "lm_head.weight_shape"}
    assert len(parts) == 2
    for name in parts:
        assert torch.equal(after[name].view(torch.uint8), before[name].view(torch.uint8)[kept]), name
    assert draftconv.verify(tmp_path / "out", source, target=target(LLAMA)).passed
    broken = {name: tensor.clone() for name, tensor in after.items()}
    scale = next(name for name in parts if "scale" in name)
    broken[scale][3] *= 2
    save_file(broken, tmp_path / "out/model.safetensors", metadata={"format": "pt"})
    found = draftconv.verify(tmp_path / "out", source, target=target(LLAMA))
    (row,) = (row for row in found.tensors if row.what == HEAD)
    assert (row.outcome, "weight_scale: other bytes" in row.how) == ("different", True)


def test_engines_that_cannot_load_it_are_refused_as_ever(counts: Counts, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="TensorRT-LLM cannot load a reduced vocabulary beside MLA"):
        draftconv.prune(MLA, tmp_path / "out", vocab=256, counts=counts(), target=target(MLA), to="trtllm")
    (broken := tmp_path / "broken.jsonl").write_text("{")
    with pytest.raises(Refused, match="TensorRT-LLM"):  # before anything is counted, which may take an hour
        draftconv.prune(MLA, tmp_path / "out", vocab=256, counts=str(broken), target=target(MLA), to="trtllm")
    assert not (tmp_path / "out").exists()
    done = draftconv.prune(MLA, tmp_path / "out", vocab=256, counts=counts(), target=target(MLA))
    assert [left.engine for left in done.conversion.left_out] == ["trtllm"]


# ── forged ─────────────────────────────────────────────────────────────────────────


def forge(out: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(out / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def swap_rows(tensors: dict[str, torch.Tensor]) -> None:
    tensors[HEAD][[3, 4]] = tensors[HEAD][[4, 3]].clone()


def flip_a_bit(tensors: dict[str, torch.Tensor]) -> None:
    tensors[HEAD].view(torch.int16)[9, 5] ^= 1


def shift_the_map(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"][100:] += 1


@pytest.mark.parametrize("change", [swap_rows, flip_a_bit, shift_the_map])
def test_verify_catches_rows_that_are_not_those_of_their_tokens(
    change: Callable[[dict[str, torch.Tensor]], None], counts: Counts, tmp_path: Path
) -> None:
    draftconv.prune(LLAMA, tmp_path / "out", vocab=256, counts=counts(), target=target(LLAMA))
    forge(tmp_path / "out", change)
    found = draftconv.verify(tmp_path / "out", LLAMA, target=target(LLAMA))
    assert found.result == "fail"
    (row,) = (row for row in found.tensors if row.what == HEAD)
    assert row.outcome == "different"


# ── what is told beforehand ────────────────────────────────────────────────────────


def test_a_trace_chooses_with_one_half_and_judges_with_the_other(
    counts: Counts, recorded: Recorded, tmp_path: Path
) -> None:
    path = recorded("llama", count=8)
    told: list[tuple[str, int, int]] = []
    how: dict[str, Any] = {"vocab": 512, "counts": counts(), "target": target(LLAMA)}
    done = draftconv.prune(
        LLAMA, tmp_path / "out", trace=path, progress=lambda *what: told.append(what), **how
    )  # fmt: skip
    decided, replayed = done.decided, done.replayed
    assert replayed is not None
    assert replayed.clusters == 4
    assert decided.accept_length == replayed.reference.value
    assert 0 < decided.missing < 1
    assert decided.loss.least < 1 - replayed.ratio < 2 * decided.loss.most
    without = draftconv.prune(LLAMA, tmp_path / "plain", **how)
    assert {*decided.kept.ids} != {*without.decided.kept.ids}
    assert decided.missing < 0.9  # invented text covers little of it, and the first half's tokens stay
    assert {stage for stage, _, _ in told} == {"counting", "replaying", "writing"}
    for stage in ("counting", "replaying", "writing"):
        last = [(now, total) for name, now, total in told if name == stage][-1]
        assert last[0] == last[1]
    record = json.loads((tmp_path / "out/draftconv.json").read_text())["pruning"]
    assert record["trace"] == f"sha256:{open_trace(path).digest}"
    assert str(tmp_path) not in json.dumps(record)
    accept = draftconv.accept(tmp_path / "out", trace=path)
    assert accept.drafters[0].coverage is not None


def test_text_that_is_not_what_the_target_writes_is_told(counts: Counts, recorded: Recorded, tmp_path: Path) -> None:
    """Numbers out of the hat cover themselves and not the target's code."""
    done = draftconv.prune(
        LLAMA, tmp_path / "out", vocab=256, counts=counts(5), target=target(LLAMA), trace=recorded("llama", count=8)
    )
    assert any("the text is not what the target writes" in note for note in done.decided.notes)


def test_the_same_input_gives_the_same_bytes(counts: Counts, tmp_path: Path) -> None:
    for name in ("a", "b"):
        draftconv.prune(LLAMA, tmp_path / name, vocab=256, counts=counts(), target=target(LLAMA))
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)


def test_text_goes_through_the_targets_tokenizer_and_its_template_stays(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    goal = shutil.copytree(target(LLAMA), tmp_path / "target")
    config = json.loads((goal / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}def {{ m['role'] }}: {{ m['content'] }}\n{% endfor %}class "
    (goal / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    asked = {"role": "user", "content": "import nothing"}
    answers = [{"messages": [asked | {"content": f"q {i}"}], "choices": [{"message": {"content": "return " * 200}}]}
               for i in range(20)]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    counts = str(tmp_path / "log.jsonl")
    done = draftconv.prune(LLAMA, tmp_path / "out", vocab=64, counts=counts, target=str(goal))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(goal / "tokenizer.json"))
    written = {*tokenizer.encode("return " * 200).ids}
    of_template = {token for role in ("system", "user", "assistant") for token in tokenizer.encode(f"def {role}:").ids}
    assert written | of_template | {*tokenizer.encode("class ").ids} <= {*done.decided.kept.ids}
    assert done.decided.forced >= len(of_template)
    assert done.decided.coverage[0].covered == 1.0
    assert done.decided.notes == ()


@pytest.mark.parametrize(
    ("fault", "told"),
    [(ModuleNotFoundError(name="torch"), "torch is not installed"), (BadCheckpoint("it is odd"), "it is odd")],
)
def test_token_ids_need_no_tokenizer(
    fault: Exception, told: str, counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Special tokens are read from JSON; what the template writes is then left to the text, and that is said."""

    def refuse(*_: object) -> None:
        raise fault

    monkeypatch.setattr("draftconv.conversion.pruning.texts._open_tokenizer", refuse)
    done = draftconv.prune(LLAMA, tmp_path / "out", vocab=64, counts=counts(), target=target(LLAMA))
    assert done.decided.notes == (f"{told}: tokens of the chat template stay if the text has them",)
    assert 0 in done.decided.kept.ids


def test_it_tells_itself_in_a_line_and_in_tables(counts: Counts, tmp_path: Path) -> None:
    done = draftconv.prune(LLAMA, tmp_path / "out", vocab=256, counts=f"ids=2:{counts()}", target=target(LLAMA))
    covered = 100 * done.decided.coverage[0].covered
    assert repr(done).startswith(
        f"Pruning('llama-eagle3', 256 of 2048 rows, ids {covered:.2f} % covered, loss at most "
    )
    tables = [block.title for block in done.blocks() if not isinstance(block, str)]
    assert tables == ["Coverage", "Was there enough text?", "Loss of accept length by rows"]
    assert "Coverage" in done._repr_html_()
    assert [step.vocab for step in done.decided.ladder] == [64, 128, 256, 512, 1024]
    missing = [step.missing for step in done.decided.ladder]
    assert missing == sorted(missing, reverse=True)


# ── bad input ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "kind", "what", "cure"),
    [
        ({"vocab": 2048}, UsageError, "the head has 2048 rows, so nothing would be pruned", "give fewer, such as 512"),
        ({"vocab": 4096}, UsageError, "the head has 2048 rows", "give fewer"),
        ({"vocab": 100}, UsageError, "--vocab 100 is no multiple of 64", "give 64 or 128"),
        ({"vocab": 192, "tensor_parallel_size": 2}, UsageError, "no multiple of 128", "give 128 or 256"),
        ({"vocab": 64, "keep": "0-99"}, UsageError, "--vocab 64: 100 tokens have to stay", "give 128 or more"),
        ({"keep": "5,x"}, UsageError, "'x' is neither a token id nor a range", "5,100-199"),
        ({"keep": "9-5"}, UsageError, "is no range of token ids", "5,100-199"),
        ({"keep": "2048"}, UsageError, "--keep: the head has no row for 2048", "that the drafter can draft"),
        ({"vocab": 1984}, Refused, "are too few to choose 1984 rows by", "--force"),
        ({"counts": ()}, UsageError, "--counts names nothing", "--counts FILE"),
        ({"counts": "absent.jsonl"}, UsageError, "no such file", "check the path"),
        ({"target": None}, UsageError, "which tokens are special is not known", "--target DIRECTORY"),
        ({"target": "kimi-k2.5"}, UsageError, "--target kimi-k2.5 has 163840 tokens, the drafter is made for 2048",
         "that the drafter was trained for"),
        ({"trace": "absent"}, BadCheckpoint, "the trace absent does not exist", "draftconv trace"),
        ({"to": "nowhere"}, UsageError, "unknown layout nowhere", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_pruned_is_told_and_nothing_is_written(
    options: dict[str, object], kind: type[DraftconvError], what: str, cure: str, counts: Counts, tmp_path: Path
) -> None:
    keywords: dict[str, Any] = {"vocab": 256, "counts": counts(), "target": target(LLAMA)} | options
    with pytest.raises(kind) as caught:
        draftconv.prune(LLAMA, tmp_path / "out", **keywords)
    assert what in caught.value.what
    assert cure in caught.value.cure
    assert not any(tmp_path.iterdir())


def test_text_without_a_tokenizer_and_ids_of_another_one(tmp_path: Path) -> None:
    (text := tmp_path / "a.txt").write_text("some text\n" * 10_000)
    with pytest.raises(UsageError, match="--counts holds text, and there is no tokenizer for it"):
        draftconv.prune(LLAMA, tmp_path / "out", vocab=64, counts=str(text), keep="0", force=True)
    (ids := tmp_path / "a.jsonl").write_text("[1, 2]\n[163585]\n")
    with pytest.raises(UsageError, match=r"a.jsonl:2 holds token 163585; the target has 2048 tokens"):
        draftconv.prune(LLAMA, tmp_path / "out", vocab=64, counts=str(ids), target=target(LLAMA))
    (bad := tmp_path / "b.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(BadPrompts, match=r"b\.jsonl:1 has only prompt"):
        draftconv.prune(LLAMA, tmp_path / "out", vocab=64, counts=str(bad), target=target(LLAMA))
    assert not (tmp_path / "out").exists()


def test_a_trace_of_another_tokenizer_or_target_is_refused(counts: Counts, recorded: Recorded, tmp_path: Path) -> None:
    drafter = tiny.spell("llama", "torchspec-native").write(tmp_path / "drafter")
    with pytest.raises(UsageError, match="is made for a vocabulary of 160, llama has 2048"):
        draftconv.prune(drafter, tmp_path / "out", vocab=64, counts=counts(3, 4000, tiny.VOCAB), keep="0", force=True,
                        trace=recorded("llama", count=8))  # fmt: skip
    foreign = shutil.copytree(recorded("llama", count=8), tmp_path / "trace")
    tokenizer = json.loads((Path(target(LLAMA)) / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = []
    (foreign / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UsageError, match="the trace was made with another tokenizer than that of llama"):
        draftconv.prune(LLAMA, tmp_path / "out", vocab=64, counts=counts(), target=target(LLAMA), trace=foreign)
    assert not (tmp_path / "out").exists()


def test_a_trace_of_another_kind_of_target_is_refused(counts: Counts, recorded: Recorded, tmp_path: Path) -> None:
    trace = recorded("llama", count=8)
    how: dict[str, Any] = {"vocab": 512, "counts": counts()}
    with pytest.raises(UsageError, match="of another kind of target: llama is llama, mla deepseek"):
        draftconv.prune(MLA, tmp_path / "out", trace=trace, target=target(MLA), **how)
    assert not (tmp_path / "out").exists()
    done = draftconv.prune(MLA, tmp_path / "out", trace=trace, keep="0", force=True, **how)
    assert any("the embed_tokens of mla-eagle3 is not that of llama" in note for note in done.decided.notes)


def test_force_goes_on_with_little_text_and_odd_rows(tmp_path: Path) -> None:
    (ids := tmp_path / "a.jsonl").write_text("[1, 2]\n[3]\n")
    done = draftconv.prune(LLAMA, tmp_path / "out", vocab=100, counts=str(ids), target=target(LLAMA), force=True)
    assert done.decided.kept.ids == tuple(range(100))  # ties by id
    assert draftconv.verify(tmp_path / "out", LLAMA, target=target(LLAMA)).passed
