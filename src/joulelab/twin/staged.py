"""Run a workload that a node file models in real time: its stages, scaled down, on a served twin, under its caps."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin.job_notes import LEAD_S, JobBoard, JobDemand, JobEnd
from joulelab.twin.timeline import Course
from joulelab.twin.workload_progress import RunRequest, Step, WorkloadModel, check_names, list_used_names, make_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from joulelab.twin.job import JobStop
    from joulelab.twin.truth import Truth

TICK_S: Final = 0.02
# What begins is written this much ahead, so that short stages follow each other exactly.
AHEAD_S: Final = 0.1
MOST_SCALE: Final = 1e6


def write_models(truth: Path, workloads: Mapping[str, WorkloadModel]) -> None:
    """Write the workloads of a node beside its truth file, where jobs find them."""
    _name_file(truth).write_bytes(msgspec.json.encode(dict(workloads)))


def find_model(truth: Path, name: str) -> WorkloadModel:
    """Return how a workload gets on here. Raises ConfigError for one that the node's file does not model."""
    try:
        known = msgspec.json.decode(_name_file(truth).read_bytes(), type=dict[str, WorkloadModel])
    except FileNotFoundError:
        known = {}
    if name not in known:
        advice = (
            suggest_name(name, known)
            if known
            else "serve a node whose file has [workloads.NAME], without a load: joulelab twin NODE --idle"
        )
        raise ConfigError(f"this node models no workload {name!r}", where="job", next=advice)
    return known[name]


def _name_file(truth: Path) -> Path:
    return truth.with_name("workloads.json")


class StagedRun:
    """Run one workload in this process, `scale` times as long as the model says, with the scatter of a seed.

    `report` and `phase` are those of joulelab, `say` prints a line.
    """

    def __init__(
        self,
        truth: Truth,
        model: WorkloadModel,
        ask: RunRequest,
        *,
        scale: float,
        seed: int,
        report: Callable[..., None],
        phase: Callable[..., AbstractContextManager[Any]],
        say: Callable[[str], object],
        stop: JobStop,
        now: Callable[[], int] = monotonic_ns,
    ) -> None:
        """Take a twin and a workload; caps are those in force. Raises ConfigError where the twin takes no jobs."""
        if not 0 < scale <= MOST_SCALE:
            raise ConfigError(f"scale is {scale}, not above 0 and at most {MOST_SCALE:g}", where="job")
        check_names(model, ask.parameters, "job")
        self._truth, self._scale, self._stop, self._now = truth, scale, stop, now
        self._ask = ask
        self._course = Course(truth.node, model, self._ask_now(), seed)
        idle = [name for name in ask.parameters if name not in list_used_names(model)]
        if idle:
            say(f"without effect in the model of the workload: {', '.join(idle)}")
        self._marks = StageMarks(self._course, report, phase, say)
        self._wanted = {gpu: self._course.watts(f"gpu:{gpu}") for gpu in ask.gpus}
        self._widths = [float(width) for width in _list_widths(self._course)]
        self._slower: dict[object, float] = {}  # by stage, caps and clocks
        self._board = JobBoard(truth)

    def run(self) -> JobEnd:
        """Go through the stages, idle again, also where a signal ends it."""
        begin_ns = self._now() + round(LEAD_S * NS)
        try:
            return self._go_through_stages(begin_ns)
        finally:
            self._board.clear_demand(self._now() + round(LEAD_S * NS))

    def _go_through_stages(self, begin_ns: int) -> JobEnd:
        count = len(self._widths)
        waiting = deque([(begin_ns, 0)])  # pieces that are planned and not yet begun; `count` is the end
        self._announce_piece(0, begin_ns)
        last, since_ns, left, end_ns = 0, begin_ns, 1.0, begin_ns  # of the last one planned, so much is left
        with self._marks as marks:
            while waiting or last < count:
                planned, until_ns = [], self._now() + round(AHEAD_S * NS)
                while last < count and (due_ns := since_ns + round(left * self._lasts_s(last) * NS)) <= until_ns:
                    last, since_ns, left = last + 1, due_ns, 1.0
                    planned.append((due_ns, last))
                waiting += self._announce_due(planned)
                end_ns = waiting[-1][0] if waiting else end_ns
                tick_ns = self._now() + round(TICK_S * NS)
                if self._stop.wait_until(min(waiting[0][0], tick_ns) if waiting else tick_ns):
                    break
                now_ns = self._now()
                while waiting and waiting[0][0] <= now_ns:
                    marks.begin_piece(waiting.popleft()[1])
                if last < count and since_ns < now_ns:
                    left, since_ns = left - (now_ns - since_ns) / NS / self._lasts_s(last), now_ns
                    marks.report_progress(1 - left)
        stopped = self._stop.signal is not None
        return JobEnd(marks.ended, begin_ns, self._now() if stopped else end_ns, self._stop.signal)

    def _announce_due(self, planned: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Announce pieces that are due (ns), and return when they really begin.

        Where this process was held up, what is over already is left out, and the next one begins late.
        """
        for number, (due_ns, piece) in enumerate(planned, 1):
            at_ns = max(due_ns, self._now())
            if number == len(planned) or planned[number][0] > at_ns:
                self._announce_piece(piece, at_ns)
            yield at_ns, piece

    def _ask_now(self) -> RunRequest:
        """Return what the run is given, with the caps and clocks of now."""
        now_ns, truth = self._now(), self._truth
        caps = {gpu: truth.limit_w(gpu, now_ns) for gpu in self._ask.gpus}
        clocks = {gpu: float(mhz) for gpu in self._ask.gpus if (mhz := truth.locked_mhz(gpu)) is not None}
        return replace(self._ask, caps=caps, clocks=clocks, cpu_caps=truth.cpu_caps(now_ns))

    def _lasts_s(self, piece: int) -> float:
        """Return how long a whole piece lasts (s) under the caps and clocks of now."""
        step, ask = self._course.steps[int(self._course.of[piece])], self._ask_now()
        key = (id(step.stage), *(tuple(limits.items()) for limits in (ask.caps, ask.clocks, ask.cpu_caps)))
        if key not in self._slower:
            self._slower[key] = make_step(self._truth.node, step.stage, ask).seconds / step.seconds
        return self._scale * self._widths[piece] * self._slower[key]

    def _announce_piece(self, piece: int, at_ns: int) -> None:
        """Let the node draw from a time on what a piece asks for; the end asks for nothing."""
        if piece == len(self._widths):
            self._board.clear_demand(at_ns)
            return
        course = self._course
        watts = {gpu: float(wanted[piece]) for gpu, wanted in self._wanted.items()}
        loads = (float(course.awake[piece]), float(course.cpu[piece]), float(course.memory[piece]))
        packages = dict.fromkeys(range(self._truth.node.packages), loads)
        self._board.put_demand(JobDemand(watts, float(course.host[piece]), packages), at_ns)


class StageMarks:
    """Tell joulelab what a run does: stages of one name and epoch that follow each other are one phase."""

    def __init__(
        self,
        course: Course,
        report: Callable[..., None],
        phase: Callable[..., AbstractContextManager[Any]],
        say: Callable[[str], object],
    ) -> None:
        self.ended = 0
        self._course, self._report, self._phase, self._say = course, report, phase, say
        self._piece, self._reported = -1, 0.0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin_piece(self, piece: int) -> None:
        """Mark that a piece begins, and what ends with it; the one after the last is the end."""
        course, before = self._course, self._piece
        self._piece = piece
        step = course.steps[int(course.of[piece])] if piece < len(course.begins) else None
        last = course.steps[int(course.of[before])] if before >= 0 else None
        if step is last:
            self.report_progress(0.0)
            return
        if last is not None:
            self._finish_step(last)
        if last is None or step is None or _phase_of(step) != _phase_of(last):
            self._stack.close()
            if step is not None and step.stage.name:
                self._stack.enter_context(self._phase(*_phase_of(step)))

    def report_progress(self, share: float) -> None:
        """Report the whole samples of a step up to a share of the present piece."""
        course, piece = self._course, self._piece
        if not 0 <= piece < len(course.begins):
            return
        number = int(course.of[piece])
        begin, end = float(course.edges[number]), float(course.edges[number + 1])
        after = float(course.begins[piece + 1]) if piece + 1 < len(course.begins) else end
        done = (course.begins[piece] + share * (after - course.begins[piece]) - begin) / (end - begin)
        self._report_samples(math.floor(course.steps[number].samples * min(max(float(done), 0.0), 1.0)))

    def _report_samples(self, done: float) -> None:
        if done > self._reported:
            self._report(samples=done - self._reported)
            self._reported = done

    def _finish_step(self, step: Step) -> None:
        self._report_samples(step.samples)
        self._reported = 0.0
        self.ended += 1
        name = " ".join([step.stage.name or "stage", *([str(step.epoch)] if step.epoch else [])])
        self._say(f"{name} samples: {step.samples:g}" if step.samples else name)


def _phase_of(step: Step) -> tuple[str, int | None]:
    return step.stage.name, step.epoch


def _list_widths(course: Course) -> list[float]:
    ends = [*course.begins[1:], course.edges[-1]]
    return [float(end - begin) for begin, end in zip(course.begins, ends, strict=True)]
