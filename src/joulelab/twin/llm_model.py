"""Model an inference server on a node: continuous batching, its times and its power, by few named parameters.

One iteration computes the prompts of requests that begin (prefill) and one more token of each running request (decode).
The same engine runs in virtual time (`simulate_requests`) and behind HTTP (`servers/llm.py`).

It is the judge of what joulelab's serving attributes to requests, so it knows the true energy of every request. Each
token bears its own energy, and the busy power for the time that it adds to an iteration; the fixed time of an iteration
is shared equally by its requests. Where a cap holds the power down, all parts of the iteration change by one factor.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.twin.model import Gpu

CONTEXT_UNIT = 1000  # tokens of context to which `context_s` and `context_j` refer


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmParameters:
    """Describe an inference server on `gpus` GPUs.

    An iteration takes `fixed_s`, plus `prefill_s` for each prompt token, `decode_s` for each running request and
    `context_s` for each 1000 tokens of their contexts. Above idle it needs `busy_w` x time, plus `prefill_j`,
    `decode_j` and `context_j` for the same amounts. At most `most_running` requests run at a time, and one iteration
    computes at most `most_prefill` prompt tokens.
    """

    gpus: int = 1
    fixed_s: float = 0.008
    prefill_s: float = 20e-6
    decode_s: float = 150e-6
    context_s: float = 100e-6
    busy_w: float = 60.0
    prefill_j: float = 0.008
    decode_j: float = 0.12
    context_j: float = 0.04
    most_running: int = 64
    most_prefill: int = 2048

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in self.__dataclass_fields__}
        wrong = [name for name, value in numbers.items() if not 0 <= value < math.inf]
        wrong += [name for name in ("gpus", "fixed_s", "most_running", "most_prefill") if numbers[name] <= 0]
        if wrong:
            raise ConfigError(
                f"{', '.join(dict.fromkeys(wrong))}: not a possible number", where="llm",
                why="no number is negative or infinite; gpus, fixed_s, most_running and most_prefill are above 0",
            )  # fmt: skip


@dataclass(slots=True)
class LlmRequest:
    """Hold one request in the engine: times (s; NaN = not yet), tokens, and its true energy above idle by part (J)."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    first_s: float = math.nan
    last_s: float = math.nan
    prefilled: int = 0
    produced: int = 0
    prefill_j: float = 0.0
    decode_j: float = 0.0
    base_j: float = 0.0

    @property
    def energy_j(self) -> float:
        """Return its true energy above idle, in J."""
        return self.prefill_j + self.decode_j + self.base_j

    @property
    def is_done(self) -> bool:
        """Return whether all its tokens were produced."""
        return self.produced >= self.output_tokens


@dataclass(frozen=True, slots=True)
class Iteration:
    """Hold one iteration: how long it takes (s), and the power above idle of all GPUs together (W)."""

    seconds: float
    watts: float
    prefill_tokens: int
    decode_tokens: int
    begun: tuple[LlmRequest, ...]  # their first token comes at its end
    decoded: tuple[LlmRequest, ...]


class LlmEngine:
    """Schedule requests in iterations: first come, first served, prompts in chunks beside the running requests."""

    def __init__(self, parameters: LlmParameters, gpu: Gpu) -> None:
        self.parameters, self._gpu = parameters, gpu
        self.waiting: deque[LlmRequest] = deque()
        self.running: list[LlmRequest] = []

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to do."""
        return not self.waiting and not self.running

    def begin_iteration(self, cap_w: float) -> Iteration:
        """Choose the work of the next iteration and compute its time and power under a cap (W of each GPU)."""
        p = self.parameters
        decoded = tuple(request for request in self.running if request.prefilled >= request.prompt_tokens)
        chunks = self._take_prompts()
        contexts = sum(request.prompt_tokens + request.produced for request in decoded) / CONTEXT_UNIT
        prefill = sum(chunks.values())
        seconds = p.fixed_s + p.prefill_s * prefill + p.decode_s * len(decoded) + p.context_s * contexts
        prefill_j, decode_j = p.prefill_j * prefill, p.decode_j * len(decoded) + p.context_j * contexts
        watts = p.busy_w + (prefill_j + decode_j) / seconds
        full_w = self._gpu.idle_w + watts / p.gpus
        limit_w = min(cap_w, self._gpu.max_w)
        stretch = self._gpu.slow_down(full_w, limit_w)
        given_w = p.gpus * (min(full_w, limit_w) - self._gpu.idle_w)
        scale = given_w * stretch / watts  # true energy of this iteration: that without a limit times this
        self._credit_parts(scale, chunks, decoded)
        begun = tuple(r for r in self._list_requests(chunks) if r.prefilled >= r.prompt_tokens)
        return Iteration(seconds * stretch, given_w, prefill, len(decoded), begun, decoded)

    def end_iteration(self, iteration: Iteration, end_s: float) -> list[LlmRequest]:
        """Give each request its token at the end (s) of an iteration; return the requests that are done."""
        for request in iteration.begun:
            request.first_s = end_s
        for request in (*iteration.begun, *iteration.decoded):
            request.produced += 1
            request.last_s = end_s
        done = [request for request in self.running if request.is_done]
        self.running = [request for request in self.running if not request.is_done]
        return done

    def drop_request(self, request: LlmRequest) -> None:
        """Forget a request whose client has gone."""
        self.running = [one for one in self.running if one is not request]
        self.waiting = deque(one for one in self.waiting if one is not request)

    def _take_prompts(self) -> dict[int, int]:
        """Move waiting requests to the running ones; return the prompt tokens to compute by place in `running`."""
        left = self.parameters.most_prefill
        while self.waiting and len(self.running) < self.parameters.most_running:
            self.running.append(self.waiting.popleft())
        chunks: dict[int, int] = {}
        for place, request in enumerate(self.running):
            chunk = min(request.prompt_tokens - request.prefilled, left)
            if chunk > 0:
                chunks[place] = chunk
                left -= chunk
        return chunks

    def _list_requests(self, chunks: dict[int, int]) -> list[LlmRequest]:
        return [self.running[place] for place in chunks]

    def _credit_parts(self, scale: float, chunks: dict[int, int], decoded: Sequence[LlmRequest]) -> None:
        """Give each request its part of an iteration's energy (the module's docstring has the rule)."""
        p = self.parameters
        members = {id(request): request for request in (*self._list_requests(chunks), *decoded)}
        for request in members.values():
            request.base_j += scale * p.busy_w * p.fixed_s / len(members)
        for request in decoded:
            context = (request.prompt_tokens + request.produced) / CONTEXT_UNIT
            own_j = p.decode_j + p.busy_w * p.decode_s + (p.context_j + p.busy_w * p.context_s) * context
            request.decode_j += scale * own_j
        for place, chunk in chunks.items():
            self.running[place].prefill_j += scale * (p.prefill_j + p.busy_w * p.prefill_s) * chunk
            self.running[place].prefilled += chunk


@dataclass(slots=True)
class LlmCourse:
    """Hold a simulated time: requests with their times and true energies, and the power above idle as pieces.

    Piece i begins at `begins_s[i]` and has `watts[i]` (W above idle, of all GPUs together); the last one is idle.
    """

    requests: list[LlmRequest]
    begins_s: list[float] = field(default_factory=lambda: [0.0])
    watts: list[float] = field(default_factory=lambda: [0.0])


def simulate_requests(
    parameters: LlmParameters, gpu: Gpu, requests: Sequence[LlmRequest], cap_w: float = math.inf
) -> LlmCourse:
    """Serve requests in virtual time until all are done; their arrivals are in order. `cap_w` is per GPU."""
    engine = LlmEngine(parameters, gpu)
    course = LlmCourse(list(requests))
    coming = deque(course.requests)
    now_s = 0.0
    while coming or not engine.is_idle:
        if engine.is_idle:
            now_s = max(now_s, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= now_s:
            engine.waiting.append(coming.popleft())
        iteration = engine.begin_iteration(cap_w)
        course.begins_s.append(now_s)
        course.watts.append(iteration.watts)
        now_s += iteration.seconds
        engine.end_iteration(iteration, now_s)
        if engine.is_idle:
            course.begins_s.append(now_s)
            course.watts.append(0.0)
    return course
