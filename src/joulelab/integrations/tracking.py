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
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.marks import count_local_ranks, read_global_rank, read_local_rank
from joulelab.integrations.batch_sizes import SampleCount, count_samples
from joulelab.integrations.energy_metrics import analyse_block, find_site
from joulelab.integrations.progress_bar import BarLine, ProgressBar
from joulelab.run import marking
from joulelab.run.live import LiveReader, import_live_modules
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
MOST_STEP_TIMES = 4096  # they show whether the load is in step with a sensor
PAINT_S, LINE_S = 0.5, 60.0  # between two states of a bar, and between two lines where there is no terminal


class _OpenLoops:
    """Hold the open loops of this process, and how often each loop has begun. Safe in threads."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may end an abandoned loop at any point of this thread.
        self._lock = threading.RLock()
        self._open: tuple[_LoopPass, ...] = ()
        # By place and name of the loop; each entry has its loader and the number of passes.
        self._begun: dict[tuple[Any, int, str], list[tuple[weakref.ref[Any] | None, int]]] = {}
        self.bar_line = BarLine()

    def enter(self, loop: _LoopPass) -> None:
        """Add a loop: loops around it in its thread are not painted and count no steps."""
        with self._lock:
            for other in self._open:
                other.holds_others |= other.thread == loop.thread
            self._open = (*self._open, loop)

    def leave(self, loop: _LoopPass) -> None:
        """Remove a loop that has ended, in any thread."""
        with self._lock:
            self._open = tuple(other for other in self._open if other is not loop)

    def count_pass(self, loader: object, place: tuple[Any, int, str]) -> int:
        """Return how often this loop has iterated over this loader, counting from 1.

        A loader that is created for each epoch continues the number of the last one, which is deleted by then.
        """
        try:
            ref: weakref.ref[Any] | None = weakref.ref(loader)
        except TypeError:  # a list or a range has no weak reference
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
    """Iterate over batches, each pass in a phase of its own; afterwards it holds the last pass: `energy`, `samples`.

    A batch counts when the loop requests the next one; the last batch before a `break` or an error does not.
    """

    def __init__(self, loader: Iterable[T], place: tuple[Any, int, str], options: _TrackOptions) -> None:
        self._loader, self._place, self._options = loader, place, options
        self._loop: _LoopPass | None = None
        self._result: Result | None = None

    def __iter__(self) -> Generator[T, None, None]:
        """Begin a pass when the first batch is requested."""
        loop = _LoopPass(self._place, self._options)
        self._loop, self._result = loop, None
        batches = loop.yield_batches(self._loader)
        # A program that ends by an error in the loop closes its run, too.
        weakref.finalize(batches, loop.end)
        return batches

    def __len__(self) -> int:
        """Return the number of batches, if the loader has a length."""
        return len(self._loader)  # type: ignore[arg-type]

    @property
    def samples(self) -> float:
        """Return the samples counted so far (in `unit`), 0 if their number is unknown."""
        return self._loop.count.samples if self._loop else 0.0

    @property
    def batches(self) -> int:
        """Return the batches counted so far."""
        return self._loop.count.batches if self._loop else 0

    @property
    def duration_s(self) -> float:
        """Return the time of the loop in s, up to now while it runs."""
        return self._loop.seconds if self._loop else 0.0

    @property
    def run(self) -> Path | None:
        """Return the folder of its run, None if nothing is recorded."""
        return self._loop.run if self._loop else None

    @property
    def result(self) -> Result | None:
        """Return the result of the pass, None if nothing is recorded. Raises ConfigError while it runs."""
        if self._loop is None or not self._loop.end_ns:
            raise ConfigError("the loop has not ended", next="read it after the loop")
        if self._result is None:
            self._result = self._loop.analyse()
        return self._result

    @property
    def energy(self) -> Quantity | None:
        """Return the energy of everything measured in J, None without a power meter."""
        return self.result.energy if self.result is not None else None

    @property
    def energy_per(self) -> Quantity | None:
        """Return joules per sample (per `unit`) of all ranks, None if energy or samples are unknown."""
        work = self.result.per_work() if self.result is not None else {}
        return work.get(self._options.unit)


@dataclass(frozen=True, slots=True)
class _TrackOptions:
    """Hold the options of `track`."""

    name: str
    n: int | None
    total: int | None
    samples: SampleCount
    show: bool | None
    unit: str


class _BatchCount:
    """Count batches and samples of one rank; written by the loop, read by the live thread."""

    __slots__ = ("at", "batches", "samples", "warned")

    def __init__(self) -> None:
        self.batches, self.samples, self.warned = 0, 0.0, False
        self.at: deque[int] = deque(maxlen=MOST_STEP_TIMES)


class _LoopPass:
    """Hold one pass over a loader: open phases, counts, the bar."""

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
        """Return the time of the pass, up to now while it runs."""
        return ((self.end_ns or monotonic_ns()) - self.start_ns) / NS if self.start_ns else 0.0

    def yield_batches(self, loader: Iterable[T]) -> Generator[T, None, None]:
        """Yield the batches; each one that was processed is a step."""
        self._begin(loader)
        try:
            if marking.writer() is None and self._bar is None:
                yield from self._yield_unrecorded(loader)
                return
            for batch in loader:
                yield batch
                self._step(batch)
        except Exception as error:
            self.end(error)  # raised by the loader
            raise
        finally:
            self.end()

    def _yield_unrecorded(self, loader: Iterable[T]) -> Generator[T, None, None]:
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
        with contextlib.suppress(Exception):  # a batch or the user's function may raise anything
            found = count_samples(batch, self._options.samples)
        if found is None:
            self._warn_unknown(batch)
            marking.step(batches=self._scale)
        else:
            count.samples += found
            marking.step(**{self._options.unit: found * self._scale})

    def _begin(self, loader: object) -> None:
        options = self._options
        n = options.n if options.n is not None else _loops.count_pass(loader, self._place)
        display = _choose_display(options.show)
        if display is not None:
            import_live_modules()  # before the measurement begins
        if marking.writer() is None and not read_local_rank(os.environ):
            self._stack.enter_context(measure())
        writer = marking.writer()
        self.run = writer.folder.parent.parent if writer is not None and writer.first else None
        if is_recording_itself():
            self._scale = count_local_ranks(os.environ)  # the other ranks cannot report, so this one reports for all
        self._stack.enter_context(marking.phase(options.name, n))
        self.thread = threading.get_ident()
        _loops.enter(self)
        self.start_ns = monotonic_ns()
        if display is not None:
            self._start_bar(f"{options.name} {n}", is_log=display == "log")

    def _start_bar(self, title: str, *, is_log: bool) -> None:
        options, ranks = self._options, count_local_ranks(os.environ)
        self._bar = ProgressBar(
            _loops.bar_line, sys.stderr, title, options.unit, options.total, ranks=ranks, is_log=is_log
        )
        writer = marking.writer()
        folder = writer.folder.parent if writer is not None else None
        every_s = LINE_S if is_log else PAINT_S
        self._live = LiveReader(
            folder, self.start_ns, every_s=every_s, steps=self._list_steps, then=self._show
        ).__enter__()

    def _show(self, now: LiveFigures | None) -> None:
        if self._bar is not None and not self.end_ns and not self.holds_others:
            self._bar.show(self.seconds, self.count.batches, self.count.samples, now)

    def _list_steps(self) -> Ints | None:
        import numpy as np

        return np.array(self.count.at.copy(), dtype=np.int64) if self.count.at else None

    def _warn_unknown(self, batch: object) -> None:
        if not self.count.warned:
            self.count.warned = True
            _log.warning(
                "the number of %s in a batch of %s is unknown: batches are counted; give it by samples=",
                self._options.unit,
                type(batch).__name__,
            )

    def end(self, error: BaseException | None = None) -> None:
        """End the pass once; called by the loop, or when it is abandoned."""
        if self.end_ns or not self.start_ns or self._pid != os.getpid():
            return
        self.end_ns = monotonic_ns()
        _loops.leave(self)
        if self._bar is not None:
            self._bar.erase()
        if error is None and not threading.main_thread().is_alive():
            error = getattr(sys, "last_value", None)  # the error that ends the program, most likely from this loop
        self._stack.__exit__(None if error is None else type(error), error, None)
        if self._bar is not None:
            self._print_later()

    def _print_later(self) -> None:
        """Print the last line when its readings are on disk, without delaying the program."""
        # The interpreter waits for this thread (COVER_S at most), so that the line is not lost.
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
            site = None
            if self.run is not None:
                with contextlib.suppress(JoulelabError):
                    site = find_site(self.run)
            self._bar.finish(self.seconds, self.count.batches, self.count.samples, now, site)

    def analyse(self) -> Result | None:
        """Return the result of the pass, None if nothing is recorded and on other ranks."""
        return None if self.run is None else analyse_block(self.run, self.start_ns, self.end_ns)


def _choose_display(show: bool | None) -> Literal["bar", "log"] | None:
    """Return how this process shows a loop: only the first of all ranks does, elsewhere than on a terminal by lines."""
    if show is False or sys.stderr is None or read_global_rank(os.environ) or read_local_rank(os.environ):
        return None
    return "bar" if show or sys.stderr.isatty() else "log"


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

    Outside of a run, the loop is measured as a run of its own. `n` is the number of the phase (default: counted),
    `total` the number of batches if the loader has no length, `samples` the size of a batch or a function of the batch
    (default: from its tensors), `unit` the name of a sample. On a terminal a bar is painted on stderr, elsewhere a line
    is printed each minute and at the end; `show=True` is always a bar, `show=False` nothing.
    """
    if total is None:
        with contextlib.suppress(TypeError, AttributeError, NotImplementedError, ValueError):
            total = len(loader)  # type: ignore[arg-type]
    frame = sys._getframe(1)  # noqa: SLF001 - the place of the loop identifies it
    options = _TrackOptions(name, n, total, samples, show, unit)
    return TrackedLoop(loader, (frame.f_code, frame.f_lineno, name), options)
