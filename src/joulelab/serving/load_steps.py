"""Run a load step by step: warm-up, steady window and drain of each rate; mark phases, work, facts and requests.

The steady window begins when the warm-up has lasted its time and `WARM_REQUESTS` requests have ended, at the latest
after `LONGEST_WARMUP` times that time; it lasts a given time, in which arrivals go on. In the drain none arrive;
requests that have not ended after its time are cancelled. Statistics are those of the requests that were due in the
steady window.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.mark_lines import encode_json, make_fact_line, open_marks, write_lines
from joulelab.core.marks import current_phase
from joulelab.serving.load_client import NO_USAGE, NOT_STREAMED, TimeWindow
from joulelab.serving.load_plan import Arrival, count_arrivals, make_rng, name_requests

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from joulelab.core.marks import MarkWriter
    from joulelab.serving.load_client import LoadClient
    from joulelab.serving.load_plan import LoadLevel, PromptSource
    from joulelab.serving.request_records import Request

WARM_REQUESTS = 10
LONGEST_WARMUP = 5
LATE_S = 0.01
MOST_REFUSED = 5  # connections in a row that are refused, after which the server counts as gone
REPORT_NS = NS // 2  # between two reports of work
POLL_NS = NS // 20  # between two looks at conditions
INTERRUPTED_DRAIN_S = 0.5
LONGEST_PAUSE_S = 1.0  # of a closed loop after failures


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """Hold how long a step lasts, in s."""

    warmup_s: float = 10.0
    duration_s: float = 60.0
    drain_s: float = 60.0


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Hold one step: its title, the length of its steady window (s), the work and the facts of it.

    `notes` are codes: `short-warm-up`, `server-gone`, `interrupted`.
    """

    title: str
    duration_s: float
    work: Mapping[str, float]
    facts: Mapping[str, float]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {"title": self.title, "duration_s": self.duration_s, "work": dict(self.work)}
        return plain | {"facts": dict(self.facts), "notes": list(self.notes)}


@dataclass(slots=True)
class LoadSummary:
    """Hold a whole load: its steps; requests that ended well and others; why it stopped early, if it did."""

    steps: list[StepSummary] = field(default_factory=list)
    ok: int = 0
    failed: dict[str, int] = field(default_factory=dict)  # by status
    no_usage: int = 0
    stopped: str = ""  # a code: server-gone, interrupted
    last_problem: str = ""
    unknown_fields: tuple[str, ...] = ()


class LoadMarks:
    """Write the marks of a load into the run that records it, if one does, and its requests into a file.

    `writer` marks phases; work, facts and requests have times in the past, and go to a file of their own.
    """

    def __init__(self, writer: MarkWriter | None = None, out: Path | None = None) -> None:
        """Open the files. Raises OSError."""
        self._writer = writer
        own = None if writer is None else writer.folder / f"requests-{os.getpid()}.jsonl"
        self._fd = None if own is None else open_marks(own)
        self._out = None if out is None else out.open("w", encoding="utf-8")

    def close(self) -> None:
        """Close the files. Raises OSError."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._out is not None:
            self._out.close()

    def begin_phase(self, name: str, n: float | None, labels: Mapping[str, object], at_ns: int) -> str | None:
        """Begin a phase inside the current one; return its id."""
        if self._writer is None:
            return None
        return self._writer.begin(name, n, labels, at_ns=at_ns)  # type: ignore[arg-type]  # parts of one are in the name

    def end_phase(self, identity: str | None, parent: str | None, at_ns: int) -> None:
        """End a phase."""
        if self._writer is not None:
            self._writer.end(identity, parent, at_ns=at_ns)

    def write_request(self, request: Request) -> None:
        """Write a request that has ended. Raises OSError."""
        line = encode_json(request.to_mark())
        self._write(line)
        if self._out is not None:
            self._out.write(line + "\n")

    def write_work(self, window: TimeWindow, now_ns: int) -> None:
        """Report the work that was counted in a window since the last report. Raises OSError."""
        work, window.unreported = window.unreported, {}
        if work:
            t = now_ns if window.end_ns is None else min(now_ns, window.end_ns)
            about = {"from": window.begin_ns, "phase": window.phase, "amounts": work, "count": 1, "at": [t], "rank": 0}
            self._write(encode_json({"t": t, "mark": "work", **about}))

    def write_facts(self, facts: Mapping[str, object], at_ns: int) -> None:
        """Report facts at a time. Raises OSError."""
        self._write(encode_json(make_fact_line(at_ns, facts, 0)))

    def _write(self, line: str) -> None:
        if self._fd is not None:
            write_lines(self._fd, line)


class LoadRunner:
    """Run the steps of a load one after the other; `stop` ends it soon."""

    def __init__(
        self,
        client: LoadClient,
        source: PromptSource,
        times: LoadTimes,
        marks: LoadMarks,
        *,
        seed: int = 0,
        prefix: str = "load",
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._client, self._source, self._times, self._marks = client, source, times, marks
        self._seed, self._now = seed, now_ns
        self._make_id = name_requests(prefix)
        self._active: set[asyncio.Task[Request]] = set()
        self._done: list[Request] = []
        self._windows: list[TimeWindow] = []
        self._reported_ns = 0
        self._error: OSError | None = None
        self.summary = LoadSummary()

    def stop(self, why: str = "interrupted") -> None:
        """Send nothing more; requests that run have a short time left."""
        self.summary.stopped = self.summary.stopped or why

    @property
    def is_stopped(self) -> bool:
        """Return whether it ends early."""
        return bool(self.summary.stopped)

    async def run_steps(self, levels: Sequence[LoadLevel]) -> LoadSummary:
        """Run all steps; one that was stopped is the last. Raises OSError if the marks cannot be written."""
        for level in levels:
            if not self.is_stopped:
                self.summary.steps.append(await self._run_step(level))
        if self._error is not None:
            raise self._error
        return self.summary

    async def _run_step(self, level: LoadLevel) -> StepSummary:
        self._done, self._windows = [], []
        begin_ns, around = self._now(), current_phase()
        labels: dict[str, object] = {} if level.kind == "trace" else {level.kind: level.value}
        outer = self._marks.begin_phase(level.kind, level.value if labels else None, labels, begin_ns)
        self._begin_window("warm-up", begin_ns, outer)
        rng = make_rng(self._seed, level, "prompts")
        sender = self._keep_busy(level, rng) if level.is_closed else self._send_arrivals(level, rng, begin_ns)
        sending = asyncio.ensure_future(sender)
        try:
            is_warm = await self._warm_up(begin_ns, sending)
            steady = None
            if not self.is_stopped:
                steady = self._begin_window("steady", self._now(), outer)
                await self._wait(sending.done, steady.begin_ns + round(self._times.duration_s * NS))
        finally:
            sending.cancel()
            await asyncio.wait([sending])
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error
        await self._drain(self._begin_window("drain", self._now(), outer).begin_ns)
        self._end_window(self._now(), outer)
        facts = {} if steady is None else compute_facts(self._done, steady, self._count_due(level, begin_ns, steady))
        if steady is not None and steady.end_ns is not None:
            self._marks.write_facts(facts, max(steady.end_ns - 1, steady.begin_ns))
        self._marks.end_phase(outer, around, self._now())
        notes = [] if is_warm or self.is_stopped else ["short-warm-up"]
        notes += [self.summary.stopped] if self.is_stopped else []
        return StepSummary(
            level.title, 0.0 if steady is None else steady.duration_s, {} if steady is None else steady.work, facts,
            tuple(notes),
        )  # fmt: skip

    def _begin_window(self, name: str, now_ns: int, outer: str | None) -> TimeWindow:
        self._end_window(now_ns, outer)
        window = TimeWindow(name, now_ns, self._marks.begin_phase(name, None, {}, now_ns))
        self._windows.append(window)
        self._client.window = window
        return window

    def _end_window(self, now_ns: int, outer: str | None) -> None:
        window, self._client.window = self._client.window, None
        if window is not None:
            window.end_ns = now_ns
            self._marks.end_phase(window.phase, outer, now_ns)
        self._report_work()

    def _count_due(self, level: LoadLevel, begin_ns: int, steady: TimeWindow) -> int | None:
        """Return how many requests were due in a window, None for a closed loop."""
        if level.is_closed or steady.end_ns is None:
            return None
        return count_arrivals(level, self._seed, (steady.begin_ns - begin_ns) / NS, (steady.end_ns - begin_ns) / NS)

    async def _send_arrivals(self, level: LoadLevel, rng: random.Random, begin_ns: int) -> None:
        """Send each request when it is due; answers are not waited for."""
        for arrival in level.list_arrivals(make_rng(self._seed, level)):
            due_ns = begin_ns + round(arrival.at_s * NS)
            await self._sleep_until(due_ns)
            if self.is_stopped:
                return
            self._start_request(rng, arrival, due_ns)

    async def _keep_busy(self, level: LoadLevel, rng: random.Random) -> None:
        """Keep a number of requests running: each one that ends is followed by the next."""

        async def follow_on() -> None:
            pause_s = 0.0
            while not self.is_stopped:
                request = await asyncio.shield(self._start_request(rng, Arrival(0.0), None))
                pause_s = 0.0 if request.status == "ok" else min(max(2 * pause_s, 0.05), LONGEST_PAUSE_S)
                if pause_s:  # a server that refuses everything is not asked a thousand times a second
                    await self._sleep_until(self._now() + round(pause_s * NS))

        await asyncio.gather(*(follow_on() for _ in range(int(level.value))))

    def _start_request(self, rng: random.Random, arrival: Arrival, due_ns: int | None) -> asyncio.Task[Request]:
        prompt = self._source.next_prompt(rng, arrival)
        task = asyncio.ensure_future(self._client.send_request(prompt.id or self._make_id(), prompt, due_ns))
        self._active.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[Request]) -> None:
        self._active.discard(task)
        if task.cancelled():  # before it began
            return
        request, summary = task.result(), self.summary
        self._done.append(request)
        if request.status == "ok":
            summary.ok += 1
            summary.no_usage += request.detail == NO_USAGE
        else:
            summary.failed[request.status] = summary.failed.get(request.status, 0) + 1
            summary.last_problem = summary.last_problem if request.status == "cancelled" else request.detail
        try:
            self._marks.write_request(request)
        except OSError as error:
            self._error = error
            self.stop("not-written")
        if self._client.refused_in_a_row >= MOST_REFUSED:
            self.stop("server-gone")

    async def _warm_up(self, begin_ns: int, sending: asyncio.Future[None]) -> bool:
        """Wait for the end of the warm-up; return False if too few requests ended in it."""

        def is_warm() -> bool:
            return len(self._done) >= WARM_REQUESTS

        await self._wait(sending.done, begin_ns + round(self._times.warmup_s * NS))
        limit_ns = begin_ns + round(LONGEST_WARMUP * self._times.warmup_s * NS)
        await self._wait(lambda: is_warm() or sending.done(), limit_ns)
        return is_warm() or self._times.warmup_s == 0

    async def _drain(self, begin_ns: int) -> None:
        """Wait for the requests that run, within the limit; cancel the rest."""
        until_ns = begin_ns + round(self._times.drain_s * NS)
        await self._wait(lambda: not self._active, until_ns)
        if self.is_stopped:
            soon_ns = min(self._now() + round(INTERRUPTED_DRAIN_S * NS), until_ns)
            await self._wait(lambda: not self._active, soon_ns, even_stopped=True)
        for task in tuple(self._active):
            task.cancel()
        if self._active:
            await asyncio.wait(tuple(self._active))

    async def _wait(self, is_over: Callable[[], bool], until_ns: int, *, even_stopped: bool = False) -> None:
        """Wait until a time, a condition, or the stop of the load; report work meanwhile."""
        while not is_over() and (even_stopped or not self.is_stopped):
            now_ns = self._now()
            if now_ns >= until_ns:
                break
            if now_ns - self._reported_ns >= REPORT_NS:
                self._report_work()
            await self._sleep_until(min(until_ns, now_ns + POLL_NS))

    def _report_work(self) -> None:
        self._reported_ns = self._now()
        for window in self._windows:
            self._marks.write_work(window, self._reported_ns)

    async def _sleep_until(self, at_ns: int) -> None:
        if at_ns <= self._now():
            await asyncio.sleep(0)  # those that run go on
            return
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        handle = loop.call_at(at_ns / NS, woken.set_result, None)
        try:
            await woken
        finally:
            handle.cancel()


def compute_facts(requests: Iterable[Request], steady: TimeWindow, due: int | None = None) -> dict[str, float]:
    """Return the statistics of the requests that were due in a window; times in s, rates per s, shares of one.

    `due` is their planned number: those that a client was too slow to send at all count as late.
    A request that stalled or was cancelled has waited at least until then: that time counts for it, because percentiles
    of the others alone would make an overloaded server look fast.
    """
    begin_ns, end_ns, seconds = steady.begin_ns, steady.end_ns or steady.begin_ns, steady.duration_s
    every = list(requests)
    there = [request for request in every if begin_ns <= request.due_ns < end_ns]
    good = [request for request in there if request.status == "ok"]
    waited = [request for request in there if request.status in ("stalled", "cancelled")]
    samples = {
        "ttft": [
            r.ttft_s if r.ttft_s is not None else r.latency_s for r in (*good, *waited) if r.detail != NOT_STREAMED
        ],
        "tpot": [r.tpot_s for r in good if r.tpot_s is not None],
        "latency": [r.latency_s for r in (*good, *waited)],
    }
    facts = {
        f"{name}_p{percent}": find_percentile(values, percent)
        for name, values in samples.items()
        for percent in (50, 99)
        if values
    }
    facts |= {"requests_ok": len(good), "requests_failed": len(there) - len(good)}
    planned = max(due or 0, len(there))
    if planned:
        late = sum(request.late_s > LATE_S for request in there) + planned - len(there)
        facts["late_sends"] = late / planned
    if seconds > 0:
        done = sum(request.status == "ok" and begin_ns <= request.last_ns < end_ns for request in every)
        facts |= {"rate_offered": len(there) / seconds, "rate_done": done / seconds}
    return facts


def find_percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated between neighbours as numpy does it."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
