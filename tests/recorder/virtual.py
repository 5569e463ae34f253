"""A clock that tests move, with sleeps that cost nothing, and a meter that lives by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.spec import Spec, Stream
from joulelab.recorder.requests import Answer, Request
from joulelab.recorder.rows import make_row_tables
from joulelab.recorder.sampling import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

START = 1000 * NS


def stream(name: str = "gpu:0.power", period_s: float = 0.1, update_s: float = 0.1, **more: Any) -> Stream:
    channels = more.pop("channels", None) or (
        Spec("energy_j", "energy", "J", "counter", update_s=update_s),
        Spec("power_w", "power", "W", "power", update_s=update_s),
    )
    return Stream(name, more.pop("table", "power"), name.split(".", maxsplit=1)[0], period_s, channels, **more)


class World:
    """Virtual time: `at` holds requests by time, `oversleep` says how late a sleep ends."""

    def __init__(self, end_s: float = 10.0) -> None:
        self.t = START
        self.requests: list[tuple[int, Request]] = [(START + round(end_s * NS), Request("stop"))]
        self.oversleep: Callable[[int], int] = lambda t: 0
        self.answers: list[tuple[float, str, bool]] = []
        self.events: list[dict[str, Any]] = []

    def now(self) -> int:
        return self.t

    def ask(self, at_s: float, request: Request) -> None:
        self.requests.append((START + round(at_s * NS), request))
        self.requests.sort(key=lambda r: r[0])

    def sleep_until(self, due_ns: int) -> Request | None:
        at, request = self.requests[0]
        if at <= max(due_ns, self.t):
            self.t = max(self.t, at)
            self.requests.pop(0)
            return request
        if due_ns > self.t:
            self.t = due_ns + self.oversleep(due_ns)
        return None

    def done(self, answer: Answer) -> None:
        if answer.request is not None:
            self.answers.append(((self.t - START) / NS, answer.request.what, answer.stepped))


class VirtualMeter:
    """Take `cost_ns` per reading; counters step by `watts` every `update_s`; `fails` says when a reading raises."""

    def __init__(self, world: World, streams: Sequence[Stream], cost_ns: int = 0, watts: float = 100.0) -> None:
        self.world = world
        self._streams = streams
        self.cost_ns: Callable[[Stream], int] = lambda stream: cost_ns
        self.watts = watts
        self.fails: Callable[[Stream, float], Exception | None] = lambda stream, t: None
        self.reads: list[tuple[str, float]] = []

    def streams(self) -> Sequence[Stream]:
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        t = (self.world.t - START) / NS
        self.reads.append((stream.name, t))
        self.world.t += self.cost_ns(stream)
        error = self.fails(stream, t)
        if error is not None:
            raise error
        update = stream.channels[0].update_s or 0.001
        return [self.watts * update * (t // update), self.watts][: len(stream.channels)]

    def close(self) -> None:
        pass


def sampler_of(world: World, meter: VirtualMeter) -> Sampler:
    tables = make_row_tables("fake", meter.streams())
    return Sampler("fake", meter, tables, world.events, now=world.now, sleep_until=world.sleep_until, done=world.done)
