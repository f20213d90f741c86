"""A transformers model as the target: its text, and the residual stream taken by hooks.

The stream is read where the layers hand it on, never from `output_hidden_states`, whose last
entry is after the final norm. Generation is a loop of its own: `generate()` would mix in
what generation_config.json says (repetition penalties, forbidden tokens, other sampling).
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftconv.checkpoint import MemoryFile, TensorRef, show, show_some
from draftconv.errors import BadCheckpoint, Refused, UsageError
from draftconv.reference.devices import find_device
from draftconv.reference.processors import drawn, log_probs
from draftconv.reference.sampling import Sampling
from draftconv.traces.spool import BatchSpool
from draftconv.traces.trace import DTYPES
from draftconv.traces.writer import CapturedText

logger = logging.getLogger(__name__)

TOLERANCE: Mapping[torch.dtype, float] = {
    torch.float64: 1e-3,  # transformers computes norms and rotation in float32
    torch.float32: 1e-3,
    torch.bfloat16: 0.1,
    torch.float16: 0.1,
}
"""Relative distance of states, row by row and median over rows, that rounding may cause."""

PROBE = 16
"""Tokens that the self-check runs on."""

ROWS_AT_ONCE = 2048
"""Tokens of a batch in a forward pass: a prompt beyond them enters the target in blocks."""
PAIRS_AT_ONCE = 1 << 24
"""Tokens of a forward pass times tokens known to it: bounds masks, and scores where attention makes them."""


def transformers() -> Any:
    """The transformers library, imported when a target is run.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import transformers as library
    except ImportError as error:
        raise UsageError(
            "traces are made with transformers, which is not installed", cure="`pip install 'draftconv[target]'`"
        ) from error
    return library


def load_model(directory: Path, *, dtype: str | None, device: str | None, trust_remote_code: bool) -> nn.Module:
    """A causal LM from a local directory, with every weight from its files.

    Args:
        dtype: `float32` …; None means the checkpoint's own.
        device: None takes a GPU when there is one.

    Raises:
        BadCheckpoint: transformers cannot load it, or weights are missing, which it would invent.
        UsageError: it needs code of its own, or nothing is computed on the device. Refused: it has no text model.
    """
    place = find_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))  # before gigabytes are loaded
    library = transformers()
    if not sys.stderr.isatty():
        library.utils.logging.disable_progress_bar()
    options = {
        "dtype": dtype or "auto",
        "trust_remote_code": trust_remote_code,
        "local_files_only": True,
        "output_loading_info": True,
    }
    logger.info("loading the target %s with transformers %s", show(directory), library.__version__)
    try:
        try:
            model, info = library.AutoModelForCausalLM.from_pretrained(directory, **options)
        except ValueError as error:
            if "Unrecognized configuration class" not in str(error):
                raise
            model, info = library.AutoModelForImageTextToText.from_pretrained(directory, **options)
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        if "trust_remote_code" in str(error):
            raise UsageError(
                f"{show(directory.name)} is run by Python code of its own",
                why="that code could do anything on this machine",
                cure="read it, then pass --trust-remote-code; or use a target that transformers knows",
            ) from error
        raise BadCheckpoint(f"transformers cannot load {show(directory.name)}: {show(error)}") from error
    absent = sorted(map(str, {*info["missing_keys"], *info["mismatched_keys"]}))
    if absent:
        raise BadCheckpoint(
            f"{show(directory.name)} lacks {len(absent)} weights: {show_some(absent)}",
            why="transformers puts random numbers in their place",
            cure="download the target again, or pass one that its transformers class fits",
        )
    try:
        model.to(place)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"--device {device}: {show(error)}", cure="name a device that torch has and the target fits on"
        ) from error
    placed: nn.Module = model.eval()
    return placed.requires_grad_(False)


def find_layers(model: nn.Module, count: int) -> list[nn.Module]:
    """The decoder layers of the text model, in order.

    Raises:
        Refused: no list of `count` modules, or several, could be the layers.
    """
    decoder: nn.Module = getattr(model, "get_decoder", lambda: model)()
    lists = {
        name: list(module)
        for name, module in decoder.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    }
    # experts of a layer are a list too; the layers are not part of anything that repeats
    outer = {name: modules for name, modules in lists.items() if not any(name.startswith(f"{o}.") for o in lists)}
    if len(outer) != 1:
        raise Refused(
            f"{type(model).__name__}: {len(outer)} lists of {count} modules could be its decoder layers"
            + (f" ({show_some(outer)})" if outer else ""),
            why="states taken anywhere else would be those of another place",
            cure="make the trace with an engine that knows the model",
        )
    (layers,) = outer.values()
    return layers


@dataclass(slots=True)
class TransformersTarget:
    """A target that gives states; see `conversations.Capturer`.

    Attributes:
        layers: its decoder layers (`find_layers`).
        boundaries: ascending, 0…len(layers).
        eos: ids that end the counted text. `max_tokens`: where it ends at the latest.
        depth: tokens generated beyond the counted end.
        spool: an existing directory with room for the states of a batch, once a text is captured.
        sampling: how tokens are drawn; None takes the most likely.
    """

    model: nn.Module
    layers: Sequence[nn.Module]
    boundaries: tuple[int, ...]
    max_tokens: int
    depth: int
    eos: tuple[int, ...]
    spool: Path
    sampling: Sampling | None = None

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """What its states come in.

        Raises:
            Refused: no dtype that a trace holds.
        """
        dtype = getattr(self.model, "dtype", None)
        if not isinstance(dtype, torch.dtype) or dtype not in TOLERANCE:
            raise Refused(
                f"{type(self.model).__name__} computes in {dtype}",
                why=f"a trace holds {', '.join(DTYPES)}",
                cure=f"pass --dtype with one of {', '.join(DTYPES)}",
            )
        return dtype

    def table(self, name: str) -> TensorRef:
        """`embed_tokens` or `lm_head` as it was loaded, [V, W].

        Raises:
            Refused: the model does not say which of its tensors that is.
        """
        getter = {"embed_tokens": "get_input_embeddings", "lm_head": "get_output_embeddings"}[name]
        weight = getattr(getattr(self.model, getter, lambda: None)(), "weight", None)
        if not isinstance(weight, Tensor) or weight.dtype not in TOLERANCE:
            raise Refused(
                f"{type(self.model).__name__} does not say where its {name} is",
                why="drafters that ship none are replayed with it",
                cure="make the trace with an engine that knows the model",
            )
        data = weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        dtype = DTYPES[str(weight.dtype).removeprefix("torch.")]
        return TensorRef(f"{name}.weight", dtype, tuple(weight.shape), MemoryFile(name, data), 0, len(data))

    @torch.no_grad()
    def capture(self, prompts: Sequence[Sequence[int]], advance: Callable[[int], None]) -> list[CapturedText]:
        """See `conversations.Capturer`. Prompts of unequal length are padded on the left."""
        step_BT, mask_BT = self._pad(prompts)
        spool = BatchSpool(self.spool, [mask_BT.shape[1] - len(prompt) for prompt in prompts])
        run, choose = _BatchRun(self, mask_BT, spool.append), _chooser(self.sampling, prompts)
        counted: list[int | None] = [None] * len(prompts)
        chosen: list[list[int]] = []
        logprobs: list[Tensor] = []
        while None in counted or len(chosen) < max(end or 0 for end in counted) + self.depth:
            next_B, logprob_B = choose(run.feed(step_BT))
            chosen.append(next_B.tolist())
            logprobs += [] if logprob_B is None else [logprob_B]
            for i, token in enumerate(chosen[-1]):
                if counted[i] is None and (token in self.eos or len(chosen) == self.max_tokens):
                    counted[i] = len(chosen)
            step_BT = next_B[:, None]
            advance(len(prompts))
        texts = []
        for i, (prompt, end) in enumerate(zip(prompts, counted, strict=True)):
            length = (end or 0) + self.depth
            tokens = [*prompt, *(step[i] for step in chosen[:length])]
            spool.requests[i].cut(len(tokens) - 1)
            logprobs_N = torch.stack(logprobs[:length])[:, i].clone() if logprobs else None
            texts.append(CapturedText(len(prompt), end or 0, torch.tensor(tokens), spool.requests[i], logprobs_N))
        return texts

    @torch.no_grad()
    def check(self, prompt: Sequence[int], *, padded: bool) -> None:
        """Prove on a few tokens that the states are the residual stream, cached and padded as well as not.

        Args:
            prompt: any token ids; the first `PROBE` are used.
            padded: whether requests of unequal length will share a batch.

        Raises:
            Refused: the states are taken at another place, or depend on padding or on the cache.
        """
        long = (list(prompt) * PROBE)[:PROBE]
        self._check_place(long)
        short = long[PROBE // 3 :]
        together = [long, short] if padded else [long]
        step_BT, mask_BT = self._pad(together)
        states: list[Tensor] = []
        run, width = _BatchRun(self, mask_BT, states.append), mask_BT.shape[1]
        for start, stop in ((0, width - 2), (width - 2, width - 1), (width - 1, width)):
            run.feed(step_BT[:, start:stop])
        batched_BTAW = torch.cat(states, dim=1)
        for i, tokens in enumerate(together):
            states.clear()
            alone = _BatchRun(self, torch.ones(1, len(tokens), dtype=torch.int64, device=self.device), states.append)
            alone.feed(torch.tensor([tokens], device=self.device))
            wanted_TAW, found_TAW = states[0][0].double(), batched_BTAW[i, -len(tokens) :].double()
            error_TA = (found_TAW - wanted_TAW).norm(dim=-1) / wanted_TAW.norm(dim=-1).clamp(min=1e-30)
            for rows, what in ((error_TA[:-2], "padding"), (error_TA[-2:], "the key/value cache")):
                worst = float(rows.median(dim=0).values.max())
                if not worst <= TOLERANCE[self.dtype]:
                    raise Refused(
                        f"{type(self.model).__name__}: states change with {what}, by {worst:.2g} of their size",
                        why="requests would not be what the target does on its own",
                        cure="pass --batch 1" if padded else "make the trace with an engine that knows the model",
                    )

    def _check_place(self, tokens: Sequence[int]) -> None:
        """Hooks against what the model itself calls its hidden states, bit by bit, at every boundary below L."""
        count = len(self.layers)
        entered: dict[int, Tensor] = {}
        left: dict[int, Tensor] = {}
        with aux_layers(self.layers, range(count), entered), outputs(self.layers, range(count), left):
            output = self.model(
                input_ids=torch.tensor([tokens], device=self.device), output_hidden_states=True, use_cache=False
            )
        reported = output.hidden_states or ()
        wrong = [b for b in range(count) if b >= len(reported) or not torch.equal(entered[b], reported[b].cpu())]
        wrong += [b for b in range(1, count) if not torch.equal(entered[b], left[b - 1])]
        if len(reported) != count + 1 or wrong:
            raise Refused(
                f"{type(self.model).__name__}: what enters its layers is not what it calls its hidden states"
                + (
                    f", first at boundary {min(wrong)}"
                    if wrong
                    else f" ({len(reported)} of them, {count + 1} expected)"
                ),
                why="a drafter would be replayed on states that it was not trained on",
                cure="make the trace with an engine that knows the model",
            )

    def _pad(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, both int64 [B, T], padded on the left."""
        width = max(map(len, prompts))
        tokens = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        return torch.tensor(tokens, device=self.device), torch.tensor(mask, device=self.device)


def _chooser(
    sampling: Sampling | None, prompts: Sequence[Sequence[int]]
) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
    """From logits [B, V] to tokens [B] and, of drawn ones, their log p (float32 [B], on the CPU).

    A request draws by the seed and its own tokens, so its text does not depend on what shares its batch.
    """
    if sampling is None:
        return lambda logits_BV: (logits_BV.argmax(-1), None)
    generators = [torch.Generator().manual_seed(sampling.seed_of(prompt)) for prompt in prompts]

    def choose(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
        log_BV = log_probs(logits_BV, sampling)
        token_B = drawn(log_BV, generators)
        return token_B, log_BV.gather(-1, token_B[:, None])[:, 0].clamp(max=0).float().cpu()

    return choose


class _BatchRun:
    """One batch on its way: what was fed, and its key/value cache. States [B, T, A, W] are handed to `keep`."""

    def __init__(self, target: TransformersTarget, mask_BT: Tensor, keep: Callable[[Tensor], None]) -> None:
        self.target, self.mask_BT, self.keep = target, mask_BT, keep
        self._rows = 0
        self._cache: object = None
        self._accepts = inspect.signature(target.model.forward).parameters

    def feed(self, token_BT: Tensor) -> Tensor:
        """Append tokens; logits of the last one [B, V]."""
        *earlier, last_BT = torch.split(token_BT, _block(len(token_BT), self._rows + token_BT.shape[1]), dim=1)
        for block_BT in earlier:
            self._pass(block_BT)
        return self._pass(last_BT)

    def _pass(self, token_BT: Tensor) -> Tensor:
        """One forward pass over the next tokens, as `feed`."""
        start, self._rows = self._rows, self._rows + token_BT.shape[1]
        if self._rows > self.mask_BT.shape[1]:
            more = self.mask_BT.new_ones(len(token_BT), self._rows - self.mask_BT.shape[1])
            self.mask_BT = torch.cat((self.mask_BT, more), dim=1)
        mask_BS = self.mask_BT[:, : self._rows]
        extra: dict[str, object] = {}
        if "position_ids" in self._accepts:
            extra["position_ids"] = (mask_BS.cumsum(-1) - 1).clamp(min=0)[:, start:]
        if "logits_to_keep" in self._accepts:
            extra["logits_to_keep"] = 1
        stream: dict[int, Tensor] = {}
        with aux_layers(self.target.layers, self.target.boundaries, stream):
            output = self.target.model(
                input_ids=token_BT, attention_mask=mask_BS, past_key_values=self._cache, use_cache=True, **extra
            )
        self._cache = output.past_key_values
        self.keep(torch.stack([stream[b] for b in self.target.boundaries], dim=2))
        logits_BV: Tensor = output.logits[:, -1]
        return logits_BV


def _block(batch: int, known: int) -> int:
    """Tokens of each request that enter the target at once, of texts of `known` tokens in all."""
    return max(1, min(ROWS_AT_ONCE, PAIRS_AT_ONCE // known) // batch)


@contextmanager
def aux_layers(layers: Sequence[nn.Module], boundaries: Sequence[int], into: dict[int, Tensor]) -> Iterator[None]:
    """While open, a forward pass leaves the stream at each boundary in `into`: [B, T, W], copied to the CPU."""
    below = [b for b in boundaries if b < len(layers)]

    def enter(b: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            into[b] = _copy_to_cpu(args[0] if args else kwargs["hidden_states"])

        return hook

    last: dict[int, Tensor] = {}
    handles = [layers[b].register_forward_pre_hook(enter(b), with_kwargs=True) for b in below]
    try:
        with outputs(layers, [b - 1 for b in boundaries if b == len(layers)], last):
            yield
        into.update({b + 1: state for b, state in last.items()})
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def outputs(layers: Sequence[nn.Module], numbers: Sequence[int], into: dict[int, Tensor]) -> Iterator[None]:
    """While open, a forward pass leaves what each of these layers returns in `into`: [B, T, W]."""

    def leave(number: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            into[number] = _copy_to_cpu(output[0] if isinstance(output, tuple) else output)

        return hook

    handles = [layers[number].register_forward_hook(leave(number)) for number in numbers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _copy_to_cpu(state_BTW: Tensor) -> Tensor:
    """Out of reach of a layer that goes on to add to it in place."""
    return state_BTW.detach().to("cpu", copy=True)
