"""Measure a training of any framework: record it, mark its phases, report its work.

The base of the callbacks for Hugging Face, Lightning and Keras. A measurement problem never reaches the training: it is
logged once, and the training goes on unmeasured.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any, Literal

import joulelab
from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.marks import MarkWriter, count_local_ranks, current_phase, read_global_rank
from joulelab.run import marking
from joulelab.run.session import is_recording_itself
from joulelab.store.run_folder import read_end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

_log = logging.getLogger("joulelab")
LOG_CHOICES = ("auto", "wandb", "mlflow", "none")


def guard_hook(hook: Callable[..., None]) -> Callable[..., None]:
    """Keep errors of a callback's hook away from the training; after a failure the callback does nothing."""

    @functools.wraps(hook)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        training: TrainingMeasurement = self.training
        if not training.failed:
            try:
                hook(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the training goes on, measured or not
                training.give_up(error)

    return call


class _OpenTraining:
    """Hold an open training: its measurement, its open phases, its trackers."""

    def __init__(self, measurement: joulelab.Measurement, scale: int) -> None:
        self.measurement, self.scale = measurement, scale
        self.trackers = contextlib.ExitStack()
        self.last_ns = monotonic_ns()
        self.lacks_samples = False
        self._phases: list[tuple[str, MarkWriter, str | None, str | None]] = []

    def enter_phase(self, name: str, n: int | None) -> None:
        writer = marking.writer()
        self.last_ns = monotonic_ns()
        if writer is not None:
            parent = current_phase()
            self._phases.append((name, writer, writer.begin(name, n, at_ns=self.last_ns), parent))

    def leave_phase(self, name: str) -> None:
        """End a phase and the phases inside it, if it is open."""
        self.last_ns = monotonic_ns()
        if any(name == entry[0] for entry in self._phases):
            while self._end_inner_phase() != name:
                pass

    def _end_inner_phase(self) -> str:
        name, writer, identity, parent = self._phases.pop()
        writer.end(identity, parent, at_ns=self.last_ns)
        return name

    def close(self, error: BaseException | None, *, late: bool = False) -> None:
        """End everything; if it comes `late`, phases end with their last event."""
        if not late:
            self.last_ns = monotonic_ns()
        while self._phases:
            self._end_inner_phase()
        try:
            self.measurement.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        finally:
            self._log_totals()

    def _log_totals(self) -> None:
        """Log the totals after the measurement has ended, so that the time for it is not in the training."""
        try:
            self.trackers.close()
        except Exception as problem:  # noqa: BLE001
            _log.warning("the totals of the training are not logged: %s: %s", type(problem).__name__, problem)

    def abandon(self) -> None:
        """Close a training that failed without reporting its end, when the process ends or the callback is deleted."""
        self.close(getattr(sys, "last_value", None) or JoulelabError("the training did not report its end"), late=True)


class TrainingMeasurement:
    """Measure a training as a run of its own, or as a phase of the run that it is part of.

    `options` are those of `joulelab.measure()`; `log` selects the trackers that get live figures; with `summary` the
    first rank of all prints one line on standard error at the end: energy, time, run. A node with several ranks has one
    recorder. If another program records, each rank reports its own work. If the first rank records, the others cannot
    report: it reports its own work times the number of ranks.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        log: Literal["auto", "wandb", "mlflow", "none"] = "auto",
        summary: bool = True,
        **options: Any,
    ) -> None:
        if log not in LOG_CHOICES:
            raise ConfigError(f"there is no log {log!r}", next=f"take one of {', '.join(LOG_CHOICES)}")
        joulelab.measure(name, **options)  # a wrong option is refused here, not in the training
        self.measurement: joulelab.Measurement | None = None
        self.failed, self._is_first_rank = False, True
        self._name, self._log, self._summary, self._options = name, log, summary, options
        self._begun: _OpenTraining | None = None
        self._finalizer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the objects of this process: callbacks are copied, and sent to processes that a trainer starts."""
        return self.__dict__ | {"measurement": None, "_begun": None, "_finalizer": None}

    @property
    def is_begun(self) -> bool:
        """Return whether a training is open."""
        return self._begun is not None

    def begin_training(
        self, name: str, *, local_rank: int = 0, ranks: int | None = None, spawned: bool = False
    ) -> None:
        """Begin to measure a training (`train`), or a `test` or `predict` by itself.

        `ranks` is the number of processes on this node (default: that of the launcher); `spawned`: this process started
        the others, so they are part of a run that began before.
        """
        self.end_training(JoulelabError("the training before did not report its end"), late=True)
        self.measurement = None
        writer = marking.writer()
        if local_rank:
            if writer is None:
                return  # the first rank records, and reports for this one
            # A forked rank learns its number after the writer was made.
            writer.rank, writer.first = local_rank, False
        measurement = joulelab.measure((self._name or name) if writer is None else name, **self._options)
        measurement.__enter__()
        self.measurement = measurement
        alone = is_recording_itself() and (writer is None or not spawned)
        begun = self._begun = _OpenTraining(measurement, (ranks or count_local_ranks(os.environ)) if alone else 1)
        self._finalizer = weakref.finalize(self, begun.abandon)
        if writer is None:
            begun.enter_phase(name, None)
        self._start_trackers(begun)
        self._is_first_rank = not local_rank and not read_global_rank(os.environ)

    def end_training(self, error: BaseException | None = None, *, late: bool = False) -> None:
        """End the measurement and all phases, if a training is open."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._finalizer.detach()
            if begun.lacks_samples:
                _log.warning("the number of samples of some steps is unknown")
            begun.close(error, late=late)
            if self._summary and self._is_first_rank and not late:
                self._print_summary(begun.measurement)

    def _print_summary(self, measurement: joulelab.Measurement) -> None:
        """Print one line. A run that goes on is not analysed: its meters may be slow."""
        run, title = measurement.run, measurement.name
        if run is None:
            return
        try:
            from joulelab.report.format import format_duration
            from joulelab.report.run_summary import write_headline

            result = None if read_end(run) is None else measurement.result
            took = f"{format_duration(measurement.duration_s)}, a phase of a run that goes on"
            text = took if result is None else write_headline(result)
            sys.stderr.write(f"joulelab: {title}: {text}; run {run} (joulelab show {run.name})\n")
            sys.stderr.flush()
        except Exception as problem:  # noqa: BLE001 - the training has ended well
            _log.warning("the summary of the training cannot be printed: %s: %s", type(problem).__name__, problem)

    def enter_phase(self, name: str, n: int | None = None) -> None:
        """Begin a phase of the training."""
        if self._begun is not None:
            self._begun.enter_phase(name, n)

    def leave_phase(self, name: str) -> None:
        """End a phase of the training, and the phases inside it."""
        if self._begun is not None:
            self._begun.leave_phase(name)

    def report_step(self, amounts: Mapping[str, float]) -> None:
        """Report the end of a step, and its work."""
        if self._begun is not None:
            self._begun.last_ns = monotonic_ns()
            if "samples" not in amounts:
                self._begun.lacks_samples = True
            if (writer := marking.writer()) is not None:
                writer.step(self._scale_amounts(amounts))

    def report_work(self, amounts: Mapping[str, float]) -> None:
        """Report work outside of steps."""
        if self._begun is not None:
            self._begun.last_ns = monotonic_ns()
            if (writer := marking.writer()) is not None:
                writer.work(self._scale_amounts(amounts))

    def mark_past_phase(self, name: str, since_ns: int, amounts: Mapping[str, float], n: int | None = None) -> None:
        """Mark a phase that ends now and whose begin was not reported, also outside of a training."""
        writer = marking.writer()
        if writer is not None:
            writer.past(name, n, since_ns, self._scale_amounts(amounts))
        if self._begun is not None:
            self._begun.last_ns = monotonic_ns()

    def give_up(self, error: Exception) -> None:
        """Log the error, and do nothing from now on."""
        self.failed = True
        _log.warning("the training goes on unmeasured: %s: %s", type(error).__name__, error)
        with contextlib.suppress(Exception):
            self.end_training(error)

    def _scale_amounts(self, amounts: Mapping[str, float]) -> Mapping[str, float]:
        begun = self._begun  # called at every step: the environment is read only once per training
        scale = begun.scale if begun is not None else count_local_ranks(os.environ) if is_recording_itself() else 1
        return amounts if scale == 1 else {name: amount * scale for name, amount in amounts.items()}

    def _start_trackers(self, begun: _OpenTraining) -> None:
        """Start to log to the user's trackers; without them nothing is imported."""
        used = self._log if self._log != "auto" or {"wandb", "mlflow"} & sys.modules.keys() else "none"
        if used == "none" or begun.measurement.run is None:
            return
        try:
            from joulelab.integrations.trackers import logged

            begun.trackers.enter_context(logged(begun.measurement, to=used))
        except Exception as error:  # noqa: BLE001 - it is measured in any case
            _log.warning("the training is not logged: %s: %s", type(error).__name__, error)


class TrainingCallback:
    """Give a callback its training, the measurement, and `with callback:` for trainings that may fail."""

    training: TrainingMeasurement

    @property
    def measurement(self) -> joulelab.Measurement | None:
        """Return the last measurement, of the training or a later test; None before, and on other ranks."""
        return self.training.measurement

    def close(self, error: BaseException | None = None) -> None:
        """End the measurement if the framework did not, as after a failed training."""
        try:
            self.training.end_training(error)
        except Exception as problem:  # noqa: BLE001 - it must not replace the error of the training
            self.training.give_up(problem)

    def __enter__(self) -> Self:
        """Return the callback."""
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Close a training that failed; its error is raised further."""
        self.close(error)
