"""Follow a training of any framework: record it unless somebody does, mark its phases, count its work.

What the callbacks of Hugging Face, Lightning and Keras share. A measurement problem never reaches the training: it is
said once, and the training goes on unmeasured.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import joulelab
from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.marks import MarkWriter, count_local_ranks, current_phase, read_global_rank
from joulelab.run import marking
from joulelab.run.session import is_recording_itself
from joulelab.store.run_folder import read_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

_log = logging.getLogger("joulelab")

LOG_CHOICES = ("auto", "wandb", "mlflow", "none")
# How deep a batch is searched for a tensor.
TENSOR_DEPTH = 4
# What texts are called in a batch.
TEXT_KEY = "input_ids"


def guard_hook(hook: Callable[..., None]) -> Callable[..., None]:
    """Keep what a hook of a callback raises away from the training; after a failure the callback is inert."""

    @functools.wraps(hook)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        training: TrainingMeasurement = self.training
        if not training.failed:
            try:
                hook(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the training goes on, measured or not
                training.give_up(error)

    return call


def count_work(batch: Any) -> dict[str, float]:
    """Return the samples of a batch, and its tokens (with padding) if it has `input_ids`; nothing if it has no tensor.

    Samples are the length of the first tensor: a trainer has stacked them.
    """
    if isinstance(batch, Mapping) and (shape := _read_shape(batch.get(TEXT_KEY))):
        return {"samples": shape[0], "tokens": shape[0] * shape[1]} if len(shape) == 2 else {"samples": shape[0]}
    shape = _find_first_shape(batch, TENSOR_DEPTH)
    return {"samples": shape[0]} if shape else {}


class BatchCounter:
    """Tell the amounts of batches, as `amounts_of` does; where the first one had its tensor, the next ones have theirs.

    Called at every step: batches of another kind, or without a tensor in that place, are searched anew.
    """

    def __init__(self) -> None:
        self._kind: type | None = None
        self._path: tuple[Any, ...] = ()
        self._tokens = False

    def __call__(self, batch: Any) -> dict[str, float]:
        """Return the amounts of a batch."""
        if type(batch) is self._kind:
            try:
                part: Any = batch
                for key in self._path:
                    part = part[key]
                size, *more = part.shape
                if not self._tokens:
                    return {"samples": int(size)}
                if len(more) == 1:
                    return {"samples": int(size), "tokens": int(size) * int(more[0])}
            except (LookupError, TypeError, ValueError, AttributeError):
                pass  # it has another form
        path = _find_tensor(batch, TENSOR_DEPTH)
        self._kind, self._path = (None, ()) if path is None else (type(batch), path)
        self._tokens = path == (TEXT_KEY,)
        return count_work(batch)


def _find_first_shape(batch: Any, deep: int) -> tuple[int, ...]:
    path = _find_tensor(batch, deep)
    for key in path or ():
        batch = batch[key]
    return () if path is None else _read_shape(batch)


def _find_tensor(batch: Any, deep: int) -> tuple[Any, ...] | None:
    """Return the keys that lead to the first tensor of a batch, to its tokens if it has any; None without a tensor."""
    if _read_shape(batch):
        return ()
    if deep == TENSOR_DEPTH and isinstance(batch, Mapping) and _read_shape(batch.get(TEXT_KEY)):
        return (TEXT_KEY,)
    of = batch.items() if isinstance(batch, Mapping) else enumerate(batch) if isinstance(batch, (list, tuple)) else ()
    found = ((key, _find_tensor(part, deep - 1)) for key, part in of) if deep else ()
    return next(((key, *path) for key, path in found if path is not None), None)


def _read_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor or array as plain numbers; nothing for a scalar or anything else."""
    shape = getattr(value, "shape", None)
    return tuple(int(n) for n in shape) if shape is not None and len(shape) else ()


class _OpenTraining:
    """Hold what is open of a training: the measurement, the phases in it, and who logs it."""

    def __init__(self, measurement: joulelab.Measurement, scale: int) -> None:
        self.measurement, self.scale = measurement, scale
        self.trackers = contextlib.ExitStack()
        self.last_ns = monotonic_ns()
        self.uncounted = False
        self._open: list[tuple[str, MarkWriter, str | None, str | None]] = []

    def enter(self, name: str, n: int | None) -> None:
        writer = marking.writer()
        self.last_ns = monotonic_ns()
        if writer is not None:
            parent = current_phase()
            self._open.append((name, writer, writer.begin(name, n, at_ns=self.last_ns), parent))

    def leave(self, name: str) -> None:
        """End a phase and all that are open in it; nothing if it is not open."""
        self.last_ns = monotonic_ns()
        if any(name == entry[0] for entry in self._open):
            while self._end_innermost() != name:
                pass

    def _end_innermost(self) -> str:
        name, writer, identity, parent = self._open.pop()
        writer.end(identity, parent, at_ns=self.last_ns)
        return name

    def close(self, error: BaseException | None, *, late: bool = False) -> None:
        """End everything; where it comes late, phases end with the last that was heard of them."""
        if not late:
            self.last_ns = monotonic_ns()
        while self._open:
            self._end_innermost()
        try:
            self.measurement.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        finally:
            self._log_all()

    def _log_all(self) -> None:
        """Let trackers have the totals, after the measurement has ended: what that takes is not the training's."""
        try:
            self.trackers.close()
        except Exception as problem:  # noqa: BLE001
            _log.warning("the training is not logged to the end: %s: %s", type(problem).__name__, problem)

    def abandon(self) -> None:
        """Close what nobody ended: the process ends, or the callback is gone, after a training that failed."""
        self.close(
            getattr(sys, "last_value", None) or JoulelabError("the training did not say that it ended"), late=True
        )


class TrainingMeasurement:
    """Follow a training: a measurement of its own or a phase of the run it is in, phases inside, steps and work.

    `options` are those of `joulelab.measure()`; `log` says which trackers get live figures; with `summary` the first
    rank of all prints a line on standard error in the end: energy, time, where the run is. On a node with several
    ranks there is one recorder: if somebody else records, each rank reports its own work; if the first rank does, the
    others cannot, and it reports for all of them, as many times its own.
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
        joulelab.measure(name, **options)  # refuses a wrong option here, not in the training
        self.measurement: joulelab.Measurement | None = None
        self.failed, self._first = False, True
        self._name, self._log, self._summary, self._options = name, log, summary, options
        self._begun: _OpenTraining | None = None
        self._finalizer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process: callbacks are copied, and sent to processes that a trainer starts."""
        return self.__dict__ | {"measurement": None, "_begun": None, "_finalizer": None}

    @property
    def begun(self) -> bool:
        """Return whether a training goes on."""
        return self._begun is not None

    def begin(self, name: str, *, local_rank: int = 0, ranks: int | None = None, spawned: bool = False) -> None:
        """Begin to measure a training (`train`), or what stands alone (`test`, `predict`).

        `ranks` is the number of processes on this node (the launcher's unless given); `spawned` says that this process
        started the others, so that they are in every run that was there before.
        """
        self.end(JoulelabError("the training before did not say that it ended"), late=True)
        self.measurement = None
        writer = marking.writer()
        if local_rank:
            if writer is None:
                return  # the first rank records, and reports for this one
            # Who forks ranks tells them who they are after the writer was made.
            writer.rank, writer.first = local_rank, False
        measurement = joulelab.measure((self._name or name) if writer is None else name, **self._options)
        measurement.__enter__()
        self.measurement = measurement
        alone = is_recording_itself() and (writer is None or not spawned)
        begun = self._begun = _OpenTraining(measurement, (ranks or count_local_ranks(os.environ)) if alone else 1)
        self._finalizer = weakref.finalize(self, begun.abandon)
        if writer is None:
            begun.enter(name, None)
        self._follow(begun)
        self._first = not local_rank and not read_global_rank(os.environ)

    def end(self, error: BaseException | None = None, *, late: bool = False) -> None:
        """End the measurement and all phases; nothing if none goes on."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._finalizer.detach()
            if begun.uncounted:
                _log.warning("the callback does not know how many samples some steps had")
            begun.close(error, late=late)
            if self._summary and self._first and not late:
                self._print_summary(begun.measurement)

    def _print_summary(self, measurement: joulelab.Measurement) -> None:
        """Print one line on what was measured. A run that goes on is not analysed: its meters may be slow."""
        run, title = measurement.run, measurement.name
        if run is None:
            return
        try:
            from joulelab.report.format import format_duration
            from joulelab.report.run_tables import write_headline

            result = None if read_end(run) is None else measurement.result
            took = f"{format_duration(measurement.duration_s)}, a phase of a run that goes on"
            text = took if result is None else write_headline(result)
            sys.stderr.write(f"joulelab: {title}: {text}; run {run} (joulelab show {run.name})\n")
            sys.stderr.flush()
        except Exception as problem:  # noqa: BLE001 - the training has ended well
            _log.warning("the training cannot be summed up: %s: %s", type(problem).__name__, problem)

    def enter(self, name: str, n: int | None = None) -> None:
        """Begin a phase of the training."""
        if self._begun is not None:
            self._begun.enter(name, n)

    def leave(self, name: str) -> None:
        """End a phase of the training, and those inside that are still open."""
        if self._begun is not None:
            self._begun.leave(name)

    def step(self, amounts: Mapping[str, float]) -> None:
        """End a step."""
        if self._begun is not None:
            self._begun.last_ns = monotonic_ns()
            if "samples" not in amounts:
                self._begun.uncounted = True
            if (writer := marking.writer()) is not None:
                writer.step(self._scaled(amounts))

    def work(self, amounts: Mapping[str, float]) -> None:
        """Report work that is no step of the training."""
        if self._begun is not None:
            self._begun.last_ns = monotonic_ns()
            if (writer := marking.writer()) is not None:
                writer.work(self._scaled(amounts))

    def past(self, name: str, since_ns: int, amounts: Mapping[str, float], n: int | None = None) -> None:
        """Mark a phase that ends now and whose begin nobody told, also outside of a training."""
        writer = marking.writer()
        if writer is not None:
            writer.past(name, n, since_ns, self._scaled(amounts))
        if self._begun is not None:
            self._begun.last_ns = monotonic_ns()

    def give_up(self, error: Exception) -> None:
        """Say once what failed, and do nothing from now on."""
        self.failed = True
        _log.warning("the training goes on unmeasured: %s: %s", type(error).__name__, error)
        with contextlib.suppress(Exception):
            self.end(error)

    def _scaled(self, amounts: Mapping[str, float]) -> Mapping[str, float]:
        begun = self._begun  # at every step, so nothing is asked for that does not change
        scale = begun.scale if begun is not None else count_local_ranks(os.environ) if is_recording_itself() else 1
        return amounts if scale == 1 else {name: amount * scale for name, amount in amounts.items()}

    def _follow(self, begun: _OpenTraining) -> None:
        """Hand the run to the trackers that the user has; without them nothing is imported."""
        used = self._log if self._log != "auto" or {"wandb", "mlflow"} & sys.modules.keys() else "none"
        if used == "none" or begun.measurement.run is None:
            return
        try:
            from joulelab.integrations.trackers import logged

            begun.trackers.enter_context(logged(begun.measurement, to=used))
        except Exception as error:  # noqa: BLE001 - it is measured all the same
            _log.warning("the training is not logged: %s: %s", type(error).__name__, error)


class TrainingCallback:
    """Give a callback its training, the measurement of it, and `with callback:` for trainings that may fail."""

    training: TrainingMeasurement

    @property
    def measurement(self) -> joulelab.Measurement | None:
        """Return the last measurement: of the training, or of a test since; None before and on inert ranks."""
        return self.training.measurement

    def close(self, error: BaseException | None = None) -> None:
        """End the measurement if the framework did not, as when the training failed; nothing if it has ended."""
        try:
            self.training.end(error)
        except Exception as problem:  # noqa: BLE001 - it must not stand in for what the training raised
            self.training.give_up(problem)

    def __enter__(self) -> Self:
        """Watch a training that may fail."""
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Close what a failed training left open; what it raised goes on."""
        self.close(error)
