"""Measure a training of any framework: record it, mark its phases, report its work.

The base of the callbacks for Hugging Face, Lightning and Keras. Energy is logged with the metrics of the framework; at
the end the first of all ranks prints one line. A measurement problem never reaches the training: it is logged once, and
the training goes on unmeasured.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import joulelab
from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.marks import MarkWriter, count_local_ranks, current_phase, read_global_rank
from joulelab.run import marking
from joulelab.run.energy_limit import remaining
from joulelab.run.run_options import get_runs_folder
from joulelab.run.session import is_recording_itself

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from joulelab.integrations.energy_metrics import LiveMetrics

_log = logging.getLogger("joulelab")
LOG_CHOICES = ("auto", "wandb", "mlflow", "none")
ASK_RANKS_EVERY = 10  # steps: several ranks agree on the last one only so often


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
    """Hold an open training: its measurement, its open phases, its work so far, its live metrics and trackers.

    Amounts of work are those of this rank; each is reported `scale` times, and the node has `ranks` of them.
    """

    def __init__(self, measurement: joulelab.Measurement, ranks: int, scale: int) -> None:
        self.measurement, self.ranks, self.scale = measurement, ranks, scale
        self.trackers = contextlib.ExitStack()
        self.metrics: LiveMetrics | None = None
        self.start_ns = self.last_ns = monotonic_ns()
        self.lacks_samples = False
        self._work: dict[str, float] = {}
        self._phases: list[tuple[str, MarkWriter, str | None, str | None]] = []

    def add_work(self, amounts: Mapping[str, float]) -> Mapping[str, float]:
        """Add work to the sums; return the amounts to report."""
        self.last_ns = monotonic_ns()
        for kind, amount in amounts.items():
            self._work[kind] = self._work.get(kind, 0.0) + amount
        return scale_amounts(amounts, self.scale)

    def sum_node_work(self) -> Mapping[str, float]:
        """Return the work of all ranks of the node, which are taken as alike."""
        return scale_amounts(self._work, self.ranks)

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
        if self.metrics is not None:
            self.metrics.close()
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


def print_below_bar(text: str) -> None:
    """Print a line to stderr; a bar of tqdm that is open there does not share the line with it."""
    bars: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
    has_bar = any(getattr(bar, "fp", None) == sys.stderr for bar in [*getattr(bars, "_instances", ())])
    sys.stderr.write(f"\n{text}\n" if has_bar else f"{text}\n")
    sys.stderr.flush()


def scale_amounts(amounts: Mapping[str, float], factor: int) -> Mapping[str, float]:
    """Return amounts of work times a factor."""
    return amounts if factor == 1 else {kind: amount * factor for kind, amount in amounts.items()}


class LimitStop:
    """Find out when a training has to end because the limit of its run is reached (`joulelab run --stop-at`).

    The signal of the limit, SIGTERM, would end the process at once. In its place the training ends after the current
    step. Another SIGTERM, and one that no limit sent, goes to the handler that was there before.
    """

    def __init__(self) -> None:
        self._is_signalled = self._is_closed = False
        self._calls = 0
        self._before: Any = None
        left = remaining(is_fresh=True)
        is_terminated = left is not None and left.then == "SIGTERM"
        if is_terminated and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._handle_signal)

    def close(self) -> None:
        """Restore the handler of SIGTERM; if the limit is reached and its signal is still to come, after the signal."""
        self._is_closed = True
        left = remaining(is_fresh=True)
        if self._is_signalled or left is None or not left.is_reached:
            self._restore_handler()

    def _restore_handler(self) -> None:
        if self._before is not None and signal.getsignal(signal.SIGTERM) == self._handle_signal:
            signal.signal(signal.SIGTERM, self._before)

    def is_reached(self) -> bool:
        """Return whether the training has to end after this step; all ranks of a job get the same answer."""
        self._calls += 1
        left = remaining()
        is_reached = self._is_signalled or (left is not None and left.is_reached)
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return is_reached
        if distributed.get_world_size() == 1:
            return is_reached
        if self._calls % ASK_RANKS_EVERY:
            return False
        torch: Any = sys.modules["torch"]
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        flag = torch.tensor([int(is_reached)], device=device)
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
        return bool(flag.item())

    def _handle_signal(self, number: int, frame: Any) -> None:
        left, before = remaining(is_fresh=True), self._before
        if left is not None and left.is_reached and not self._is_signalled:
            self._is_signalled = True
            if self._is_closed:
                self._restore_handler()
        elif callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class TrainingMeasurement:
    """Measure a training as a run of its own, or as a phase of the run that it is part of.

    `options` are those of `joulelab.measure()`; `log` selects the trackers that get live figures, `none` also leaves
    the metrics of the framework alone; with `summary` the first rank of all prints one line on standard error at the
    end. A node with several ranks has one recorder. If another program records, each rank reports its own work. If the
    first rank records, the others cannot report: it reports its own work times the number of ranks.
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
        self.failed, self._is_first_rank, self._has_warned = False, True, False
        self._has_stopped = False
        self._name, self._log, self._summary, self._options = name, log, summary, options
        self._begun: _OpenTraining | None = None
        self._finalizer: Any = None
        self._stop: LimitStop | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the objects of this process: callbacks are copied, and sent to processes that a trainer starts."""
        return self.__dict__ | {"measurement": None, "_begun": None, "_finalizer": None, "_stop": None}

    @property
    def is_begun(self) -> bool:
        """Return whether a training is open."""
        return self._begun is not None

    def begin_training(
        self,
        name: str,
        *,
        local_rank: int = 0,
        global_rank: int | None = None,
        ranks: int | None = None,
        spawned: bool = False,
    ) -> None:
        """Begin to measure a training (`train`), or a `test` or `predict` by itself.

        `ranks` is the number of processes on this node, `global_rank` the number of this one in the job (default: those
        of the launcher); `spawned`: this process started the others, so they are part of a run that began before.
        """
        self.end_training(JoulelabError("the training before did not report its end"), late=True)
        self.measurement, self._has_warned, self._has_stopped = None, False, False
        writer = marking.writer()
        if local_rank:
            if writer is None:
                return  # the first rank records, and reports for this one
            # A forked rank learns its number after the writer was made.
            writer.rank, writer.first = local_rank, False
        self._is_first_rank = not local_rank and not (global_rank or read_global_rank(os.environ))
        has_metrics = self._log != "none" and self._is_first_rank
        if has_metrics:
            from joulelab.run.live import import_live_modules

            import_live_modules()  # before the measurement begins
        measurement = joulelab.measure((self._name or name) if writer is None else name, **self._options)
        measurement.__enter__()
        self.measurement = measurement
        alone = is_recording_itself() and (writer is None or not spawned)
        count = ranks or count_local_ranks(os.environ)
        begun = self._begun = _OpenTraining(measurement, count, count if alone else 1)
        self._finalizer = weakref.finalize(self, begun.abandon)
        if writer is None:
            begun.enter_phase(name, None)
        if name == "train" and remaining(is_fresh=True) is not None:
            self._stop = LimitStop()
        self._start_trackers(begun)
        if has_metrics and measurement.run is not None:
            self._start_metrics(begun)

    def end_training(self, error: BaseException | None = None, *, late: bool = False) -> dict[str, float]:
        """End the measurement and all phases, if a training is open; print the line, and return the final metrics."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop.close()
        begun, self._begun = self._begun, None
        if begun is None:
            return {}
        self._finalizer.detach()
        if begun.lacks_samples:
            _log.warning("the number of samples of some steps is unknown")
        begun.close(error, late=late)
        is_wanted = self._summary or self._log != "none"
        if late or not is_wanted or not self._is_first_rank or begun.measurement.run is None:
            return {}
        try:
            return self._report_end(begun.measurement, begun.measurement.run)
        except Exception as problem:  # noqa: BLE001 - the training has ended well
            self._warn_once("the energy of the training cannot be shown", problem)
            return {}

    def _report_end(self, measurement: joulelab.Measurement, run: Path) -> dict[str, float]:
        """Print the answer in one line, and return it as metrics. Waits at most 3 s for the last readings."""
        from joulelab.integrations.energy_metrics import list_metrics, round_metric
        from joulelab.report.run_summary import write_headline

        result = measurement.result
        if result is None:
            return {}
        if self._summary:
            handle = run.name if run.parent.resolve() == get_runs_folder(os.environ).resolve() else run
            answer = write_headline(replace(result, state="closed"))  # the run may go on, the training has ended
            print_below_bar(f"joulelab: {measurement.name}: {answer}; more: joulelab show {handle}")
        metrics = list_metrics(result.energy, result.duration_s, result.work, result.site)
        if metrics and result.energy is not None and result.energy.expanded is not None:
            metrics["energy_expanded_j"] = round_metric(result.energy.expanded)
        return metrics if self._log != "none" else {}

    def read_row(self, *, has_gaps: bool = False) -> dict[str, float]:
        """Return the metrics of the training so far; without new readings nothing, or with `has_gaps` NaN."""
        begun = self._begun
        if begun is None or begun.metrics is None:
            return {}
        work = begun.sum_node_work()
        return begun.metrics.read_row(work) or (begun.metrics.make_gap(work) if has_gaps else {})

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
            if "samples" not in amounts:
                self._begun.lacks_samples = True
            done = self._begun.add_work(amounts)
            if (writer := marking.writer()) is not None:
                writer.step(done)

    def has_reached_limit(self) -> bool:
        """Return whether the training has to end after this step, because the limit of its run is reached.

        Call it once after each step, on every rank.
        """
        if self._stop is None or not self._stop.is_reached():
            return False
        if self._is_first_rank and not self._has_stopped:
            left = remaining(is_fresh=True)
            name = f"limit of {left.limit}" if left is not None else "limit of the run"
            print_below_bar(f"joulelab: the {name} is reached: the training saves its state and stops")
        self._has_stopped = True
        return True

    def report_work(self, amounts: Mapping[str, float], *, is_correction: bool = False) -> None:
        """Report work outside of steps, or by how much the work reported so far was wrong."""
        if self._begun is not None:
            done = self._begun.add_work(amounts)
            if (writer := marking.writer()) is not None:
                (writer.correct_work if is_correction else writer.work)(done)

    def mark_past_phase(self, name: str, since_ns: int, amounts: Mapping[str, float], n: int | None = None) -> None:
        """Mark a phase that ends now and whose begin was not reported, also outside of a training."""
        begun, writer = self._begun, marking.writer()
        if begun is not None:
            done = begun.add_work(amounts)
        else:
            done = scale_amounts(amounts, count_local_ranks(os.environ) if is_recording_itself() else 1)
        if writer is not None:
            writer.past(name, n, since_ns, done)

    def give_up(self, error: Exception) -> None:
        """Log the error, and do nothing from now on."""
        self.failed = True
        _log.warning("the training goes on unmeasured: %s: %s", type(error).__name__, error)
        with contextlib.suppress(Exception):
            self.end_training(error, late=True)

    def _start_metrics(self, begun: _OpenTraining) -> None:
        """Follow the energy for the metrics of the framework."""
        try:
            from joulelab.integrations.energy_metrics import LiveMetrics

            if (writer := marking.writer()) is not None:
                begun.metrics = LiveMetrics(writer.folder.parent, begun.start_ns)
        except Exception as error:  # noqa: BLE001 - it is measured in any case
            self._warn_once("energy is not in the metrics of the training", error)

    def _start_trackers(self, begun: _OpenTraining) -> None:
        """Start to log to the user's trackers; without them nothing is imported."""
        used = self._log if self._log != "auto" or {"wandb", "mlflow"} & sys.modules.keys() else "none"
        if used == "none" or begun.measurement.run is None:
            return
        try:
            from joulelab.integrations.trackers import logged

            begun.trackers.enter_context(logged(begun.measurement, to=used))
        except Exception as error:  # noqa: BLE001 - it is measured in any case
            self._warn_once("the training is not logged", error)

    def _warn_once(self, problem: str, error: Exception) -> None:
        """Log the first problem of a training; the next ones have most likely the same cause."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning("%s: %s: %s", problem, type(error).__name__, error)


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
