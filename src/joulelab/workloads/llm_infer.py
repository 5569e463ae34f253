"""Generate tokens by a language model: `python -m joulelab.workloads.llm_infer model=7b batch=8 prompt=512 length=128`.

Each GPU has the whole model and answers its own requests, a batch at a time: the prompt at once (prefill), which gives
the first token, then token by token (decode). Each token is brought to the host, as whoever asked wants to read it.
"""

from __future__ import annotations

import contextlib
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joulelab
from joulelab.core.errors import ConfigError
from joulelab.run.workload_registry import merge_parameters, read_pairs, read_whole_number, require_libraries
from joulelab.workloads.training.launch import become_ranks, run_workload
from joulelab.workloads.training.training_parameters import COMMON, check_common, read_choice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.workloads.training.ranks import Ranks

SUMMARY = "token generation by a Llama, with batch and lengths as knobs: energy per token"
STUDY = "ours"
NAME = "llm-infer"
_SHARED = ("device", "ranks", "nodes", "rendezvous", "threads", "seed", "deterministic")
PARAMETERS = {
    "model": ("7b", "7b or 13b (Llama 2 with random weights), tiny, or a folder with a model as transformers saves it"),
    "batch": ("8", "requests that are answered at once, by each GPU"),
    "prompt": ("512", "tokens of a request"),
    "length": ("128", "tokens of an answer; none ends earlier"),
    "repeats": ("16", "batches that each GPU answers"),
    "max_seconds": ("0", "stop after this many seconds; 0: no limit"),
    "dtype": ("auto", "bf16, fp16, tf32 or fp32; auto: bf16 on GPUs, fp32 on CPUs"),
    **{key: COMMON[key] for key in _SHARED},
}
PRESETS = {
    "full": {},
    "smoke": {
        "model": "tiny", "batch": "4", "prompt": "64", "length": "64", "repeats": "20", "max_seconds": "3",
        "device": "cpu", "threads": "1",
    },
}  # fmt: skip
NOTES = (
    "Prompts are random tokens. Answers are greedy, and always of the requested length: the same work each time.",
    "A token is one that is generated; those of prompts are counted as prompt_tokens.",
    "J/token of the whole run holds start-up, warm-up and the prompts too; that of decode has none of these.",
    "The first token of an answer comes with its prompt, and is no part of decode.",
    "With several GPUs the printed figures are of all of them together; first_token_s is their mean.",
    "FLOP = 2 x MAC, forward, counted on the meta device: the prompt, and each token at the length it has come to.",
    "Random weights do the same work as trained ones, but what a GPU draws depends somewhat on the figures too.",
    "Keys and values are stored in transformers' usual cache, which grows token by token.",
)
MODELS, DTYPES = ("7b", "13b", "tiny"), ("auto", "bf16", "fp16", "tf32", "fp32")
WARM_UP, END = 3, "end"


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a wrong value."""
    read(parameters)
    require_libraries(NAME, "torch", "transformers")
    words = [f"{key}={parameters[key]}" for key in PARAMETERS]
    return [sys.executable, "-m", "joulelab.workloads.llm_infer", *words]


@dataclass(frozen=True, slots=True)
class Asked:
    """Hold what is asked for: requests at once, tokens of a prompt and of an answer, how often, how long at most."""

    batch: int
    prompt: int
    length: int
    repeats: int
    max_seconds: float


def read(parameters: Mapping[str, str]) -> Asked:
    """Return what is asked for. Raises ConfigError."""
    read_choice(parameters, "dtype", DTYPES)
    common = {key: default for key, (default, _) in COMMON.items()}
    check_common(common | {key: parameters[key] for key in (*_SHARED, "max_seconds")})
    if parameters["device"] == "cpu":
        _check_dtype(parameters["dtype"], "cpu")
    if parameters["model"] not in MODELS and not Path(parameters["model"]).expanduser().is_dir():
        why, names = "there is no such folder", ", ".join(MODELS)
        raise ConfigError(f"model is {parameters['model']!r}", why=why, next=f"name a folder, or one of: {names}")
    counts = {
        key: read_whole_number(parameters, key, least=1, most=10**6) for key in ("batch", "prompt", "length", "repeats")
    }
    return Asked(**counts, max_seconds=float(parameters["max_seconds"]))


@dataclass(frozen=True, slots=True)
class Flop:
    """Hold the FLOP of one request: of its prompt, of the token after the first, and how much each next one adds."""

    prompt: int
    token: int
    more: int

    def of(self, number: int) -> int:
        """Return the FLOP of a token, counted from 1; the first comes with the prompt."""
        return self.prompt if number == 1 else self.token + (number - 2) * self.more

    def mean(self, length: int) -> float:
        """Return the mean FLOP of the tokens of an answer that come after the first."""
        return self.token + (length - 2) * self.more / 2 if length > 1 else 0.0


def count(described: Any, prompt: int) -> tuple[int, Flop]:
    """Count a model's parameters and the FLOP of one request, on the meta device: nothing is computed for it."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from joulelab.workloads.models import llama

    with torch.device("meta"), torch.no_grad():
        model = llama.build(described, torch.bfloat16)
        answer = Answer(model, torch.zeros(1, prompt, dtype=torch.long))
        found = []
        for _ in range(3):
            with FlopCounterMode(display=False) as counter:
                answer.forward()
            found.append(counter.get_total_flops())
    return sum(p.numel() for p in model.parameters()), Flop(found[0], found[1], found[2] - found[1])


class Answer:
    """Answer one batch of requests, token by token."""

    def __init__(self, model: Any, prompts: Any) -> None:
        from transformers import DynamicCache

        self._model, self._next = model, prompts
        self._cache = DynamicCache(config=model.config)

    def forward(self) -> Any:
        """Go through the model once: the prompts, then a token each; return the tokens that come next."""
        scores = self._model(input_ids=self._next, past_key_values=self._cache, use_cache=True, logits_to_keep=1).logits
        self._next = scores[:, -1:].argmax(-1)
        return self._next

    def tokens(self) -> Iterator[bytes]:
        """Return the tokens that are generated, on the host."""
        while True:
            yield self.forward().cpu().numpy().tobytes()


class Serving:
    """Hold a model and what is asked of it, on one GPU or the CPUs."""

    def __init__(self, given: Mapping[str, str], asked: Asked, ranks: Ranks) -> None:
        import torch

        from joulelab.workloads.models import llama

        self.asked, self.ranks = asked, ranks
        self._began = self._waited_s = 0.0
        self._prompts = self._tokens = self._output = 0
        self._stopped_by = END
        dtype = _dtype(given["dtype"], ranks)
        folder = None if given["model"] in MODELS else Path(given["model"]).expanduser()
        described = llama.described(folder) if folder else llama.config(llama.DECODERS[given["model"]])
        _check_length(described, asked)
        parameters, self.flop = ranks.find_once(lambda: count(described, asked.prompt))
        with ranks.device:
            built = llama.load(folder, dtype) if folder else llama.build(described, dtype)
        self.model = built.to(ranks.device).eval()
        random = torch.Generator().manual_seed(int(given["seed"]) * 1000 + ranks.rank)
        size = (asked.repeats, asked.batch, asked.prompt)
        self.prompts = torch.randint(described.vocab_size, size, generator=random)
        joulelab.fact(
            workload=NAME,
            data="random prompts",
            model=given["model"],
            weights="random" if folder is None else str(folder),
            parameters=parameters,
            flop_prompt=self.flop.prompt,
            flop_token=self.flop.mean(asked.length),
            flop_convention="FLOP = 2 x MAC, forward, for a request",
            device=ranks.device.type,
            ranks=ranks.count,
            threads=torch.get_num_threads(),
            dtype=str(dtype).removeprefix("torch.") if given["dtype"] != "tf32" else "tf32",
            **{key: getattr(asked, key) for key in ("batch", "prompt", "length")},
        )

    def run(self) -> None:
        """Answer all batches, or as many as there is time for; tell how it went."""
        with joulelab.phase("warm-up"):
            tokens = Answer(self.model, self.prompts[0].to(self.ranks.device)).tokens()
            for _ in range(WARM_UP):
                next(tokens)
            self.ranks.wait_for_all()
        self._began = time.monotonic()
        for batch, prompts in enumerate(self.prompts, 1):
            if batch > 1 and self._is_over():
                break
            self._answer(batch, prompts.to(self.ranks.device))
        self.ranks.wait_for_all()
        self._conclude()

    def _answer(self, n: int, prompts: Any) -> None:
        """Answer a batch; where time is over, it is left unfinished."""
        batch, length = self.asked.batch, self.asked.length
        tokens, began = Answer(self.model, prompts).tokens(), time.monotonic()
        with joulelab.phase("prefill", n=n):
            self._take(tokens, 1, prompt_tokens=batch * self.asked.prompt)
        self._waited_s += time.monotonic() - began
        self._prompts += 1
        if length > 1:
            with joulelab.phase("decode", n=n):
                for token in range(2, length + 1):
                    if self._is_over():
                        break
                    self._take(tokens, token)

    def _take(self, tokens: Iterator[bytes], number: int, **more: float) -> None:
        """Take a token of each answer, and report it; with the last one, the requests are answered."""
        batch = self.asked.batch
        self._output = zlib.crc32(next(tokens), self._output)
        self._tokens += batch
        if number == self.asked.length:
            more["requests"] = batch
        joulelab.step(tokens=batch, FLOP=self.flop.of(number) * batch, **more)

    def _is_over(self) -> bool:
        if 0 < self.asked.max_seconds <= time.monotonic() - self._began:
            self._stopped_by = "max_seconds"
        return self._stopped_by != END

    def _conclude(self) -> None:
        """Tell figures of all ranks together."""
        took_s, cut = time.monotonic() - self._began, self._stopped_by != END
        own = {"tokens": self._tokens, "waited_s": self._waited_s, "prompts": self._prompts, "cut": cut}
        all_of = self.ranks.sum_amounts({**own, "output": self._output})
        stopped_by, first_s = "max_seconds" if all_of["cut"] else END, all_of["waited_s"] / all_of["prompts"]
        joulelab.fact(
            stopped_by=stopped_by, first_token_s=first_s, answers_crc=f"{int(all_of['output']) % (1 << 32):08x}"
        )
        if self.ranks.is_first:
            tokens = int(all_of["tokens"])
            text = f"tokens {tokens} (until {stopped_by}), {tokens / took_s:.4g} tokens/s"
            sys.stdout.write(f"{text}, first token after {first_s:.3g} s\n")
            sys.stdout.flush()


def _check_dtype(asked: str, device: str) -> None:
    """Refuse what a device does not have: what is computed with is what is told. Raises ConfigError."""
    if asked == "tf32" and device == "cpu":
        raise ConfigError("dtype is 'tf32'", why="CPUs do not have it", next="give dtype=fp32 or bf16")


def _dtype(asked: str, ranks: Ranks) -> Any:
    import torch

    if asked == "auto":
        return torch.bfloat16 if ranks.device.type == "cuda" else torch.float32
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(asked, torch.float32)


def _check_length(described: Any, asked: Asked) -> None:
    """Refuse texts that are longer than the model is made for. Raises ConfigError."""
    most, whole_text = getattr(described, "max_position_embeddings", None), asked.prompt + asked.length
    if most is not None and whole_text > most:
        why = f"prompt and length make {whole_text} tokens, the model takes {most}"
        raise ConfigError("the texts are too long", why=why, next="make one of them shorter")


def serve(given: Mapping[str, str], asked: Asked) -> None:
    """Answer requests, as one of the ranks. Raises ConfigError for what cannot be done."""
    with contextlib.ExitStack() as stack:
        with joulelab.phase("set-up"):
            import torch

            from joulelab.workloads.training.ranks import join_ranks

            _check_dtype(given["dtype"], "cuda" if given["device"] != "cpu" and torch.cuda.device_count() else "cpu")
            stack.enter_context(_enough_memory(torch.OutOfMemoryError))
            stack.enter_context(torch.inference_mode())
            ranks = stack.enter_context(join_ranks({**given, "precision": given["dtype"]}))
            serving = Serving(given, asked, ranks)
        serving.run()


@contextlib.contextmanager
def _enough_memory(too_little: type[Exception]) -> Iterator[None]:
    try:
        yield
    except too_little as error:
        raise ConfigError("there is not enough memory", why=str(error), next="choose a smaller batch") from error


def main(words: Sequence[str] | None = None) -> int:
    """Generate as words ask for (those of this program unless given); return the exit code."""
    words = sys.argv[1:] if words is None else words

    def run() -> None:
        given = merge_parameters(NAME, PARAMETERS, read_pairs(words, where=NAME), PRESETS)
        asked = read(given)
        require_libraries(NAME, "torch", "transformers")
        become_ranks(given, words)
        serve(given, asked)

    return run_workload(NAME, run)


if __name__ == "__main__":
    sys.exit(main())
