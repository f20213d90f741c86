"""What is broken, and which commands get it: a row per mutator, each a function of seeds and a random source."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzzing.breaking import MARKER, broken_bytes, broken_document, broken_yaml
from fuzzing.case import Case, Command
from fuzzing.seeds import DRAFTERS, ROOT, Seeds

CONFIG, WEIGHTS, RECORD, TRACE = "config.json", "model.safetensors", "draftconv.json", "trace.json"
INDEX = "model.safetensors.index.json"
ENGINES = ("vllm", "sglang", "trtllm")
CONVERTED = ("vllm", "portable", "sglang-mla")
QUANTIZED = ("w4a16", "fp8", "quark")
EVERY = (*DRAFTERS, *CONVERTED, *QUANTIZED, "sharded")


@dataclass(frozen=True, slots=True)
class Broken:
    """What a mutator makes of a seed.

    Attributes:
        files: below `{in}`, in place of the seed's. `seed`: whose other files lie beside them; "" is none.
    """

    seed: str
    files: Mapping[str, bytes]
    commands: tuple[Command, ...]
    served: bool = False


@dataclass(frozen=True, slots=True)
class Mutator:
    """One kind of broken input. `seeds`: what it and its commands start from. `torch`: its commands compute."""

    name: str
    breaks: Callable[[Random, Seeds], Broken]
    seeds: tuple[str, ...]
    torch: bool = False

    def case(self, seed: int, number: int, seeds: Seeds) -> Case:
        """The input of a number: the same one for the same seed."""
        broken = self.breaks(Random(f"{seed} {self.name} {number}"), seeds)
        beside = {}
        if broken.seed:
            path = seeds.path(broken.seed)
            beside = {name: path / name for name in seeds.files(broken.seed) if name not in broken.files}
        return Case(self.name, seed, number, broken.files, broken.commands, beside, broken.served)


# ── checkpoints ────────────────────────────────────────────────────────────────────


def checkpoint_commands(random: Random, seed: str) -> tuple[Command, ...]:
    """The ways in which a drafter is looked at: `inspect` always, some of the others."""
    target = random.choice((("--target", "{seed:llama}"), ("--target", "kimi-k2.5"), ("--target-layers", "8"), ()))
    engine = random.choice(ENGINES)
    deep = ("--deep",) * (random.random() < 0.3)
    shown = ("--format", "json") * (random.random() < 0.5)
    forced = ("--accept-detected",) * (random.random() < 0.5)
    every = tuple(part for name in ENGINES for part in ("--for", name))
    commands: list[Command] = [("inspect", "{in}", *every, *target, *deep, *shown)]
    rest: Sequence[Command] = (
        ("convert", "{in}", "{out}", "--to", random.choice((*ENGINES, "portable", "specforge")), *target, *forced),
        ("convert", "{in}", "{out}", "--dry-run", "--dequantize", *target, *forced),
        ("diff", "{in}", f"{{seed:{seed}}}", *target),
        ("verify", "{in}", "--against", f"{{seed:{seed}}}", *target, *forced),
        ("verify", f"{{seed:{seed}}}", "--against", "{in}", *target, *forced),
        ("quantize", "{in}", "{out}", "--recipe", random.choice(("w4a16", "fp8", "w4a8")), "--for", engine, "--dry-run",
         *target, *forced),
        ("serve", "{in}", "--for", engine, "--target", "kimi-k2.5", *forced),
        ("push", "{in}", "owner/name", "--dry-run"),
    )  # fmt: skip
    chosen = random.sample(rest, 2)
    for command in chosen:
        commands.append(command)
        if command[:3] == ("convert", "{in}", "{out}") and "--dry-run" not in command:
            commands.append(("@verify", "{in}", *target, *forced))
    return tuple(commands)


def config(random: Random, seeds: Seeds) -> Broken:
    """config.json, and what else is JSON beside it."""
    seed = random.choice(EVERY)
    jsons = [name for name in seeds.files(seed) if name.endswith(".json") and name not in (RECORD, INDEX)]
    name = random.choice(jsons)
    data = broken_document(random, json.loads(seeds.read(seed, name)))
    return Broken(seed, {name: data}, checkpoint_commands(random, seed))


def header(random: Random, seeds: Seeds) -> Broken:
    """The header of a safetensors file, its length, or the bytes behind it."""
    seed = random.choice(tuple(name for name in EVERY if name != "sharded"))
    raw = seeds.read(seed, WEIGHTS)
    (length,) = struct.unpack("<Q", raw[:8])
    document, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    match random.randrange(6):
        case 0:
            head = broken_bytes(random, raw[8 : 8 + length])
        case 1:
            head, data = raw[8 : 8 + length], broken_bytes(random, data[:4096]) + data[4096:]
        case 2:  # other values, the same size: maps, NaN and the like
            spoiled = bytearray(data)
            entry = document[random.choice([name for name in document if name != "__metadata__"])]
            start, stop = entry["data_offsets"]
            fill = random.choice((b"\xff", b"\x00", b"\x7f\x80", b"\x01", random.randbytes(64)))
            spoiled[start:stop] = (fill * ((stop - start) // len(fill) + 1))[: stop - start]
            head, data = raw[8 : 8 + length], bytes(spoiled)
        case 3:  # renamed tensors, whose bytes are right
            names = [name for name in document if name != "__metadata__"]
            for name in random.sample(names, random.choice((1, 2, len(names)))):
                document[_renamed(random, name)] = document.pop(name)
            head = json.dumps(document).encode()
        case _:
            head = broken_document(random, document)
    claimed = random.choice((0, 1, len(raw), 2**63, 2**64 - 1, 10**8 + 1)) if random.random() < 0.05 else len(head)
    return Broken(seed, {WEIGHTS: struct.pack("<Q", claimed) + head + data}, checkpoint_commands(random, seed))


def _renamed(random: Random, name: str) -> str:
    other = random.choice(("layers.1.", "layers.0.", "model.", "midlayer.", "layers.9999.", "draft_model.", ""))
    tail = name.rpartition("layers.0.")[2]
    suffix = random.choice(("", "", ".weight", "_scale", ".qweight", ".weight_packed", ".weight_shape", "x" * 1100))
    return random.choice((other + tail + suffix, name + suffix, "d2t", "t2d", other * 500 + tail))


def index(random: Random, seeds: Seeds) -> Broken:
    """The index of sharded weights."""
    data = broken_document(random, json.loads(seeds.read("sharded", INDEX)))
    return Broken("sharded", {INDEX: data}, checkpoint_commands(random, "sharded"))


def pickle(random: Random, seeds: Seeds) -> Broken:
    """A .bin file: its zip archive, or the pickle in it, with a payload or without."""
    raw = seeds.read("bin", "pytorch_model.bin")
    if random.random() < 0.4:
        ends = max(0, len(raw) - 4096)
        broken = broken_bytes(random, raw[:2048]) + raw[2048:] if random.random() < 0.5 else None
        data = broken or raw[:ends] + broken_bytes(random, raw[ends:])
    else:
        data = _repacked(random, raw)
    return Broken("bin", {"pytorch_model.bin": data}, checkpoint_commands(random, "bin"))


PAYLOADS = (
    f"cposix\nsystem\n(S'touch {MARKER}'\ntR.".encode(),
    b"c__builtin__\neval\n(S'open(\"" + MARKER.encode() + b"\", \"w\")'\ntR.",
    b"cbuiltins\nexec\n(X\x10\x00\x00\x00import os; os.x()tR.",
    b"ctorch._utils\n_rebuild_tensor\n(tR.", b"ccollections\nOrderedDict\n)R.", b"(lp0\n.", b"I1\n.", b"(d.", b"N.",
    b"\x80\x02}q\x00(" + b"(" * 5000 + b"tu.",
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", b"]" + b"]a" * 3000 + b".",
    b"\x80\x02\x8b\xff\xff\xff\x7f.", b"X\xff\xff\xff\xff.",
)  # fmt: skip


def _repacked(random: Random, raw: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for member in source.infolist():
            data = source.read(member)
            if member.filename.endswith("/data.pkl"):
                at = random.randrange(len(data))
                payload = random.choice(PAYLOADS)
                data = random.choice((payload, data[:2] + payload[:-1] + data[2:], data[:at] + payload[:-1] + data[at:],
                                      broken_bytes(random, data), broken_bytes(random, data)))  # fmt: skip
            elif random.random() < 0.02:
                data = broken_bytes(random, data)
            archive.writestr(member.filename, data)
    return out.getvalue()


def record(random: Random, seeds: Seeds) -> Broken:
    """draftconv.json; half the time sealed again, so that it is believed."""
    seed = random.choice((*CONVERTED, *QUANTIZED))
    data = broken_document(random, json.loads(seeds.read(seed, RECORD)))
    if random.random() < 0.5:
        data = _sealed(seeds.path(seed), data)
    again: Command = ("convert", "{in}", "{out}", "--to", random.choice((*ENGINES, "torchspec", "portable")))
    against: Command = ("verify", "{in}", "--against", "{seed:llama-eagle3.1}")
    return Broken(seed, {RECORD: data}, (again, ("@verify", "{in}"), against, *checkpoint_commands(random, seed)[:2]))


def _sealed(path: Path, data: bytes) -> bytes:
    """The record with the digest that belongs to it, where it is still one."""
    from draftconv.checkpoint import open_checkpoint
    from draftconv.conversion.provenance import output_digest

    try:
        document = json.loads(data)
        checkpoint = open_checkpoint(path)
        document["output"] = output_digest(checkpoint.tensors, checkpoint.config, document)
        return json.dumps(document).encode("utf-8", "surrogatepass")
    except (ValueError, TypeError, RecursionError):
        return data


# ── what people write ──────────────────────────────────────────────────────────────


def recipe(random: Random, _: Seeds) -> Broken:
    """A recipe."""
    name = random.choice(sorted(path.name for path in (ROOT / "recipes").glob("*.yaml") if path.stem != "targets"))
    data = _broken_yaml(random, ROOT / "recipes" / name)
    seed, engine = random.choice(DRAFTERS), random.choice(ENGINES)
    quantize = ("quantize", f"{{seed:{seed}}}", "{out}", "--recipe", "{in}/own.yaml", "--for", engine, "--dry-run",
                "--target", "{seed:llama}")  # fmt: skip
    return Broken("", {"own.yaml": data}, (("recipes", "{in}/own.yaml"), quantize))


def _broken_yaml(random: Random, path: Path) -> bytes:
    """Its text broken, or its document, which is written as JSON then: YAML takes that too."""
    import yaml

    text = path.read_text(encoding="utf-8")
    return broken_yaml(random, text) if random.random() < 0.5 else broken_document(random, yaml.safe_load(text))


def profile(random: Random, _: Seeds) -> Broken:
    """A hardware profile."""
    name = random.choice(sorted(path.name for path in (ROOT / "recipes/profiles").glob("*.yaml")))
    data = _broken_yaml(random, ROOT / "recipes/profiles" / name)
    plan = ("parity", "{seed:llama-eagle3.1}", "{seed:llama-eagle3}", "--profile", "{in}/own.yaml", "--dry-run",
            "--target", "{seed:llama}")  # fmt: skip
    return Broken("", {"own.yaml": data}, (("recipes", "{in}/own.yaml"), ("recipes", "{in}/own.yaml", *_JSON), plan))


_JSON = ("--format", "json")


def prompts(random: Random, _: Seeds) -> Broken:
    """A file of prompts; no target is run, since the machine to run it on is not there."""
    good: Sequence[object] = (
        "Write a poem.", [1, 2, 3], {"prompt": "Hello"}, {"turns": ["a", "b"], "id": 7, "category": "x"},
        {"messages": [{"role": "user", "content": "c"}]}, {"token_ids": [5, 6], "id": "q"},
    )  # fmt: skip
    entries = [random.choice(good) for _ in range(4)]
    if random.random() < 0.5:
        name, data = "p.json", broken_document(random, entries)
    else:
        name, data = "p.jsonl", b"\n".join(broken_document(random, entry) for entry in entries)
    trace = ("trace", "--target", "{seed:llama}", "--prompts", f"{{in}}/{name}", "--out", "{out}", "--max-tokens", "1",
             "--device", "nowhere")  # fmt: skip
    return Broken("", {name: data}, (trace,))


def texts(random: Random, _: Seeds) -> Broken:
    """Texts, conversations, logs and token ids to count; without a target, so that text is refused once it is read."""
    asked, said = {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}
    good: Sequence[object] = (
        [1, 2, 3], {"token_ids": [5, 6]}, {"choices": [{"token_ids": [7]}], "messages": [asked]}, "a text",
        {"request": {"messages": [asked]}, "response": {"body": {"choices": [{"message": said}]}}},
        {"messages": [asked, said]}, {"conversations": [{"from": "gpt", "value": "e"}]},
    )  # fmt: skip
    entries = [random.choice(good[: random.choice((3, len(good)))]) for _ in range(6)]
    if random.random() < 0.3:
        name, data = "c.json", broken_document(random, entries)
    else:
        lines = (broken_document(random, e) if random.random() < 0.2 else json.dumps(e).encode() for e in entries)
        name, data = "c.jsonl", b"\n".join(lines)
    weight = random.choice(("", "", "", "code=2:", *(f"code={odd}:" for odd in ("0", "nan", "-1", "1e400", "x", ""))))
    prune = ("prune", "{seed:llama-eagle3}", "{out}", "--vocab", "64", "--counts", f"{weight}{{in}}/{name}", "--keep",
             "0", "--force")  # fmt: skip
    return Broken("", {name: data}, (prune, ("@verify", "{seed:llama-eagle3}")))


def trace(random: Random, seeds: Seeds) -> Broken:
    """A trace: its index, or the file of a request."""
    name = random.choice([name for name in seeds.files("trace") if name != "tokenizer.json"])
    raw = seeds.read("trace", name)
    if name == TRACE:
        data = broken_document(random, json.loads(raw))
    else:
        (length,) = struct.unpack("<Q", raw[:8])
        if random.random() < 0.5:
            head = broken_document(random, json.loads(raw[8 : 8 + length]))
            data = struct.pack("<Q", len(head)) + head + raw[8 + length :]
        else:
            data = broken_bytes(random, raw)
    replay = ("parity", "{seed:llama-eagle3.1}", "{seed:llama-eagle3}", "--trace", "{in}", *_JSON)
    return Broken("trace", {name: data}, (replay,))


# ── what servers answer ────────────────────────────────────────────────────────────

SHA = "0123456789abcdef0123456789abcdef01234567"
PORTAL = b"<!doctype html><html><body>Please log in</body></html>"
ODD = (b"", b"[]", b"null", b"{}", b"1", b'"x"', PORTAL, b"\xff\xfe", b"[" * 50_000, b'{"siblings": null}', b"NaN")
"""Answers of what is no Hub or engine."""


def listing(files: Mapping[str, bytes]) -> dict[str, object]:
    """A repository with these files, and their true hashes."""
    siblings: list[dict[str, object]] = []
    for name, data in files.items():
        sha256 = hashlib.sha256(data).hexdigest()
        large = (
            {"lfs": {"sha256": sha256, "size": len(data), "pointerSize": 130}} if name.endswith(".safetensors") else {}
        )
        git_id = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        siblings.append({"rfilename": name, "size": len(data), "blobId": git_id, **large})
    return {"id": "owner/name", "modelId": "owner/name", "sha": SHA, "private": True, "siblings": siblings}


def hub(random: Random, seeds: Seeds) -> Broken:
    """The Hub: its list of files, a file, or all of its answers."""
    seed = random.choice((*DRAFTERS[:2], "vllm", "sharded"))
    files = {name: seeds.read(seed, name) for name in seeds.files(seed)}
    answers = {"listing": json.dumps(listing(files)).encode(), "status": b"200"}
    match random.randrange(5):
        case 0:
            answers["everything"] = random.choice(ODD)
        case 1:
            status = random.choice((401, 403, 404, 429, 500, 503, 204, 302, 299))
            answers |= {"status": str(status).encode(), "listing": random.choice(ODD)}
        case 2:
            name = random.choice(sorted(files))
            broken = broken_bytes(random, files[name][:100_000])
            answers[f"files/{name}"] = broken
            if random.random() < 0.7:  # else it is another file than the one that is listed
                answers["listing"] = json.dumps(listing(files | {name: broken})).encode()
        case _:
            answers["listing"] = broken_document(random, listing(files))
    answers = {f"files/{name}": data for name, data in files.items()} | answers
    commands: Sequence[Command] = (
        ("inspect", "hf://owner/name"),
        ("convert", "hf://owner/name", "{out}", "--target-layers", "8"),
        ("diff", "hf://owner/name", "{seed:llama-eagle3}"),
        ("verify", "{seed:vllm}", "--against", "hf://owner/name"),
        ("push", "{seed:vllm}", "owner/name"),
        ("push", "{seed:vllm}", "owner/name", "--create-pr", "--revision", "v2"),
        ("serve", "{seed:vllm}", "--for", "vllm", "--target", "owner/name"),
        ("trace", "--target", "owner/name", "--prompts", "{seed:llama}/../p.json", "--out", "{out}"),
    )
    return Broken("", answers, tuple(random.sample(commands, 3)), served=True)


def engine(random: Random, seeds: Seeds) -> Broken:
    """An engine: one of its answers, or all of them."""
    name = random.choice(ENGINES)
    answers = {file.partition("/")[2]: seeds.read("engines", file) for file in seeds.files("engines")
               if file.startswith(f"{name}/")}  # fmt: skip
    asked = random.choice(sorted(answers))
    match random.randrange(6):
        case 0:
            answers = dict.fromkeys(answers, random.choice(ODD))
        case 1:
            answers[asked] = random.choice(ODD)
        case _:
            try:
                answers[asked] = broken_document(random, json.loads(answers[asked]))
            except ValueError:  # counters, which are no JSON
                answers[asked] = broken_bytes(random, answers[asked])
    return Broken("", answers, (("@engine", name),), served=True)


MUTATORS: Mapping[str, Mutator] = {
    mutator.name: mutator
    for mutator in (
        Mutator("config", config, (*EVERY, "llama"), torch=True),
        Mutator("header", header, (*EVERY, "llama"), torch=True),
        Mutator("index", index, ("sharded", "llama"), torch=True),
        Mutator("pickle", pickle, ("bin", "llama"), torch=True),
        Mutator("record", record, (*CONVERTED, *QUANTIZED, "llama", "llama-eagle3.1"), torch=True),
        Mutator("recipe", recipe, (*DRAFTERS, "llama")),
        Mutator("profile", profile, ("llama-eagle3.1", "llama-eagle3", "llama")),
        Mutator("prompts", prompts, ("llama",)),
        Mutator("texts", texts, ("llama-eagle3",)),
        Mutator("trace", trace, ("trace", "llama-eagle3.1", "llama-eagle3"), torch=True),
        Mutator("hub", hub, (*DRAFTERS[:2], "vllm", "sharded", "llama")),
        Mutator("engine", engine, ("engines",)),
    )
}
