"""Run a simulated GPU job on a served twin: `python -m joulelab.twin.job --gpus 4 --work 200 --speed 20`.

It lets its GPUs draw power in the truth file of JOULELAB_TWIN, goes slower under a cap or locked clocks,
reports its work to joulelab, and prints a line per step; its true energy is in the truth file. The twin has to be idle
otherwise: `joulelab twin 8xrtx6000 --idle -- CMD`. With `--workload NAME` it goes through the stages of a workload that
the node's file models instead.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import os
import random
import signal
import sys
import threading
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.twin.job_notes import LEAD_S, JobBoard, JobDemand, JobEnd, feed_gpus, find_model
from joulelab.twin.timeline import Course
from joulelab.twin.truth import Truth
from joulelab.twin.workload_progress import RunRequest, Step, WorkloadModel, check_names, list_used_names, make_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import FrameType

TICK_S: Final = 0.02
WARM_UP_LOAD: Final = 0.5
# Stages are written this much ahead, so that short ones follow each other exactly.
AHEAD_S: Final = 0.1
MOST_SCALE: Final = 1e6
# A tick that took this much longer was a stop (SIGSTOP): no work is done in it.
STOPPED_NS: Final = NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Describe a job: `work` steps of `batch` samples at `speed` (steps/s) on one GPU without a cap.

    `load` is the share of dynamic power; `scaling` the efficiency that each doubling of the GPUs leaves;
    `noise` the relative spread of speed between runs; `phases` are stretches of the work, with their shares.
    """

    gpus: tuple[int, ...]
    work: int = 100
    speed: float = 20.0
    batch: int = 64
    load: float = 1.0
    slowdown: tuple[float, float] | None = None
    scaling: float = 0.97
    noise: float = 0.0
    seed: int | None = None
    warm_up_s: float = 0.0
    phases: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        right = self.gpus and self.work >= 1 and self.speed > 0 and self.batch >= 1 and 0 < self.load <= 1
        right = right and 0 < self.scaling <= 1 and self.noise >= 0 and self.warm_up_s >= 0
        if not (right and all(share > 0 for _, share in self.phases)):
            raise ConfigError(
                "a number is out of range", where="job", why="work, speed, batch and shares are above 0",
                next="load and scaling lie above 0 and at most at 1; noise and warm-up are not negative",
            )  # fmt: skip


class JobStop:
    """Note the signal that ends a job; `wait` returns early for it."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._event = threading.Event()

    def note_signal(self, number: int, _: FrameType | None = None) -> None:
        """Note a signal."""
        self.signal = number
        self._event.set()

    def wait_until(self, t_ns: int) -> bool:
        """Wait until a time (ns); return whether a signal came."""
        return self._event.wait(max(t_ns - monotonic_ns(), 0) / NS)


@dataclass(frozen=True, slots=True)
class JobContext:
    """Hold the surroundings of a job: joulelab's `work` and `phase`, how a line is printed, its stop and its clock."""

    report: Callable[..., None]
    phase: Callable[..., AbstractContextManager[Any]]
    say: Callable[[str], object]
    stop: JobStop
    now: Callable[[], int] = monotonic_ns


class SimulatedJob:
    """Run one job in this process. Raises ConfigError where the twin takes none."""

    def __init__(self, truth: Truth, context: JobContext) -> None:
        self._truth, self._context = truth, context
        self._stop, self._now = context.stop, context.now
        self._board = JobBoard(truth)

    def run(self) -> JobEnd:
        """Do the job, then idle again, also where a signal ends it."""
        try:
            return self._do_work(self._now() + round(LEAD_S * NS))
        finally:
            self._board.clear_demand(self._now() + round(LEAD_S * NS))

    def _do_work(self, begin_ns: int) -> JobEnd:
        raise NotImplementedError


class JobRunner(SimulatedJob):
    """Run steps that are all alike."""

    def __init__(self, truth: Truth, job: Job, context: JobContext) -> None:
        """Take a twin and a job. Raises ConfigError where the twin takes none, or has no such GPU."""
        super().__init__(truth, context)
        self._job, count = job, len(job.gpus)
        draw = random.Random(job.seed).gauss(0.0, job.noise) if job.noise else 0.0  # noqa: S311 - not a secret
        self._speed: float = job.speed * count * job.scaling ** math.log2(count) * math.exp(draw)
        self._full_w = {gpu: self._draw_w(gpu, job.load) for gpu in job.gpus}
        gpus = {gpu: truth.node.get_board(gpu) for gpu in job.gpus}
        self._models = {gpu: replace(one, slowdown=job.slowdown or one.slowdown) for gpu, one in gpus.items()}

    def _draw_w(self, gpu: int, load: float) -> float:
        """Return what a GPU draws without a cap but its default (W)."""
        return min(float(self._truth.node.draws_w(f"gpu:{gpu}", load)), self._truth.node.gpus[gpu].default_cap_w)

    def _compute_rate(self, t_ns: int) -> float:
        """Return steps per second at a time: the slowest GPU holds up the others."""
        truth = self._truth
        return self._speed / max(
            one.slow_down(self._full_w[gpu], truth.limit_w(gpu, t_ns), truth.locked_mhz(gpu))
            for gpu, one in self._models.items()
        )

    def _warm_up(self, begin_ns: int) -> int:
        watts = {gpu: self._draw_w(gpu, WARM_UP_LOAD * self._job.load) for gpu in self._job.gpus}
        self._board.put_demand(feed_gpus(self._truth.node, watts), begin_ns)
        with self._context.phase("warm-up"):
            end_ns = begin_ns + round(self._job.warm_up_s * NS)
            self._stop.wait_until(end_ns)
        return max(end_ns, self._now()) + round(LEAD_S * NS)

    def _do_work(self, begin_ns: int) -> JobEnd:
        if self._job.warm_up_s:
            begin_ns = self._warm_up(begin_ns)
        if self._stop.signal is not None:
            return JobEnd(0, begin_ns, begin_ns, self._stop.signal)
        self._board.put_demand(feed_gpus(self._truth.node, self._full_w), begin_ns)
        self._stop.wait_until(begin_ns)
        last_ns, done, counted = begin_ns, 0.0, 0
        with contextlib.ExitStack() as stack:
            phases = self._plan_phases(stack)
            while counted < self._job.work and self._stop.signal is None:
                phases(counted)
                rate = self._compute_rate(last_ns)
                due_ns = last_ns + math.ceil((self._job.work - done) / rate * NS)
                # The end is announced ahead, as every change of power is.
                is_last = due_ns - last_ns <= round((TICK_S + LEAD_S) * NS) and due_ns - self._now() > 0
                if is_last:
                    self._board.clear_demand(due_ns)
                self._stop.wait_until(due_ns if is_last else last_ns + round(TICK_S * NS))
                now_ns = due_ns if is_last and self._stop.signal is None else self._now()
                if now_ns - last_ns > STOPPED_NS:
                    last_ns = now_ns
                done += (rate + self._compute_rate(now_ns)) / 2 * (now_ns - last_ns) / NS
                last_ns = now_ns
                counted = self._report_steps(counted, self._job.work if now_ns == due_ns else math.floor(done))
        return JobEnd(counted, begin_ns, last_ns, self._stop.signal)

    def _report_steps(self, counted: int, done: int) -> int:
        """Report whole steps that are new, and print a line; return how many there are."""
        done = min(done, self._job.work)
        if done > counted:
            self._context.report(steps=done - counted, samples=(done - counted) * self._job.batch)
            loss = 0.4 + 2.0 / (1 + 9 * done / self._job.work)
            self._context.say(f"step {done} samples: {done * self._job.batch} loss {loss:.2f}")
        return max(done, counted)

    def _plan_phases(self, stack: contextlib.ExitStack) -> Callable[[int], None]:
        """Return what begins each phase when its first step is due, and ends the one before."""
        total, begin = sum(share for _, share in self._job.phases), 0.0
        waiting = []
        for name, share in self._job.phases:
            waiting.append((begin / total * self._job.work, name))
            begin += share

        def begin_due(step: int) -> None:
            while waiting and step >= waiting[0][0]:
                stack.close()
                stack.enter_context(self._context.phase(waiting.pop(0)[1]))

        return begin_due


class StagedRun(SimulatedJob):
    """Go through the stages of a workload, `scale` times as long as the model says, with the scatter of a seed."""

    def __init__(
        self, truth: Truth, model: WorkloadModel, ask: RunRequest, context: JobContext, *, scale: float, seed: int
    ) -> None:
        """Take a twin and a workload; caps are those in force. Raises ConfigError where the twin takes no jobs."""
        if not 0 < scale <= MOST_SCALE:
            raise ConfigError(f"scale is {scale}, not above 0 and at most {MOST_SCALE:g}", where="job")
        check_names(model, ask.parameters, "job")
        super().__init__(truth, context)
        self._scale, self._ask = scale, ask
        self._course = Course(truth.node, model, self._ask_now(), seed)
        idle = [name for name in ask.parameters if name not in list_used_names(model)]
        if idle:
            context.say(f"without effect in the model of the workload: {', '.join(idle)}")
        self._marks = StageMarks(self._course, context)
        self._wanted = {gpu: self._course.watts(f"gpu:{gpu}") for gpu in ask.gpus}
        ends = [*self._course.begins[1:], self._course.edges[-1]]
        self._widths = [float(end - begin) for begin, end in zip(self._course.begins, ends, strict=True)]
        self._slower: dict[object, float] = {}  # by stage, caps and clocks

    def _do_work(self, begin_ns: int) -> JobEnd:
        count = len(self._widths)
        waiting = deque([(begin_ns, 0)])  # pieces that are planned and not yet begun; `count` is the end
        self._announce_piece(0, begin_ns)
        last, since_ns, left, end_ns = 0, begin_ns, 1.0, begin_ns  # `left` is a share of the last planned piece
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

        Where this process was held up, pieces that are over already are left out, and the next one begins late.
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
    """Mark the stages of a run: stages of one name and epoch that follow each other are one phase."""

    def __init__(self, course: Course, context: JobContext) -> None:
        self.ended = 0
        self._course, self._context = course, context
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
                self._stack.enter_context(self._context.phase(*_phase_of(step)))

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
            self._context.report(samples=done - self._reported)
            self._reported = done

    def _finish_step(self, step: Step) -> None:
        self._report_samples(step.samples)
        self._reported = 0.0
        self.ended += 1
        name = " ".join([step.stage.name or "stage", *([str(step.epoch)] if step.epoch else [])])
        self._context.say(f"{name} samples: {step.samples:g}" if step.samples else name)


def _phase_of(step: Step) -> tuple[str, int | None]:
    return step.stage.name, step.epoch


def find_visible_gpus(truth: Truth, environ: Mapping[str, str], count: int | None, least: int = 1) -> tuple[int, ...]:
    """Return the GPUs of a job: the first `count` of CUDA_VISIBLE_DEVICES, or all of it; else the first GPU."""
    known = range(len(truth.node.gpus))
    given = environ.get("CUDA_VISIBLE_DEVICES")
    names = {**{str(gpu): gpu for gpu in known}, **{truth.uuid(gpu): gpu for gpu in known}}
    words = [word.strip() for word in given.split(",") if word.strip()] if given is not None else list(map(str, known))
    if wrong := [word for word in words if word not in names]:
        raise ConfigError(f"there is no GPU {wrong[0]!r}", where="CUDA_VISIBLE_DEVICES", next=f"0 to {len(known) - 1}")
    wanted = (len(words) if given is not None else min(len(words), 1)) if count is None else count
    if not least <= wanted <= len(words):
        raise ConfigError(f"{wanted} GPUs are wanted, {len(words)} are visible", where="job")
    return tuple(names[word] for word in words[:wanted])


def _read_pair(text: str) -> tuple[float, float]:
    a, k = (float(part) for part in text.split(","))
    return a, k


def _read_phases(text: str) -> tuple[tuple[str, float], ...]:
    parts = (part.partition("=") for part in text.split(","))
    return tuple((name.strip(), float(share or 1)) for name, _, share in parts)


def _read_setting(text: str) -> tuple[str, float]:
    key, _, value = text.partition("=")
    return key.strip(), float(value)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m joulelab.twin.job", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--gpus", type=int, metavar="N", help="first N of CUDA_VISIBLE_DEVICES (all of it, else one GPU)")
    add("--work", type=int, default=100, metavar="STEPS", help="steps to do (100)")
    add("--speed", type=float, default=20.0, help="steps/s on one GPU without a cap (20)")
    add("--batch", type=int, default=64, help="samples per step (64)")
    add("--load", type=float, default=1.0, help="share of dynamic power, above 0 to 1 (1)")
    add(
        "--slowdown",
        type=_read_pair,
        metavar="A,K",
        help="t/t0 = 1 + A ((P/P0)^-K - 1) under a cap (by the GPU's model)",
    )
    add("--scaling", type=float, default=0.97, help="efficiency that each doubling of GPUs leaves (0.97)")
    add("--noise", type=float, default=0.0, help="relative spread of speed between runs (0)")
    add("--seed", type=int, help="draw the noise from this (anew each time)")
    add("--warm-up", type=float, default=0.0, dest="warm_up_s", metavar="S", help="seconds before the work (0)")
    add(
        "--phases",
        type=_read_phases,
        default=(),
        metavar="NAME[=SHARE],...",
        help="mark stretches of the work as phases",
    )
    add = parser.add_argument_group("a workload that the node's file models, instead of the above").add_argument
    add("--workload", metavar="NAME", help="go through its stages (--gpus 0: on the CPUs)")
    add("--scale", type=float, default=1.0, help="times as long as the model says: 0.01 for a look (1)")
    add(
        "--set",
        type=_read_setting,
        action="append",
        default=[],
        metavar="KEY=NUMBER",
        help="a parameter of the workload",
    )
    return parser


@contextlib.contextmanager
def _catch_signals(stop: JobStop) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    found = {number: signal.signal(number, stop.note_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)


def run_job(arguments: Sequence[str] | None, environ: Mapping[str, str]) -> JobEnd:
    """Run the job that the arguments describe. Raises ConfigError."""
    options = vars(_make_parser().parse_args(arguments))
    path = environ.get("JOULELAB_TWIN")
    if not path or not Path(path).exists():
        raise ConfigError(
            "there is no twin to run on", where="job", why="JOULELAB_TWIN names none",
            next="joulelab twin 8xrtx6000 --idle -- python -m joulelab.twin.job",
        )  # fmt: skip
    # The job is a workload: it speaks to joulelab as any user's script does.
    joulelab = importlib.import_module("joulelab")
    stop = JobStop()
    with Truth(Path(path)) as truth, _catch_signals(stop):
        context = JobContext(joulelab.work, joulelab.phase, _print_line, stop)
        workload, scale, given = (options.pop(key) for key in ("workload", "scale", "set"))
        options["gpus"] = find_visible_gpus(truth, environ, options["gpus"], least=0 if workload else 1)
        if workload is None:
            return JobRunner(truth, Job(**options), context).run()
        seed = random.getrandbits(32) if options["seed"] is None else options["seed"]
        ask = RunRequest(dict(given), options["gpus"])
        model = find_model(truth.path, workload)
        return StagedRun(truth, model, ask, context, scale=scale, seed=seed).run()


def _print_line(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job; end by the signal that ended it."""
    try:
        done = run_job(arguments, os.environ)
    except ConfigError as error:
        sys.stderr.write(f"joulelab: {error}\n")
        return 2
    if done.signal is not None:
        signal.signal(done.signal, signal.SIG_DFL)
        os.kill(os.getpid(), done.signal)
    seconds = (done.end_ns - done.begin_ns) / NS
    _print_line(f"finished {done.steps} steps in {seconds:.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
