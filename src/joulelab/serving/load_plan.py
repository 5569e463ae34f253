"""Plan a load on an inference server: when each request is due, and what it asks for. Pure: no clock, no network."""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import json
import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

Api = Literal["chat", "completions"]
Arrivals = Literal["poisson", "fixed"]
LevelKind = Literal["rate", "concurrency", "trace"]
# Words of three letters: with the space before it, each is one token of most tokenizers, and of the twin.
WORD_LIST = (
    "air all and arm art ask bad bag bar bed big bit box boy bus buy can car cat cup cut day dog dry eat egg end eye "
    "far fat few fit fix fly for fun get god got gun hat her him his hit hot how ice its job key kid law lay leg let "
    "lie lot low man map may men mix net new not now off oil old one our out own pay pen put ran red row run sad say "
    "sea see set she sir sit six sky son sun tax tea ten the tie too top toy two use war way wet who why win yes you"
)
WORDS = WORD_LIST.split()
# Names of columns in traces: of joulelab, of Azure's LLM inference traces (CSV), of Mooncake's (JSONL).
TRACE_TIMES = {"t": 1.0, "time": 1.0, "TIMESTAMP": 1.0, "timestamp": 1e-3}  # s per unit; Mooncake has ms
TRACE_PROMPTS = ("prompt_tokens", "ContextTokens", "input_length")
TRACE_OUTPUTS = ("output_tokens", "GeneratedTokens", "output_length")
MOST_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Hold mean and spread (standard deviation) of a number of tokens."""

    mean: float
    spread: float = 0.0

    @classmethod
    def parse(cls, text: str, where: str) -> TokenLengths:
        """Read `200` or `200:50`. Raises ConfigError."""
        try:
            mean, spread = (float(part) for part in (text.split(":") if ":" in text else (text, "0")))
        except ValueError:
            mean = spread = math.nan
        if not (1 <= mean <= MOST_TOKENS and 0 <= spread <= MOST_TOKENS):
            raise ConfigError(
                f"{text!r} is no number of tokens", where=where, next="write MEAN or MEAN:SPREAD, such as 200:50",
                code="config.token-lengths",
            )  # fmt: skip
        return cls(mean, spread)

    def draw_length(self, rng: random.Random) -> int:
        """Return a number of tokens, at least 1."""
        return max(round(rng.gauss(self.mean, self.spread)), 1)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Hold what a request asks for: a text, or the messages of a chat; `output_tokens` is its longest answer."""

    text: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    output_tokens: int | None = None
    id: str = ""
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def make_body(self, api: Api) -> dict[str, Any]:
        """Return the part of the request's body that depends on the prompt."""
        body: dict[str, Any] = {}
        if api == "chat":
            body["messages"] = list(self.messages) or [{"role": "user", "content": self.text}]
        else:
            body["prompt"] = self.text
        if self.output_tokens is not None:
            body["max_tokens"] = self.output_tokens
        return body | ({"user": self.user} if self.user else {})

    def list_labels(self) -> dict[str, str]:
        """Return the labels of its request; `user` is one of them."""
        return {**({"user": self.user} if self.user else {}), **self.labels}


@dataclass(frozen=True, slots=True)
class Arrival:
    """Hold a request that is due `at_s` after the begin of its step; lengths where a trace gives them."""

    at_s: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """Describe one step of a load: requests/s, requests at a time, or a trace of arrivals."""

    kind: LevelKind
    value: float = 0.0
    arrivals: Arrivals = "poisson"
    trace: tuple[Arrival, ...] = ()

    @property
    def title(self) -> str:
        """Return its name: `rate 4`."""
        return self.kind if self.kind == "trace" else f"{self.kind} {self.value:g}"

    @property
    def is_closed(self) -> bool:
        """Return whether a request is sent when another one has ended."""
        return self.kind == "concurrency"

    def list_arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        """Yield the arrivals in order: those of a trace, else without an end."""
        if self.kind == "trace":
            yield from self.trace
            return
        at_s = 0.0
        for number in itertools.count(1):
            at_s = number / self.value if self.arrivals == "fixed" else at_s + rng.expovariate(self.value)
            yield Arrival(at_s)


def parse_levels(kind: Literal["rate", "concurrency"], text: str, arrivals: Arrivals = "poisson") -> list[LoadLevel]:
    """Read `1,2,4`. Raises ConfigError."""
    levels = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 < value < 1e6 or (kind == "concurrency" and value != int(value)):
            want = "whole numbers above 0" if kind == "concurrency" else "numbers above 0"
            raise ConfigError(
                f"{part.strip()!r} is no {kind}", where=f"--{kind}", next=f"write {want}, such as 1,2,4",
                code="config.load-level",
            )  # fmt: skip
        levels.append(LoadLevel(kind, value, arrivals))
    return levels


class PromptSource:
    """Give the prompts of a load one after the other: those of a file again and again, or drawn ones."""

    def __init__(
        self, prompts: Sequence[Prompt] = (), lengths: tuple[TokenLengths, TokenLengths] | None = None
    ) -> None:
        self._prompts = itertools.cycle(prompts) if prompts else None
        self._lengths = lengths or (TokenLengths(200), TokenLengths(100))

    def next_prompt(self, rng: random.Random, arrival: Arrival) -> Prompt:
        """Return the next prompt; the lengths of a trace apply to drawn ones."""
        if self._prompts is not None:
            prompt = next(self._prompts)
            if prompt.output_tokens is not None:
                return prompt
            wanted = arrival.output_tokens or self._lengths[1].draw_length(rng)
            return Prompt(prompt.text, prompt.messages, wanted, prompt.id, prompt.user, prompt.labels)
        tokens = arrival.prompt_tokens or self._lengths[0].draw_length(rng)
        outputs = arrival.output_tokens or self._lengths[1].draw_length(rng)
        return Prompt(make_text(rng, tokens), output_tokens=outputs)


def make_text(rng: random.Random, tokens: int) -> str:
    """Return random words, about one token each; no two texts begin alike, so that no server finds one in its cache."""
    return " ".join(rng.choices(WORDS, k=tokens)) + " "


def read_prompts(path: Path, api: Api) -> list[Prompt]:
    """Read a file of prompts, one object of JSON a line. Raises ConfigError with the line's number."""
    prompts = [_read_prompt(line, where, api) for where, line in _read_lines(path)]
    if not prompts:
        raise ConfigError("the file has no prompts", where=str(path), code="config.no-prompts")
    return prompts


def _read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("cannot read the file", where=str(path), why=str(error), code="config.unreadable") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield where, json.loads(line)
            except ValueError as error:
                raise ConfigError("a line is not JSON", where=where, why=str(error), code="config.not-json") from error


def _read_prompt(line: Any, where: str, api: Api) -> Prompt:
    def refuse(what: str, then: str) -> ConfigError:
        return ConfigError(what, where=where, next=then, code="config.no-prompt")

    if isinstance(line, str):
        line = {"prompt": line}
    if not isinstance(line, dict):
        raise refuse("this is no prompt", 'write {"prompt": "..."} or {"messages": [...]}')
    text, messages = line.get("prompt", ""), line.get("messages", [])
    has_messages = isinstance(messages, list) and bool(messages) and all(isinstance(one, dict) for one in messages)
    if not isinstance(text, str) or bool(text) == has_messages:
        raise refuse("this is no prompt", 'write {"prompt": "..."} or {"messages": [...]}')
    if has_messages and api == "completions":
        raise refuse("messages are for chats", 'leave out --api completions, or write {"prompt": "..."}')
    outputs = line.get("output_tokens", line.get("max_tokens"))
    if outputs is not None and (isinstance(outputs, bool) or not isinstance(outputs, int) or outputs < 1):
        raise refuse(f"output_tokens is {outputs!r}", "write a whole number above 0")
    labels = line.get("labels") or {}
    if not isinstance(labels, dict):
        raise refuse("labels is no object of JSON", 'write {"labels": {"team": "a"}}')
    named = {str(name): str(value) for name, value in labels.items()}
    return Prompt(text, messages, outputs, str(line.get("id", "")), str(line.get("user", "")), named)


def read_trace(path: Path) -> LoadLevel:
    """Read arrivals: JSONL, or CSV with a header; times from the first one on. Raises ConfigError.

    Times are s (`t`), ms (`timestamp`, as Mooncake has them) or dates (`TIMESTAMP`, as Azure has them).
    """
    rows = list(_read_lines(path)) if path.suffix.lower() in (".jsonl", ".json") else list(_read_table(path))
    if not rows:
        raise ConfigError("the trace is empty", where=str(path), code="config.no-trace")
    arrivals = [_read_arrival(where, row) for where, row in rows]
    first_s = min(arrival.at_s for arrival in arrivals)
    moved = [Arrival(one.at_s - first_s, one.prompt_tokens, one.output_tokens) for one in arrivals]
    return LoadLevel("trace", trace=tuple(sorted(moved, key=lambda one: one.at_s)))


def _read_table(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                yield f"{path}, line {number}", row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError("cannot read the file", where=str(path), why=str(error), code="config.unreadable") from error


def _read_arrival(where: str, row: Any) -> Arrival:
    if not isinstance(row, dict):
        row = {}
    name = next((name for name in TRACE_TIMES if name in row), "t")
    try:
        at_s = _read_time_s(row.get(name), TRACE_TIMES[name])
        prompt, output = (_find_tokens(row, names) for names in (TRACE_PROMPTS, TRACE_OUTPUTS))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "this is no arrival of a trace", where=where, why=str(error),
            next='write {"t": 0.5, "prompt_tokens": 200, "output_tokens": 100}', code="config.no-arrival",
        ) from error  # fmt: skip
    return Arrival(at_s, prompt, output)


def _read_time_s(value: Any, unit_s: float) -> float:
    if value is None:
        raise ValueError("it has no time: t (s)")
    try:
        seconds = float(value) * unit_s
    except ValueError:
        seconds = dt.datetime.fromisoformat(str(value)[:26]).replace(tzinfo=dt.UTC).timestamp()
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} is no time")
    return seconds


def _find_tokens(row: Mapping[str, Any], names: Sequence[str]) -> int | None:
    value = next((row[name] for name in names if row.get(name) not in (None, "")), None)
    if value is None:
        return None
    tokens = float(value)
    if not 0 < tokens <= MOST_TOKENS or tokens != int(tokens):
        raise ValueError(f"{value!r} is no number of tokens")
    return int(tokens)


def make_rng(seed: int, level: LoadLevel, purpose: str = "arrivals") -> random.Random:
    """Return the random numbers of a step: the same for the same seed, others for another level or purpose."""
    return random.Random(f"{seed} {level.title} {purpose}")  # noqa: S311 a load is no secret


def count_arrivals(level: LoadLevel, seed: int, begin_s: float, end_s: float) -> int:
    """Return how many requests are due between two times after the begin of a step."""
    count = 0
    for arrival in level.list_arrivals(make_rng(seed, level)):
        if arrival.at_s >= end_s:
            break
        count += arrival.at_s >= begin_s
    return count


def name_requests(prefix: str) -> Callable[[], str]:
    """Return a function that makes ids of requests."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}-{next(numbers)}"
