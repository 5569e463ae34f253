"""Model an inference server on a node: continuous batching, its times and its power, by few named parameters.

One iteration computes the prompts of requests that begin (prefill) and one more token of each running request (decode).
The same engine runs in virtual time (`LlmSimulation`) and behind HTTP (`servers/llm.py`).

It is the judge of the energy that joulelab's serving attributes to requests, so it knows the true energy of every
request. Each token bears its own energy, and the busy power for the time that it adds to an iteration; the fixed time
of an iteration is shared equally by its requests. Where a cap holds the power down, all parts of the iteration change
by one factor. At the wall, the power of an iteration above idle is divided in the same proportions.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.twin.job_notes import feed_gpus
from joulelab.twin.power_curves import list_heating_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from joulelab.twin.model import Gpu, Node
    from joulelab.twin.power_curves import Floats

CONTEXT_UNIT = 1000  # tokens of context to which `context_s` and `context_j` refer
_ABOVE_ZERO = ("gpus", "fixed_s", "most_running", "most_prefill")
_PACKAGE = ("cpu", "core")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmParameters:
    """Describe an inference server on the first `gpus` GPUs of a node.

    An iteration takes `fixed_s`, plus `prefill_s` for each prompt token, `decode_s` for each running request and
    `context_s` for each 1000 tokens of their contexts. Above idle it needs `busy_w` x time, plus `prefill_j`,
    `decode_j` and `context_j` for the same amounts. At most `most_running` requests run at a time, and one iteration
    computes at most `most_prefill` prompt tokens. The first `cached_share` of each prompt is in the server's cache.
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
    cached_share: float = 0.0

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in LlmParameters.__dataclass_fields__}
        wrong = [name for name, value in numbers.items() if not 0 <= value < math.inf]
        wrong += [name for name in _ABOVE_ZERO if numbers[name] <= 0]
        wrong += ["cached_share"] if self.cached_share >= 1 else []
        if wrong:
            raise ConfigError(
                f"{', '.join(dict.fromkeys(wrong))}: not a possible number", where="llm",
                why=f"no number is negative or infinite; {', '.join(_ABOVE_ZERO)} are above 0, cached_share below 1",
            )  # fmt: skip

    def count_cached(self, prompt_tokens: int) -> int:
        """Return how many tokens of a prompt need not be computed; the last one always is."""
        return min(int(self.cached_share * prompt_tokens), prompt_tokens - 1)


@dataclass(slots=True, eq=False)
class LlmRequest:
    """Hold one request in the engine: times (s; NaN = not yet), tokens, and its true energy above idle by part (J).

    `decode_j` is that of output tokens after the first with their context, `base_j` its part of the fixed time of
    iterations. At the wall, `wall_decode_j` includes the latter. `prefilled` counts prompt tokens that are computed or
    were cached. Iteration `first_iteration` gives the first token, each later one gives one more.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    first_s: float = math.nan
    last_s: float = math.nan
    first_iteration: int = 0
    prefilled: int = 0
    produced: int = 0
    prefill_j: float = 0.0
    decode_j: float = 0.0
    base_j: float = 0.0
    wall_prefill_j: float = 0.0
    wall_decode_j: float = 0.0

    def __post_init__(self) -> None:
        self.prefilled = self.cached_tokens

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
    """Hold one iteration: how long it takes (s), and the power above idle of all GPUs together (W).

    `wanted_w` is that power without caps and locked clocks.
    """

    seconds: float
    watts: float
    wanted_w: float
    prefill_tokens: int
    decode_tokens: int
    begun: tuple[LlmRequest, ...]  # their first token comes at its end


class _EnergySums(NamedTuple):
    """Hold sums over iterations, of which each running request bears the part since it began to be decoded.

    An iteration has a `factor` (true energy / energy without caps). `numbered` sums it times the iteration's number,
    because a context grows by one token in each; `shared` sums it divided by the requests of the iteration.
    """

    factor: float = 0.0
    numbered: float = 0.0
    shared: float = 0.0

    def add_iteration(self, factor: float, number: int, members: int) -> _EnergySums:
        return _EnergySums(self.factor + factor, self.numbered + factor * number, self.shared + factor / members)


class LlmEngine:
    """Schedule requests in iterations: first come, first served, prompts in chunks beside the running requests.

    `gpu` stands for all GPUs of the engine; `wall_w` turns their power above idle into that of the node's cords.
    """

    def __init__(
        self, parameters: LlmParameters, gpu: Gpu, wall_w: Callable[[float], float] = lambda above_w: above_w
    ) -> None:
        self.parameters, self._gpu, self._wall_w = parameters, gpu, wall_w
        self.waiting: deque[LlmRequest] = deque()
        self.prefilling: list[LlmRequest] = []
        self.decoding: dict[LlmRequest, tuple[_EnergySums, _EnergySums]] = {}  # with the sums when decoding began
        self.number = 0  # of the last iteration
        self._contexts = 0  # tokens of all contexts that are decoded
        self._ending: dict[int, list[LlmRequest]] = {}  # by the number of their last iteration
        self._sums, self._wall_sums = _EnergySums(), _EnergySums()

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to do."""
        return not (self.waiting or self.prefilling or self.decoding)

    @property
    def running(self) -> int:
        """Return the number of requests that are computed."""
        return len(self.prefilling) + len(self.decoding)

    def begin_iteration(self, cap_w: float = math.inf, mhz: float | None = None) -> Iteration:
        """Choose the work of the next iteration, with its time and power under a cap (W of each GPU) and a clock."""
        p, gpu = self.parameters, self._gpu
        chunks = self._take_prompts()
        prefill, decoded, contexts = sum(chunks.values()), len(self.decoding), self._contexts / CONTEXT_UNIT
        seconds = p.fixed_s + p.prefill_s * prefill + p.decode_s * decoded + p.context_s * contexts
        joules = p.prefill_j * prefill + p.decode_j * decoded + p.context_j * contexts
        wanted_w = p.busy_w + joules / seconds
        full_w, limit_w = gpu.idle_w + wanted_w / p.gpus, min(cap_w, gpu.max_w)
        stretch = gpu.slow_down(full_w, limit_w, mhz)
        given_w = p.gpus * max(min(gpu.clocked_w(full_w, mhz), limit_w) - gpu.idle_w, 0.0)
        factor = given_w * stretch / wanted_w if wanted_w else 1.0
        at_wall = factor * self._wall_w(given_w) / given_w if given_w else 0.0
        self.number += 1
        members = decoded + len(chunks)
        self._sums = self._sums.add_iteration(factor, self.number, members)
        self._wall_sums = self._wall_sums.add_iteration(at_wall, self.number, members)
        token_j, base_j = p.prefill_j + p.busy_w * p.prefill_s, p.busy_w * p.fixed_s / members
        for request, chunk in chunks.items():
            request.prefilled += chunk
            request.prefill_j += factor * token_j * chunk
            request.wall_prefill_j += at_wall * token_j * chunk
            request.base_j += factor * base_j
            request.wall_decode_j += at_wall * base_j
        begun = tuple(request for request in chunks if request.prefilled >= request.prompt_tokens)
        return Iteration(seconds * stretch, given_w, wanted_w, prefill, decoded, begun)

    def end_iteration(self, iteration: Iteration, end_s: float) -> list[LlmRequest]:
        """Give each request its token at the end (s) of an iteration; return the requests that are done."""
        done = self._ending.pop(self.number, [])
        for request in done:
            self._leave(request, end_s)
        self._contexts += len(self.decoding)
        for request in iteration.begun:
            self.prefilling.remove(request)
            request.first_s = request.last_s = end_s
            request.first_iteration, request.produced = self.number, 1
            if request.is_done:
                done.append(request)
                continue
            self.decoding[request] = (self._sums, self._wall_sums)
            self._contexts += request.prompt_tokens + 1
            self._ending.setdefault(self.number + request.output_tokens - 1, []).append(request)
        return done

    def drop_request(self, request: LlmRequest, end_s: float) -> None:
        """Forget a request whose client has gone at a time (s); it keeps the energy that it has needed."""
        if request in self.decoding:
            self._ending[request.first_iteration + request.output_tokens - 1].remove(request)
            self._contexts -= 1  # the token that it would have had next
            self._leave(request, end_s)
        elif request in self.prefilling:
            self.prefilling.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.last_s = end_s

    def _leave(self, request: LlmRequest, end_s: float) -> None:
        """Take a request out of the decoded ones, and give it its energy since it began to be decoded."""
        p, since = self.parameters, self.number - request.first_iteration
        sums, wall_sums = self.decoding.pop(request)
        self._contexts -= request.prompt_tokens + since
        request.last_s, request.produced = end_s, since + 1
        token_j = p.decode_j + p.busy_w * p.decode_s
        context_j = (p.context_j + p.busy_w * p.context_s) / CONTEXT_UNIT
        before = request.prompt_tokens - request.first_iteration  # its context in an iteration is this plus the number
        for now, then, at_wall in ((self._sums, sums, False), (self._wall_sums, wall_sums, True)):
            factor = now.factor - then.factor
            own_j = (token_j + context_j * before) * factor + context_j * (now.numbered - then.numbered)
            base_j = p.busy_w * p.fixed_s * (now.shared - then.shared)
            if at_wall:
                request.wall_decode_j += own_j + base_j
            else:
                request.decode_j += own_j
                request.base_j += base_j

    def _take_prompts(self) -> dict[LlmRequest, int]:
        """Admit waiting requests; return the prompt tokens to compute now, by request."""
        while self.waiting and self.running < self.parameters.most_running:
            self.prefilling.append(self.waiting.popleft())
        chunks: dict[LlmRequest, int] = {}
        left = self.parameters.most_prefill
        for request in self.prefilling:
            if left <= 0:
                break
            chunks[request] = min(request.prompt_tokens - request.prefilled, left)
            left -= chunks[request]
        return chunks


class _LeafLine(NamedTuple):
    """Hold the power (W) of a leaf: `idle_w` at rest, else `base_w` + `slope` x the engine's power above idle."""

    idle_w: float
    base_w: float
    slope: float


class EnginePlace:
    """Lay the power of an engine on a node: its GPUs, the CPUs and the host that feed them, and the wall.

    All GPUs of the engine draw the same power above their idle power, and wait for the slowest one: `gpu` has the
    highest idle power among them, and the smallest range above it.
    """

    def __init__(self, node: Node, count: int) -> None:
        """Take the first `count` GPUs of a node. Raises ConfigError where it has fewer, or of several models."""
        if count > len(node.gpus):
            raise ConfigError(
                f"the engine needs {count} GPUs", where="llm", why=f"the node {node.name} has {len(node.gpus)}",
                next="give it fewer: gpus=1",
            )  # fmt: skip
        if len({gpu.name for gpu in node.gpus[:count]}) > 1:
            raise ConfigError("the GPUs of the engine are of several models", where="llm", next="choose one: gpus=1")
        self.node, self.gpus = node, tuple(range(count))
        boards = [node.get_board(gpu) for gpu in self.gpus]
        idle_w = max(board.idle_w for board in boards)
        self.gpu = replace(boards[0], idle_w=idle_w, max_w=idle_w + min(board.max_w - board.idle_w for board in boards))
        one, two = (self._find_leaf_watts(above_w) for above_w in (1.0, 2.0))
        self.lines = {
            leaf: _LeafLine(node.range_w(leaf)[0], 2 * one[leaf] - two[leaf], (two[leaf] - one[leaf]) / count)
            for leaf in one
        }
        self._heating = set(list_heating_leaves(node.list_leaves()))
        others = [leaf for leaf in self._heating if leaf not in self.lines]
        heated = [line for leaf, line in self.lines.items() if leaf in self._heating]
        rest_w = sum(node.range_w(leaf)[0] for leaf in others)
        self._base_w = rest_w + sum(line.base_w for line in heated)
        self._slope = sum(line.slope for line in heated)
        self._knots = (*node.to_dc(), *node.to_ac())
        self._idle_ac_w = self._find_ac_w(rest_w + sum(line.idle_w for line in heated))

    def _find_leaf_watts(self, above_w: float) -> dict[str, float]:
        """Return the power (W) of every leaf that moves if each GPU draws `above_w` (W) above idle."""
        node = self.node
        watts = {gpu: node.range_w(f"gpu:{gpu}")[0] + above_w for gpu in self.gpus}
        demand = feed_gpus(node, watts)
        found = {f"gpu:{gpu}": each_w for gpu, each_w in watts.items()}
        for package, (awake, cpu, memory) in demand.packages.items():
            found |= {f"{kind}:{package}": float(node.draws_w(f"{kind}:{package}", cpu, awake)) for kind in _PACKAGE}
            found[f"dram:{package}"] = float(node.draws_w(f"dram:{package}", memory))
        return {**found, "host": float(node.draws_w("host", demand.host))}

    def leaf_watts(self, leaf: str, above_w: Floats) -> Floats:
        """Return the power (W) of a leaf at each power of the engine's GPUs above idle (W)."""
        line = self.lines.get(leaf) or _LeafLine(self.node.range_w(leaf)[0], self.node.range_w(leaf)[0], 0.0)
        return np.where(above_w > 0, line.base_w + line.slope * above_w, line.idle_w)

    def wall_w(self, above_w: float) -> float:
        """Return the power at the wall above that of the idle node (W), for a power of the GPUs above idle (W)."""
        return self._find_ac_w(self._base_w + self._slope * above_w) - self._idle_ac_w if above_w > 0 else 0.0

    def _find_ac_w(self, heat_w: float) -> float:
        heat, dc, dc_out, ac = self._knots
        return float(np.interp(np.interp(heat_w, heat, dc), dc_out, ac))


@dataclass(slots=True)
class LlmCourse:
    """Hold a simulated time: requests with their times and true energies, and the power above idle as pieces.

    Piece i begins at `begins_s[i]` and has `watts[i]` (W above idle, of all GPUs together), `wanted_w[i]` without caps;
    the last one is idle. Iteration n ends at `ends_s[n - 1]` with `tokens[n - 1]` output tokens.
    """

    requests: list[LlmRequest] = field(default_factory=list)
    begins_s: list[float] = field(default_factory=lambda: [0.0])
    watts: list[float] = field(default_factory=lambda: [0.0])
    wanted_w: list[float] = field(default_factory=lambda: [0.0])
    ends_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def add_piece(self, begin_s: float, watts: float, wanted_w: float) -> None:
        """Add a piece of power."""
        self.begins_s.append(begin_s)
        self.watts.append(watts)
        self.wanted_w.append(wanted_w)


class LlmSimulation:
    """Let an engine serve requests in virtual time, under a cap (W of each GPU)."""

    def __init__(self, engine: LlmEngine, cap_w: float = math.inf) -> None:
        self.engine, self._cap_w = engine, cap_w
        self.now_s = 0.0
        self.coming: deque[LlmRequest] = deque()
        self.ended = 0
        self.course = LlmCourse()

    def add_requests(self, requests: Iterable[LlmRequest]) -> None:
        """Add requests that will arrive, in the order of their arrivals."""
        self.coming.extend(requests)

    def advance(self, until_s: float) -> None:
        """Serve until a time (s), or until the end of the iteration that contains it."""
        while self.now_s < until_s:
            if self.engine.is_idle and (not self.coming or self.coming[0].arrival_s >= until_s):
                self.now_s = until_s
            else:
                self.run_iteration()

    def finish(self, until_s: float = math.inf) -> list[LlmRequest]:
        """Serve until all requests are done, at most until a time (s); return those that are dropped then."""
        while (self.coming or not self.engine.is_idle) and self.now_s < until_s:
            self.run_iteration()
        engine = self.engine
        left = [*engine.decoding, *engine.prefilling, *engine.waiting]
        for request in left:
            engine.drop_request(request, self.now_s)
        if left:
            self.course.add_piece(self.now_s, 0.0, 0.0)
        return left

    def run_iteration(self) -> None:
        """Run the next iteration, after the next arrival if there is nothing to do before."""
        engine, course = self.engine, self.course
        if engine.is_idle:
            self.now_s = max(self.now_s, self.coming[0].arrival_s)
        while self.coming and self.coming[0].arrival_s <= self.now_s:
            request = self.coming.popleft()
            engine.waiting.append(request)
            course.requests.append(request)
        iteration = engine.begin_iteration(self._cap_w)
        course.add_piece(self.now_s, iteration.watts, iteration.wanted_w)
        self.now_s += iteration.seconds
        self.ended += len(engine.end_iteration(iteration, self.now_s))
        course.ends_s.append(self.now_s)
        course.tokens.append(iteration.decode_tokens + len(iteration.begun))
        if engine.is_idle:
            course.add_piece(self.now_s, 0.0, 0.0)


def simulate_requests(
    parameters: LlmParameters, gpu: Gpu, requests: Sequence[LlmRequest], cap_w: float = math.inf
) -> LlmCourse:
    """Serve requests in virtual time until all are done; their arrivals are in order. `cap_w` is per GPU."""
    simulation = LlmSimulation(LlmEngine(parameters, gpu), cap_w)
    simulation.add_requests(requests)
    simulation.finish()
    return simulation.course
