"""Track a loop over batches: `for batch in joulelab.track(loader):` gives phases, throughput and joules per sample."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.core.marks import count_local_ranks, read_global_rank, read_local_rank
from joulelab.integrations.batch_sizes import SampleCount, count_samples
from joulelab.integrations.progress_bar import BarLine, ProgressBar
from joulelab.run import marking
from joulelab.run.live import LiveReader, import_live_modules, wait_until_covered
from joulelab.run.measure import measure
from joulelab.run.session import is_recording_itself

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from pathlib import Path

    from joulelab.analysis.live_energy import LiveFigures
    from joulelab.analysis.readings import Ints
    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity

_log = logging.getLogger("joulelab")
T = TypeVar("T")
MOST_STEP_TIMES = 4096  # times of steps that are kept, to tell whether the load is in step with a sensor
PAINT_S = 0.5


class _OpenLoops:
    """Know the loops of this process: which are open, and how often each has begun. Safe in threads."""

    def __init__(self) -> None:
        # One thread may come twice: what collects garbage ends loops that were left, in the midst of anything.
        self._lock = threading.RLock()
        self._open: tuple[_LoopPass, ...] = ()
        # By where a loop stands and what it is called, and by what it goes over.
        self._begun: dict[tuple[Any, int, str], list[tuple[weakref.ref[Any] | None, int]]] = {}
        self.screen = BarLine()

    def enter(self, loop: _LoopPass) -> None:
        """Take in a loop: those around it in its thread are not painted and count no steps."""
        with self._lock:
            for other in self._open:
                other.holds_others |= other.thread == loop.thread
            self._open = (*self._open, loop)

    def leave(self, loop: _LoopPass) -> None:
        """Take out a loop that has ended, in whatever thread."""
        with self._lock:
            self._open = tuple(other for other in self._open if other is not loop)

    def number(self, loader: object, place: tuple[Any, int, str]) -> int:
        """Return the how many-eth time it is, from 1, that a loader is gone over at a place.

        One that is made anew for each epoch goes on where the last one was, which is gone by then.
        """
        try:
            ref: weakref.ref[Any] | None = weakref.ref(loader)
        except TypeError:  # a list, a range: they cannot be told apart for certain
            ref = None
        with self._lock:
            known = self._begun.setdefault(place, [])
            refs = [other for other, _ in known]
            same = [k for k, r in enumerate(refs) if (r is None if ref is None else r is not None and r() is loader)]
            gone = [k for k, r in enumerate(refs) if ref is not None and r is not None and r() is None]
            found = next(iter(same or gone), None)
            if found is None:
                known.append((ref, 1))
                return 1
            known[found] = (ref, known[found][1] + 1)
            return known[found][1]


_loops = _OpenLoops()


class TrackedLoop(Generic[T]):
    """Go over batches, each time in a phase of its own; afterwards it tells of the last time: `energy`, `samples`.

    A batch counts when the loop asks for the next: one that is left by `break` or an error does not.
    """

    def __init__(self, loader: Iterable[T], place: tuple[Any, int, str], options: _TrackOptions) -> None:
        self._loader, self._place, self._options = loader, place, options
        self._loop: _LoopPass | None = None
        self._result: Result | None = None

    def __iter__(self) -> Generator[T, None, None]:
        """Begin to go over the batches, when the first is asked for."""
        loop = _LoopPass(self._place, self._options)
        self._loop, self._result = loop, None
        batches = loop.batches(self._loader)
        # Whatever becomes of the loop: also a program that ends by an error in it closes the run it began.
        weakref.finalize(batches, loop.end)
        return batches

    def __len__(self) -> int:
        """Return how many batches there are, where the loader knows."""
        return len(self._loader)  # type: ignore[arg-type]

    @property
    def samples(self) -> float:
        """Return the samples counted so far (or whatever `unit` says), 0 where they cannot be told."""
        return self._loop.count.samples if self._loop else 0.0

    @property
    def batches(self) -> int:
        """Return the batches counted so far."""
        return self._loop.count.batches if self._loop else 0

    @property
    def duration_s(self) -> float:
        """Return how long the loop took, in s; so far, while it runs."""
        return self._loop.seconds if self._loop else 0.0

    @property
    def run(self) -> Path | None:
        """Return the folder of the run that it is part of, None where nothing is recorded."""
        return self._loop.run if self._loop else None

    @property
    def result(self) -> Result | None:
        """Return everything that was found, None where nothing is recorded. Raises ConfigError while it runs."""
        if self._loop is None or not self._loop.end_ns:
            raise ConfigError("the loop has not ended", next="ask after it")
        if self._result is None:
            self._result = self._loop.result()
        return self._result

    @property
    def energy(self) -> Quantity | None:
        """Return the energy of everything measured, in J; None where there is no power meter."""
        return self.result.energy if self.result is not None else None

    @property
    def energy_per(self) -> Quantity | None:
        """Return joules per sample (or whatever `unit` says) of all ranks; None where either is unknown."""
        work = self.result.per_work() if self.result is not None else {}
        return work.get(self._options.unit)


@dataclass(frozen=True, slots=True)
class _TrackOptions:
    """Hold how a loop is tracked."""

    name: str
    n: int | None
    total: int | None
    samples: SampleCount
    show: bool | None
    unit: str


class _BatchCount:
    """Count batches and samples of one rank; the live thread reads what the loop writes."""

    __slots__ = ("at", "batches", "samples", "told")

    def __init__(self) -> None:
        self.batches, self.samples, self.told = 0, 0.0, True
        self.at: deque[int] = deque(maxlen=MOST_STEP_TIMES)


class _LoopPass:
    """Go over a loader once: what is open meanwhile, and what is left afterwards."""

    def __init__(self, place: tuple[Any, int, str], options: _TrackOptions) -> None:
        self.count = _BatchCount()
        self.run: Path | None = None
        self.start_ns = self.end_ns = 0
        self.holds_others = False
        self.thread = 0
        self._place, self._options = place, options
        self._pid = os.getpid()
        self._stack = contextlib.ExitStack()
        self._live: LiveReader | None = None
        self._bar: ProgressBar | None = None
        self._scale = 1

    @property
    def seconds(self) -> float:
        """Return how long it took, so far."""
        return ((self.end_ns or monotonic_ns()) - self.start_ns) / NS if self.start_ns else 0.0

    def batches(self, loader: Iterable[T]) -> Generator[T, None, None]:
        """Yield the batches; each that has been worked on is a step."""
        self._begin(loader)
        try:
            if marking.writer() is None and self._bar is None:
                yield from self._counting(loader)
                return
            for batch in loader:
                yield batch
                self._step(batch)
        except Exception as error:
            self.end(error)  # the loader's
            raise
        finally:
            self.end()

    def _counting(self, loader: Iterable[T]) -> Generator[T, None, None]:
        """Yield the batches of a loop that is not recorded."""
        count = self.count
        for batch in loader:
            yield batch
            count.batches += 1

    def _step(self, batch: object) -> None:
        count = self.count
        count.batches += 1
        if self._live is not None:
            count.at.append(monotonic_ns())
        if self.holds_others:
            return
        found = None
        with contextlib.suppress(Exception):  # whatever a batch is, or a function says of it
            found = count_samples(batch, self._options.samples)
        if found is None:
            self._say(batch)
            marking.step(batches=self._scale)
        else:
            count.samples += found
            marking.step(**{self._options.unit: found * self._scale})

    def _begin(self, loader: object) -> None:
        options = self._options
        n = options.n if options.n is not None else _loops.number(loader, self._place)
        shown = _is_shown(options.show)
        if shown:
            import_live_modules()  # before anything is measured
        if marking.writer() is None and not read_local_rank(os.environ):
            self._stack.enter_context(measure())
        writer = marking.writer()
        self.run = writer.folder.parent.parent if writer is not None and writer.first else None
        if is_recording_itself():
            self._scale = count_local_ranks(os.environ)  # the other ranks cannot report: this one does for all of them
        self._stack.enter_context(marking.phase(options.name, n))
        self.thread = threading.get_ident()
        _loops.enter(self)
        self.start_ns = monotonic_ns()
        if shown:
            self._watch(f"{options.name} {n}")

    def _watch(self, title: str) -> None:
        options = self._options
        self._bar = ProgressBar(
            _loops.screen, sys.stderr, title, options.unit, options.total, ranks=count_local_ranks(os.environ)
        )
        writer = marking.writer()
        folder = writer.folder.parent if writer is not None else None
        self._live = LiveReader(folder, self.start_ns, every_s=PAINT_S, steps=self._steps, then=self._paint).__enter__()

    def _paint(self, now: LiveFigures | None) -> None:
        if self._bar is not None and not self.end_ns and not self.holds_others:
            self._bar.paint(self.seconds, self.count.batches, self.count.samples, now)

    def _steps(self) -> Ints | None:
        import numpy as np

        return np.array(self.count.at.copy(), dtype=np.int64) if self.count.at else None

    def _say(self, batch: object) -> None:
        if self.count.told:
            self.count.told = False
            _log.warning(
                "how many %s a batch of %s holds cannot be told: batches are counted; say it by samples=",
                self._options.unit,
                type(batch).__name__,
            )

    def end(self, error: BaseException | None = None) -> None:
        """End what is open, once; called by the loop, and by whoever ends it otherwise."""
        if self.end_ns or not self.start_ns or self._pid != os.getpid():
            return
        self.end_ns = monotonic_ns()
        _loops.leave(self)
        if self._bar is not None:
            self._bar.erase()
        if error is None and not threading.main_thread().is_alive():
            error = getattr(sys, "last_value", None)  # what ends the program, most likely in this loop
        self._stack.__exit__(None if error is None else type(error), error, None)
        if self._bar is not None:
            self._finish()

    def _finish(self) -> None:
        """Print the line of the whole loop when its readings are there, beside whatever comes next."""
        # The interpreter waits for this thread at its end, so that the line is not lost; it takes COVER_S at most.
        if threading.main_thread().is_alive():
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._print, name="joulelab-line", daemon=False).start()
                return
        self._print()

    def _print(self) -> None:
        live, now = self._live, None
        if live is not None:
            live.stop()
            now = live.read_until(self.end_ns)
            live.close()
        if self._bar is not None:
            self._bar.finish(self.seconds, self.count.batches, self.count.samples, now)

    def result(self) -> Result | None:
        """Return what was found of the loop; None where nothing is recorded, and on other ranks."""
        if self.run is None:
            return None
        from joulelab.analysis.analyse import analyse_phase
        from joulelab.store.run_reader import open_run

        wait_until_covered(self.run, self.end_ns)
        with open_run(self.run) as run:
            return analyse_phase(run, self.start_ns, self.end_ns)


def _is_shown(show: bool | None) -> bool:
    """Return whether this process paints: the first of all ranks, if somebody looks at it or asks for it."""
    if show is False or read_global_rank(os.environ) or read_local_rank(os.environ):
        return False
    return show is True or (sys.stderr is not None and sys.stderr.isatty())


def track(
    loader: Iterable[T],
    *,
    name: str = "epoch",
    n: int | None = None,
    total: int | None = None,
    samples: int | Callable[[Any], float] | None = None,
    show: bool | None = None,
    unit: str = "samples",
) -> TrackedLoop[T]:
    """Track a loop: `for batch in joulelab.track(loader):` is a phase (`epoch 1`, `epoch 2`...) with a step per batch.

    Outside of a run the loop is measured as one of its own. `n` numbers the phase (it counts up by itself), `total` is
    the number of batches where the loader does not know, `samples` says how many are in a batch (a number or a
    function of it; else found from its tensors), `unit` what they are. `show` paints a bar on stderr or does not
    (None: if that is a terminal).
    """
    if total is None:
        with contextlib.suppress(TypeError, AttributeError, NotImplementedError, ValueError):
            total = len(loader)  # type: ignore[arg-type]
    frame = sys._getframe(1)  # noqa: SLF001 - where the loop stands is what tells it from others
    options = _TrackOptions(name, n, total, samples, show, unit)
    return TrackedLoop(loader, (frame.f_code, frame.f_lineno, name), options)
