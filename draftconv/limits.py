"""Every limit on what comes from outside, in one table: checkpoints, YAML, prompts, traces, the Hub and engines.

A row says what it bounds and why the figure is what it is. Readers ask the row (`limits.CONFIG.check(...)`), or use
its value where time runs. docs/limits.md is made of the table, and tests hold every row to it: at the limit
something is read, and quickly; one beyond it is refused, in words.

What an engine or a file format cannot hold is no limit of ours and stands with its rules (a safetensors shape that no
address can hold, a zip comment). Neither is the size of a block that is in memory at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftconv.errors import BadCheckpoint, DraftconvError


@dataclass(frozen=True, slots=True)
class Limit:
    """One row.

    Attributes:
        value: the most that is taken, in `unit`.
        bounds: what it counts. `why`: the figure, and what happens without it.
        cure: what to do with a file or a server that is beyond it and right.
    """

    value: int
    unit: str
    bounds: str
    why: str
    cure: str

    def check(self, found: float, what: str, *, error: type[DraftconvError] = BadCheckpoint) -> None:
        """Refuse what is beyond it.

        Args:
            what: where it was found and how much it is: `config.json has 12000000 bytes`.

        Raises:
            DraftconvError: of the class `error`.
        """
        if found > self.value:
            raise self.exceeded(what, error=error)

    def exceeded(self, what: str, *, error: type[DraftconvError] = BadCheckpoint) -> DraftconvError:
        """The refusal itself."""
        return error(f"{what}; {self.value} is the limit", why=self.why, cure=self.cure)


EXPORT = "export the checkpoint again with the trainer's own tool"
KEY = "correct the key in config.json"

# ── files ──────────────────────────────────────────────────────────────────────────

HEADER = Limit(
    100_000_000, "bytes", "header of a safetensors file",
    "the safetensors library stops there too (MAX_HEADER_SIZE)",
    EXPORT)  # fmt: skip
CONFIG = Limit(
    10_000_000, "bytes", "config.json, and JSON files beside it",
    "the largest known ones have less than 1 MB; it is held in memory, and copied into every record",
    "remove what does not belong into it; for draftconv.json, convert from the original")  # fmt: skip
INDEX = Limit(
    100_000_000, "bytes", "index of sharded weights",
    "a million tensors have one of this size",
    EXPORT)  # fmt: skip
TOKENIZER = Limit(
    100_000_000, "bytes", "tokenizer.json of a trace",
    "the largest known ones have 20 MB; it is held in memory while two targets are compared",
    "give a trace of the target's own tokenizer")  # fmt: skip
PICKLE = Limit(
    4_000_000, "bytes", "data.pkl of a .bin file",
    "a drafter's has some kilobytes, a model of 10 000 tensors two megabytes",
    "save it as safetensors")  # fmt: skip
ZIP_DIRECTORY = Limit(
    100_000_000, "bytes", "directory of the zip archive that a .bin file is",
    "a million tensors have one of this size",
    "save it as safetensors")  # fmt: skip
TENSORS = Limit(
    400_000, "tensors", "tensors of a checkpoint",
    "the largest targets have some 200 000; so many take half a gigabyte and some seconds",
    EXPORT)  # fmt: skip
TENSOR_NAME = Limit(
    1000, "characters", "name of a tensor",
    "known names have less than 150; they are searched and printed",
    EXPORT)  # fmt: skip
RANK = Limit(
    64, "dimensions", "dimensions of a tensor",
    "numpy and torch hold no more",
    EXPORT)  # fmt: skip
JSON_LEVELS = Limit(
    64, "levels", "objects and lists inside each other, in JSON",
    "known files have less than ten; what is nested deeper than Python's stack could not be written again",
    "remove what does not belong into it")  # fmt: skip
FRONT_MATTER = Limit(
    65_536, "characters", "YAML at the top of a source's model card",
    "real ones have some hundred; it is parsed for its license, and nothing of a longer one is taken over",
    "shorten it; license files beside it are taken along all the same")  # fmt: skip
LICENSE = Limit(
    1_000_000, "bytes", "license or notice beside a source",
    "the GPL has 35 000; a longer file stays behind, and the output says so",
    "put the terms into a file of their own")  # fmt: skip
LICENSES = Limit(
    16, "files", "licenses and notices of one source",
    "known sources have one or two; the rest stays behind, and the output says so",
    "keep the files that are about the drafter")  # fmt: skip
FILE_NAME = Limit(
    255, "bytes", "name of a file or directory that is written, with what draftconv adds while it works",
    "Linux and macOS take no longer names",
    "choose a shorter name")  # fmt: skip

# ── drafters and targets ───────────────────────────────────────────────────────────

DRAFTER_TENSORS = Limit(
    2000, "tensors", "tensors of a drafter",
    "drafters have less than a hundred; each is compared with what every engine expects",
    "take what is no part of the drafter out of it")  # fmt: skip
DRAFTER_LAYERS = Limit(
    256, "layers", "num_hidden_layers of a drafter",
    "drafters have one to four layers, and configs that were copied from a target that target's, 126 at most; "
    "each is built as every engine would build it",
    KEY)  # fmt: skip
TARGET_LAYERS = Limit(
    1000, "layers", "layers of a target",
    "known targets have up to 126; a list of what can be captured is made of them",
    "correct num_hidden_layers in its config.json, or --target-layers")  # fmt: skip
CAPTURED = Limit(
    64, "layers", "aux layers of a drafter, and states that its fc reads",
    "drafters read three, and some five",
    KEY)  # fmt: skip
VOCABULARY = Limit(
    1_000_000, "tokens", "d2t and t2d",
    "the largest known vocabularies have 262 144 tokens; the maps are read whole",
    EXPORT)  # fmt: skip
SIZE = Limit(
    (1 << 31) - 1, "", "any size or count in config.json",
    "engines hold them in 32 bits",
    KEY)  # fmt: skip
ROPE_NUMBER = Limit(
    10**15, "", "any number of a rotary embedding, of either sign",
    "known bases are below a billion; beyond this, positions would all look alike in the engine's floats",
    KEY)  # fmt: skip
NUMBERS = Limit(
    1_000_000, "numbers", "list of numbers in a JSON file or an engine's answer",
    "as many as tokens of a vocabulary (lm_head_order)",
    "make the file again with the program that wrote it")  # fmt: skip
NAMES = Limit(
    10_000, "names", "list of names, and keys of an object: ignore lists, groups, architectures",
    "exports that list every module of a model of experts have some thousands; each is compared with every module",
    "keep the entries that are about the drafter")  # fmt: skip
REGEX = Limit(
    1000, "characters", "regular expression of an ignore list",
    "those of llm-compressor have less than a hundred; a longer one is not tried, and the module counts as unknown",
    "write the names of the modules")  # fmt: skip
REGEX_REPEATS = Limit(
    4, "repeats", "`*`, `+`, `?` and `{…}` of one regular expression, none of them on a group",
    "each multiplies what a search may take; an expression with more is not tried, and the module counts as unknown",
    "write the names of the modules")  # fmt: skip
REGEX_STEPS = Limit(
    100_000_000, "steps", "what all regular expressions of an ignore list may take at worst",
    "about two seconds",
    "write the names of the modules")  # fmt: skip
HISTORY = Limit(
    64, "steps", "conversions that draftconv.json remembers",
    "each holds a whole config.json, and perhaps an order of lm_head",
    "convert from the original in one step, or remove draftconv.json, which forgets the history")  # fmt: skip
SHOWN = Limit(
    120, "characters", "name from a file in a message; the rest is cut off",
    "a message has to fit a line or two",
    "--format json shows all of it")  # fmt: skip
CELL = Limit(
    2000, "characters", "line of a table, and of a message; the rest is cut off",
    "a checkpoint can hold texts of megabytes",
    "--format json shows all of it")  # fmt: skip

# ── what people write ──────────────────────────────────────────────────────────────

YAML = Limit(
    100_000, "bytes", "recipe or profile",
    "shipped ones have a kilobyte; YAML is read by Python, 100 kB in a second",
    "keep what a recipe or profile needs")  # fmt: skip
YAML_LEVELS = Limit(
    20, "levels", "mappings and lists inside each other, in YAML",
    "shipped files have four",
    "write it flatter")  # fmt: skip
YAML_NODES = Limit(
    10_000, "values", "values of a YAML file, with every alias and merge key written out",
    "ten lines of aliases can stand for a billion values",
    "write out what aliases stand for, or use fewer")  # fmt: skip
PROMPT = Limit(
    16 * 1024 * 1024, "bytes", "line of a file of prompts",
    "four million tokens: more than any target reads",
    "check what the file is")  # fmt: skip
PROMPTS = Limit(
    256 * 1024 * 1024, "bytes", "file of prompts in .json",
    "it is held in memory whole",
    "write it as .jsonl, which is read line by line")  # fmt: skip
TEXT = Limit(
    100_000_000_000, "bytes", "file of texts whose tokens are counted",
    "some twenty billion tokens, a day's work; a thousandth of it is enough for any vocabulary",
    "give a sample of it: lines drawn at random")  # fmt: skip
TRACE = Limit(
    100_000_000, "bytes", "trace.json",
    "300 000 requests have one of this size",
    "make the trace again with `draftconv trace`, of fewer prompts")  # fmt: skip
REPORT = Limit(
    100_000_000, "bytes", "report.json, and records.jsonl beside it",
    "a report on 10 000 requests has a tenth of it; it is held in memory whole",
    "write the report again, of fewer requests")  # fmt: skip
RUN = Limit(
    1_000_000, "bytes", "run.json, arm.json and server.json of a live run",
    "they have a kilobyte or two",
    "choose another directory; the run begins anew there")  # fmt: skip
ANSWERS = Limit(
    1_000_000_000, "bytes", "answers.jsonl of a live run",
    "30 000 texts of 4096 tokens have one of this size; it is held in memory whole",
    "choose another directory, and fewer prompts")  # fmt: skip

# ── the Hub ────────────────────────────────────────────────────────────────────────

HUB_LISTING = Limit(
    32_000_000, "bytes", "list of a repository's files",
    "100 000 files, as many as the Hub recommends at most, have one of this size",
    "download the repository and pass the directory")  # fmt: skip
HUB_REDIRECTS = Limit(
    5, "redirects", "addresses that the Hub sends on to, for one file",
    "it sends on once, to its storage",
    "try again later, or check HF_ENDPOINT")  # fmt: skip
HUB_SKIP = Limit(
    8 * 1024 * 1024, "bytes", "what is read and thrown away when a server answers a range with the whole file",
    "more would be a download",
    "download the repository first and pass the directory")  # fmt: skip
HUB_IDLE = Limit(
    30, "seconds", "wait for the next piece of an answer of the Hub",
    "a connection that is alive sends something within a second or two",
    "check the network and HF_ENDPOINT, and try again")  # fmt: skip
HUB_ANSWER = Limit(
    300, "seconds", "one answer of the Hub: a list of files, or a range of one",
    "ranges have 8 MB at most, which takes so long at 30 kB a second",
    "check the network and HF_ENDPOINT, and try again")  # fmt: skip

# ── engines ────────────────────────────────────────────────────────────────────────

ENGINE_BYTES = Limit(
    64_000_000, "bytes", "one answer of an engine",
    "a million token ids with their text",
    "look at the server's log")  # fmt: skip
ENGINE_IDLE = Limit(
    60, "seconds", "wait for the next piece of an answer that has begun",
    "engines send an answer whole, once it is there",
    "look at the server's log")  # fmt: skip
ENGINE_ANSWER = Limit(
    600, "seconds", "one answer of an engine, from the request to its last byte; --timeout says otherwise",
    "a text of 4096 tokens at seven tokens a second",
    "give it more time with --timeout, or look at the server's log")  # fmt: skip
ENGINE_FILE = Limit(
    300, "seconds", "wait for the file of hidden states of a request that was answered",
    "Kimi-K2 writes 43 kB a token",
    "see that the directory is on a disk that keeps up, and give the same command again: it goes on")  # fmt: skip
COUNTERS = Limit(
    30, "seconds", "wait for a server's counters to account for a text that was answered",
    "engines update them every few steps, and report them every ten seconds at most",
    "see that nobody else uses the server")  # fmt: skip
MACHINE = Limit(
    120, "seconds", "a program that tells what the machine is or which packages it has",
    "an import of an engine takes up to a minute",
    "run it by hand and see what it waits for")  # fmt: skip

LIMITS = {name: row for name, row in globals().copy().items() if isinstance(row, Limit)}
"""All rows by their names."""
