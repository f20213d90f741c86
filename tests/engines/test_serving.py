"""Server commands: exact arguments, exact files, and the traps told beside them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from draftconv.drafter.facts import AuxLayers, Facts
from draftconv.drafter.targets import Target
from draftconv.engines import ENGINES, ServeCommand, ServeRequest, parse_engine
from draftconv.engines.serving import Yaml, wrapped, yaml_string, yaml_text
from draftconv.errors import Refused, Undecided, UsageError
from tests.engines.cases import vary_target
from tests.engines.views import FACTS, KIMI_TARGET, LLAMA, LLAMA_TARGET, MLA, vary


def command(
    engine: str,
    facts: Facts = LLAMA,
    target: Target = LLAMA_TARGET,
    directory: str = "out dir",
    **counts: Any,
) -> ServeCommand:
    spec = parse_engine(engine)
    return ENGINES[spec.name].command(ServeRequest(directory, facts, target, **counts), spec)


class TestVllm:
    def test_arguments(self) -> None:
        assert command("vllm").argv == (
            "vllm", "serve", "someone/llama-test", "--host", "127.0.0.1",
            "--speculative-config", '{"model": "out dir", "method": "eagle3", "num_speculative_tokens": 3}',
        )  # fmt: skip

    def test_devices_tokens_and_remote_code(self) -> None:
        found = command("vllm", MLA, KIMI_TARGET, drafts=5, tensor_parallel=8)
        assert found.argv[:8] == (
            "vllm", "serve", "someone/kimi-test", "--host", "127.0.0.1", "--tensor-parallel-size", "8",
            "--trust-remote-code",
        )  # fmt: skip
        assert json.loads(found.argv[-1])["num_speculative_tokens"] == 5
        assert any("run Python code" in note for note in found.notes)

    def test_notes(self) -> None:
        assert command("vllm").notes == ()
        (note,) = command("vllm", FACTS["llama 3.1"]).notes
        assert "0.22" in note
        assert any("43482" in note for note in command("vllm", FACTS["mla 3.1"], KIMI_TARGET).notes)
        assert any("capped" in note and "8192" in note for note in command("vllm", FACTS["llama, yarn"]).notes)
        (untold,) = command("vllm", vary(FACTS["llama, yarn"], max_positions=None)).notes
        assert "None" not in untold
        assert any("VLLM_CPU_KVCACHE_SPACE" in note for note in command("vllm:cpu").notes)

    def test_two_kinds_of_attention_share_no_cache_on_a_cpu(self) -> None:
        with pytest.raises(Refused, match="does not start an MLA drafter beside llama-test") as caught:
            command("vllm:cpu", MLA, LLAMA_TARGET)
        assert caught.value.cure
        assert command("vllm:cpu", MLA, LLAMA_TARGET, alone=True).argv
        assert command("vllm:cpu", MLA, KIMI_TARGET).argv
        assert command("vllm", MLA, LLAMA_TARGET).argv

    def test_no_files(self) -> None:
        assert command("vllm").files == {}

    def test_the_cpu_build_is_started_as_a_module_without_its_rotary_kernel(self) -> None:
        argv = command("vllm:cpu", MLA, KIMI_TARGET).argv
        assert argv[:4] == ("python", "-m", "vllm.entrypoints.openai.api_server", "--model")
        assert json.loads(argv[argv.index("--compilation-config") + 1]) == {"custom_ops": ["-rotary_embedding"]}


class TestSglang:
    def test_arguments(self) -> None:
        assert command("sglang", drafts=4).argv == (
            "python", "-m", "sglang.launch_server", "--model-path", "someone/llama-test", "--host", "127.0.0.1",
            "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "out dir",
            "--speculative-num-steps", "4", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "5",
        )  # fmt: skip

    def test_devices_and_remote_code(self) -> None:
        found = command("sglang", MLA, KIMI_TARGET, tensor_parallel=8)
        assert found.argv[7:10] == ("--tp-size", "8", "--trust-remote-code")

    def test_notes(self) -> None:
        algorithm, quantization = command("sglang").notes
        assert "EAGLE3, not EAGLE" in algorithm
        assert "--speculative-draft-model-quantization unquant" in quantization
        assert not any("unquant" in note for note in command("sglang", vary(LLAMA, quantization="int4")).notes)
        longer = vary_target(LLAMA_TARGET, max_positions=131072)
        assert any("SGLANG_ALLOW_OVERWRITE" in note for note in command("sglang", target=longer).notes)
        reduced = command("sglang", FACTS["llama, reduced vocabulary"])
        assert any("token-map is ignored" in note for note in reduced.notes)
        assert "--speculative-token-map" not in reduced.argv


class TestTrtllm:
    def test_arguments_and_file(self) -> None:
        found = command("trtllm")
        assert found.argv == (
            "trtllm-serve", "someone/llama-test", "--host", "127.0.0.1", "--backend", "pytorch", "--tp_size", "1",
            "--config", "serve.yaml",
        )  # fmt: skip
        assert dict(found.files) == {
            "serve.yaml": (
                "speculative_config:\n"
                '  decoding_type: "Eagle3"\n'
                "  max_draft_len: 3\n"
                '  speculative_model_dir: "out dir"\n'
                "enable_iter_perf_stats: true\n"
            )
        }

    def test_other_layers_are_named_as_outputs(self) -> None:
        text = command("trtllm", FACTS["llama, layers given"]).files["serve.yaml"]
        assert yaml.safe_load(text)["speculative_config"]["eagle3_layers_to_capture"] == [1, 2, 5]

    def test_the_default_triple_in_numbers_is_not_named(self) -> None:
        text = command("trtllm", vary(LLAMA, boundaries=(2, 4, 5))).files["serve.yaml"]
        assert "eagle3_layers_to_capture" not in text

    def test_the_older_line(self) -> None:
        found = command("trtllm@1.2", drafts=2)
        assert found.argv[-2:] == ("--extra_llm_api_options", "serve.yaml")
        assert yaml.safe_load(found.files["serve.yaml"])["speculative_config"]["decoding_type"] == "Eagle"
        assert any("midlayer" in note for note in found.notes)

    def test_notes(self) -> None:
        assert any("2026-06" in note for note in command("trtllm", FACTS["llama 3.1"]).notes)
        assert any("not proven" in note for note in command("trtllm", LLAMA, KIMI_TARGET).notes)
        found = command("trtllm", MLA, KIMI_TARGET)
        assert not any("not proven" in note for note in found.notes)
        assert "--trust_remote_code" in found.argv

    def test_unknown_layers_are_not_guessed(self) -> None:
        with pytest.raises(Undecided, match="aux-convention"):
            command("trtllm", vary(LLAMA, boundaries=AuxLayers.UNKNOWN))

    def test_boundary_0_has_no_number(self) -> None:
        with pytest.raises(Refused, match="boundary 0"):
            command("trtllm", vary(LLAMA, boundaries=(0, 4, 5)))


class TestRevisions:
    """A drafter or target on the Hub that is pinned to a commit is served at it, or not at all."""

    PINNED = vary_target(LLAMA_TARGET, repo="someone/llama-test@main")

    def of(self, engine: str, target: Target = LLAMA_TARGET, **more: str) -> ServeCommand:
        spec = parse_engine(engine)
        return ENGINES[spec.name].command(ServeRequest("a/drafter", LLAMA, target, **more), spec)  # type: ignore[arg-type]

    @pytest.mark.parametrize("engine", ["vllm", "vllm:cpu", "sglang"])
    def test_of_the_target(self, engine: str) -> None:
        argv = self.of(engine, self.PINNED).argv
        assert argv[argv.index("--revision") + 1] == "main"
        assert "someone/llama-test" in argv

    def test_of_the_drafter(self) -> None:
        told = json.loads(self.of("vllm", revision="abc").argv[-1])
        assert (told["model"], told["revision"]) == ("a/drafter", "abc")
        argv = self.of("sglang", revision="abc").argv
        assert argv[argv.index("--speculative-draft-model-revision") + 1] == "abc"

    @pytest.mark.parametrize(("pinned", "revision"), [(True, None), (False, "abc")])
    def test_what_tensorrt_llm_cannot_be_told(self, pinned: bool, revision: str | None) -> None:
        more = {"revision": revision} if revision else {}
        with pytest.raises(UsageError, match="cannot be told revision") as caught:
            self.of("trtllm", self.PINNED if pinned else LLAMA_TARGET, **more)
        assert "hf download" in caught.value.cure


class TestStart:
    def test_a_local_target_is_served_from_its_path(self) -> None:
        target = vary_target(LLAMA_TARGET, path=Path("/models/llama"))
        assert command("vllm", target=target).argv[2] == "/models/llama"

    def test_a_layer_count_cannot_be_served(self) -> None:
        with pytest.raises(UsageError, match="cannot be served"):
            ServeRequest("out", LLAMA, Target("a target with 8 layers", 8))

    @pytest.mark.parametrize("counts", [{"drafts": 0}, {"tensor_parallel": 0}])
    def test_counts_are_positive(self, counts: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="at least 1"):
            ServeRequest("out", LLAMA, LLAMA_TARGET, **counts)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_the_shell_line_reads_back_as_the_arguments(self, engine: str) -> None:
        found = command(engine, directory="it's; rm -rf $HOME")
        assert tuple(shlex.split(found.shell())) == found.argv


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]))


@given(st.lists(WORDS, min_size=1, max_size=12), st.dictionaries(st.from_regex(r"[A-Z_]+", fullmatch=True), WORDS))
def test_wrapped_lines_read_back_as_the_same_words(argv: list[str], environment: dict[str, str]) -> None:
    text = wrapped(argv, environment, 30)
    assert shlex.split(text.replace(" \\\n", " ")) == [*(f"{k}={v}" for k, v in environment.items()), *argv]


def test_an_option_stays_with_its_value() -> None:
    text = wrapped(("vllm", "serve", "model", "--tensor-parallel-size", "8", "--host", "127.0.0.1"), {"A": "1"}, 40)
    assert text == "A=1 vllm serve model \\\n    --tensor-parallel-size 8 \\\n    --host 127.0.0.1"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_path_survives_yaml(text: str) -> None:
    assert yaml.safe_load(yaml_text({"outer": {"path": text}})) == {"outer": {"path": text}}
    assert yaml_string(text).isascii()


def test_yaml_values() -> None:
    data: dict[str, Yaml] = {"a": True, "b": False, "c": 3, "d": (1, 2), "e": "yes", "f": {"g": "1.0", "h": {"i": 0}}}
    assert yaml.safe_load(yaml_text(data)) == {**data, "d": [1, 2]}
