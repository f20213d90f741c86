"""What SGLang is served with in tests: its kernels' stand-in computes what it should, and nothing outlives a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from truth.asking import EngineDied, Refusal
from truth.sglang import served
from truth.sglang.serving import STAND_IN, complete_target, environment, launcher, zygote
from truth.sglang.serving.stand_in.sgl_kernel import attention, chains, slots
from truth.store import Store
from truth.table import TITLES

from tests.reference.test_fixtures import DATA

REQUESTS = torch.tensor([2, 0])
LENGTHS = torch.tensor([5, 3])


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def reference(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """torch's own attention of the last rows of a text, [T, N, P]."""
    heads = query.shape[1] // key.shape[1]
    q, k, v = (t.transpose(0, 1) for t in (query, key.repeat_interleave(heads, 1), value.repeat_interleave(heads, 1)))
    mask = torch.ones(query.shape[0], key.shape[0], dtype=torch.bool).tril(key.shape[0] - query.shape[0])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(0, 1)


class Cache:
    """Two requests, 5 and 3 tokens long, whose rows lie scattered."""

    def __init__(self) -> None:
        self.req_to_token = torch.full((3, 8), 99)
        self.req_to_token[2, :5] = torch.tensor([7, 1, 4, 9, 2])
        self.req_to_token[0, :3] = torch.tensor([3, 8, 5])
        self.keys, self.values = drawn(12, 2, 16), drawn(12, 2, 24)

    def of(self, request: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.req_to_token[request, :length]
        return self.keys[rows], self.values[rows]


def test_attention_behind_a_prefix_is_torchs() -> None:
    cache, query = Cache(), drawn(6, 4, 16)
    output, new, first = torch.zeros(6, 4, 24), torch.tensor([4, 2]), torch.tensor([0, 4])
    torch.ops.sgl_kernel.extend_attention_cpu(
        query, None, None, output, cache.keys, cache.values, 1.0, 1.0, cache.req_to_token, REQUESTS, LENGTHS, new,
        first, 4, 0.25, 0.0, False, 0, None, None, None, True,
    )  # fmt: skip
    expected = [reference(query[:4], *cache.of(2, 5), 0.25), reference(query[4:], *cache.of(0, 3), 0.25)]
    torch.testing.assert_close(output, torch.cat(expected))


def test_a_decoded_token_attends_to_itself() -> None:
    cache, query, output = Cache(), drawn(2, 4, 16), torch.zeros(2, 4, 24)
    key, value, where = drawn(2, 2, 16), drawn(2, 2, 24), torch.tensor([2, 5])
    torch.ops.sgl_kernel.decode_attention_cpu(
        query, cache.keys, cache.values, 1.0, 1.0, output, key, value, where, torch.empty(0), cache.req_to_token,
        REQUESTS, LENGTHS, 0.25, 0.0, False, 0, None, None,
    )  # fmt: skip
    assert torch.equal(cache.keys[where], key)
    assert torch.equal(cache.values[where], value)
    expected = [reference(query[:1], *cache.of(2, 5), 0.25), reference(query[1:], *cache.of(0, 3), 0.25)]
    torch.testing.assert_close(output, torch.cat(expected))


def test_a_window_hides_what_lies_before_it() -> None:
    query, key, value = drawn(2, 1, 8), drawn(6, 1, 8), drawn(6, 1, 8)
    seen = attention.attend(query[1:], key, value, 0.3, 5, window=2)
    torch.testing.assert_close(seen, reference(query[1:], key[4:], value[4:], 0.3))


@pytest.mark.parametrize(("place", "value"), [(6, 2.0), (15, 30.0), (20, torch.ones(1))])
def test_what_was_not_written_says_so(place: int, value: object) -> None:
    cache, rows = Cache(), torch.tensor([1, 1])
    call: list[object] = [
        drawn(2, 4, 16), None, None, torch.zeros(2, 4, 24), cache.keys, cache.values, 1.0, 1.0, cache.req_to_token,
        REQUESTS, LENGTHS, rows, torch.tensor([0, 1]), 1, 0.25, 0.0, False, 0, None, None, None, True,
    ]  # fmt: skip
    call[place] = value
    with pytest.raises(NotImplementedError, match="the stand-in of sgl_kernel has no"):
        attention.extend_attention(*call)  # type: ignore[arg-type]


def test_slots_are_read_where_they_were_written() -> None:
    table, start, end = torch.zeros(3, 10, dtype=torch.int32), torch.tensor([1, 0]), torch.tensor([4, 2])
    slots.assign_req_to_token_pool_cpu(REQUESTS, table, start, end, torch.tensor([11, 12, 13, 21, 22]), 10)
    assert table[2].tolist() == [0, 11, 12, 13, *[0] * 6]
    assert table[0].tolist() == [21, 22, *[0] * 8]
    read = torch.zeros(5, dtype=torch.int64)
    slots.assign_extend_cache_locs_cpu(REQUESTS, table, start, end, read, 10)
    assert read.tolist() == [11, 12, 13, 21, 22]
    drafts = torch.zeros(4, dtype=torch.int64)
    slots.assign_draft_cache_locs_contiguous_cpu(REQUESTS, table, torch.tensor([2, 0]), drafts, 10, 1, 2)
    assert drafts.tolist() == [12, 13, 21, 22]
    rows = slots.build_draft_decode_metadata_cpu(table, REQUESTS, torch.tensor([2, 0]), 1, 2, 10)
    assert rows[0].tolist() == [0, 11, 12, 13, *[0] * 6]
    assert rows[1, :2].tolist() == [21, 22]


def test_rows_of_a_tree_are_not_moved() -> None:
    with pytest.raises(NotImplementedError, match="chains only"):
        slots.copy_all_layer_kv_cache_cpu(torch.empty(0), torch.empty(0), torch.tensor([1]), torch.tensor([2]))


def chain(requests: int, tokens: int) -> dict[str, torch.Tensor]:
    """What SGLang hands over for chains, as the stand-in lays them out."""
    made = {
        "mask": torch.zeros(requests * tokens * tokens, dtype=torch.bool),
        "positions": torch.zeros(requests * tokens, dtype=torch.long),
        "retrieve_index": torch.full((requests, tokens), -1),
        "next_token": torch.full((requests, tokens), -1),
    }
    sibling = torch.full((requests, tokens), -1)
    nothing = torch.empty(0)
    chains.build_tree_kernel_efficient_cpu(
        nothing, nothing, torch.tensor([10, 20, 30])[:requests], made["mask"], made["positions"],
        made["retrieve_index"], made["next_token"], sibling, 1, tokens - 1, tokens, 1,
    )  # fmt: skip
    return {**made, "sibling": sibling}


def test_drafts_are_accepted_as_far_as_the_target_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(chains.DRAFTS, str(tmp_path / "drafts"))
    made = chain(3, 4)
    assert made["positions"].tolist() == [10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33]
    drafted = torch.tensor([[5, 1, 2, 3], [6, 1, 9, 3], [7, 8, 8, 8]])
    wanted = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    tokens, kept, counts = torch.zeros(12).int(), torch.full((3, 4), -1), torch.zeros(3).int()
    chains.verify_tree_greedy_cpu(
        predicts=tokens, accept_index=kept, accept_token_num=counts, candidates=drafted,
        retrive_index=made["retrieve_index"], retrive_next_token=made["next_token"],
        retrive_next_sibling=made["sibling"], target_predict=wanted,
    )  # fmt: skip
    assert counts.tolist() == [3, 1, 0]
    assert kept.tolist() == [[0, 1, 2, 3], [4, 5, -1, -1], [8, -1, -1, -1]]
    assert [tokens[row[row >= 0]].tolist() for row in kept] == [[1, 2, 3, 4], [1, 2], [1]]
    assert (tmp_path / "drafts").read_text() == "1 2 3\n1 9 3\n8 8 8\n"
    bonus = torch.zeros(3).int()
    written = tokens[kept.clamp(min=0)].reshape(-1)
    chains.fill_bonus_tokens_cpu(written, counts + 1, bonus, 4)
    assert bonus.tolist() == [4, 2, 1]


def test_a_sibling_is_no_chain() -> None:
    made = chain(1, 3)
    with pytest.raises(NotImplementedError, match="a draft has a sibling"):
        chains.verify_tree_greedy_cpu(
            predicts=torch.zeros(3), accept_index=torch.zeros(1, 3), accept_token_num=torch.zeros(1),
            candidates=torch.zeros(1, 3), retrive_index=made["retrieve_index"],
            retrive_next_token=made["next_token"], retrive_next_sibling=torch.tensor([[-1, 2, -1]]),
            target_predict=torch.zeros(3),
        )  # fmt: skip


# ── processes ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (f"KeyError: 'x'\nRuntimeError: no drafter\n[time] {zygote.FAILED}. It usually …", "RuntimeError: no drafter"),
        ("RuntimeError: no drafter\n", None),
        (f"{zygote.FAILED}\n", None),
    ],
)
def test_a_scheduler_that_cannot_start_refuses(
    said: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def died(*_: object) -> None:
        os.write(2, said.encode())
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(zygote, "_run", died)
    answer = zygote.answer(zygote.Question(Path(), Path(), [], 1, "float32", 3))
    assert answer == Refusal(expected) if expected else isinstance(answer, EngineDied)


def test_what_was_counted_is_told_whole(tmp_path: Path) -> None:
    (tmp_path / "drafts").write_text("3 4\n1 2\n")
    told = [{"output_ids": [7, 8], "meta_info": {"spec_correct_drafts_histogram": [1, 2]}}]
    ran = zygote._ran(told, 3, tmp_path / "drafts")
    assert (ran.tokens, ran.histograms, ran.drafts) == (((7, 8),), ((1, 2, 0, 0),), (1, 2, 3, 4))


def test_a_program_for_engine_python_adds_what_a_cpu_needs(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(launcher(Path("/usr/bin/env"), context_length=160))
    program.chmod(0o755)
    ran = subprocess.run([program, "FIRST=1", "echo", "-m", "x"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("-m x --device cpu ")
    assert ran.stdout.rstrip().endswith("--context-length 160")


def test_only_a_deepseek_target_is_completed(tmp_path: Path) -> None:
    llama, mla = (DATA / "targets" / name for name in ("llama", "mla"))
    assert complete_target(llama, tmp_path / "llama") == llama
    made = json.loads((complete_target(mla, tmp_path / "mla") / "config.json").read_text())
    assert made == {**json.loads((mla / "config.json").read_text()), "moe_layer_freq": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], env=environment({"PATH": os.environ["PATH"]})) as process:
        told = ""
        while not told.endswith("."):
            time.sleep(0.05)
            told = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
        process.kill()
    status = Path(f"/proc/{told.rstrip('.')}/status")
    deadline = time.monotonic() + 10
    while status.exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ── what is asked ──────────────────────────────────────────────────────────────────


def test_every_part_has_a_title_and_its_cases_have_names(tmp_path: Path) -> None:
    assert set(served.PARTS) <= set(TITLES)
    assert len({fault.name for fault in served.FAULTS}) == len(served.FAULTS)
    assert {path.name for path in served.ASKING} >= {"answering.py", "zygote.py", "sitecustomize.py", "chains.py"}
    with pytest.raises(ValueError, match="loader is not asked"):
        served.rows("loader", None, Store(tmp_path, "1", STAND_IN / "sitecustomize.py"), None, True)  # type: ignore[arg-type]
