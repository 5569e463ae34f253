"""Measure a block or a function: `with joulelab.measure("training") as m:`, `@joulelab.measured("training")`.

Only the first steps are loaded here: the recorder starts, and the rest is loaded while it opens the meters.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import numbers
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.core.marks import WORK_INTERVAL_NS, count_local_ranks, current_phase
from joulelab.core.process_identity import RUN_VARIABLE
from joulelab.core.text import escape_unprintable
from joulelab.run import marking
from joulelab.run.run_options import RunOptions, get_host_name, get_runs_folder
from joulelab.run.session import MeasureSession, join_session, leave_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator
    from contextlib import AbstractContextManager

    from joulelab.analysis.result import Check, PhaseResult, Result
    from joulelab.core.quantity import Quantity
    from joulelab.run.config.configuration import Config
    from joulelab.run.config.meter_choice import MeterChoice

_log = logging.getLogger("joulelab")
RANKS_NS = WORK_INTERVAL_NS + NS // 10
BEGIN_ADVICE = 'write `joulelab.begin("name")`'
P = ParamSpec("P")
R = TypeVar("R")


class Measurement:
    """Measure a `with` block. Afterwards: `energy` (J, with uncertainty), `scopes`, `phases`, `duration_s`.

    The outermost block of a process that is not recorded starts a run; every other block is a phase of the run it is
    in. On ranks other than the first of a node it does nothing. Results are computed when first used.
    """

    def __init__(
        self,
        name: str | None,
        make_options: Callable[[], RunOptions],
        labels: Mapping[str, str],
        copy: Callable[[str], Measurement],
        *,
        has_meters: bool,
    ) -> None:
        self.name = name
        self.run: Path | None = None
        self._make_options, self._labels, self._copy = make_options, labels, copy
        self._has_meters = has_meters
        self._session: MeasureSession | None = None
        self._started_run = self._is_run = False
        self._start_ns = self._end_ns = 0
        self._pid = 0
        self._phase: str | None = None
        self._parent: str | None = None
        self._result: Result | None = None

    def __call__(self, function: Callable[P, R] | None = None) -> Callable[P, R]:
        """Measure each call of a function: `@joulelab.measure("name")`. Raises ConfigError for anything else."""
        return _wrap_function(function, self.name, None, self._copy)

    def __enter__(self) -> Measurement:
        """Begin to measure."""
        if self._start_ns:
            raise ConfigError(
                "a measurement is used once", next="call joulelab.measure() again", code="config.used-twice"
            )
        self._pid = os.getpid()
        self._session, self._started_run = join_session(self._make_options, warm=not self._has_meters)
        writer = marking.writer()
        if self._session is not None:
            self.run = self._session.recording.run
        elif writer is not None and not writer.rank:
            self.run = Path(os.environ[RUN_VARIABLE]) if RUN_VARIABLE in os.environ else None
        self._start_ns = self._session.start_ns if self._session and self._started_run else monotonic_ns()
        if writer is not None and not self._started_run:
            self._parent = current_phase()
            self._phase = writer.begin(self.name or "measure", None, self._labels, at_ns=self._start_ns)
        return self

    def __exit__(self, *raised: Any) -> None:
        """End the measurement; an exception of the block is passed on."""
        error: BaseException | None = raised[1]
        self._end_ns = monotonic_ns()
        writer, session = marking.writer(), self._session
        if writer is not None and self._phase is not None:
            writer.end(self._phase, self._parent, at_ns=self._end_ns)
        elif writer is not None and session is not None and session.open_blocks > 1 and self._pid == os.getpid():
            # The block that started the run ends before others that joined it: it becomes a phase after all.
            parent = current_phase()
            identity = writer.begin(self.name or "measure", None, self._labels, at_ns=self._start_ns)
            writer.end(identity, parent, at_ns=self._end_ns)
        self._is_run = session is not None and leave_session(session, self._end_ns, error) and self._started_run

    @property
    def duration_s(self) -> float:
        """Return the duration of the block in s; up to now, while it runs."""
        return ((self._end_ns or monotonic_ns()) - self._start_ns) / NS if self._start_ns else 0.0

    @property
    def ended(self) -> bool:
        """Return whether the block has ended."""
        return bool(self._end_ns)

    @property
    def result(self) -> Result | None:
        """Return the full result; None where nothing was recorded. Raises ConfigError while the block runs."""
        if not self._start_ns:
            then = 'write `with joulelab.measure("name") as m:`'
            raise ConfigError("nothing was measured yet", next=then, code="config.not-measured")
        if not self._end_ns:
            then = "read it after the with block or joulelab.end()"
            raise ConfigError("the measurement has not ended", next=then, code="config.not-ended")
        if self._result is None and self.run is not None:
            from joulelab.analysis.analyse import analyse_phase, analyse_run
            from joulelab.run.live import wait_until_covered
            from joulelab.store.run_reader import open_run

            if not self._is_run:
                wait_until_covered(self.run, self._end_ns)
                if count_local_ranks(os.environ) > 1:  # the others write their work within half a second
                    time.sleep(max(self._end_ns + RANKS_NS - monotonic_ns(), 0) / NS)
            with open_run(self.run) as run:
                whole = self._is_run
                self._result = analyse_run(run) if whole else analyse_phase(run, self._start_ns, self._end_ns)
        return self._result

    @property
    def energy(self) -> Quantity | None:
        """Return the energy of everything measured, in J; None where there is no power meter."""
        return self.result.energy if self.result is not None else None

    @property
    def cost(self) -> Quantity | None:
        """Return the cost of this energy in the currency of `result.site`; None without a price or without energy."""
        footprint = self.result.footprint if self.result is not None else None
        return footprint.cost if footprint is not None else None

    @property
    def co2e(self) -> Quantity | None:
        """Return the CO2e of this energy in kg; None without energy or intensity, whose source is in `result.site`."""
        footprint = self.result.footprint if self.result is not None else None
        return footprint.co2e_kg if footprint is not None else None

    @property
    def scopes(self) -> dict[str, Quantity]:
        """Return the energy of each scope, in J."""
        return {s.scope: s.energy for s in self.result.scopes} if self.result is not None else {}

    @property
    def phases(self) -> tuple[PhaseResult, ...]:
        """Return the phases inside the block."""
        return self.result.phases if self.result is not None else ()

    @property
    def checks(self) -> tuple[Check, ...]:
        """Return the doubts about the measurement."""
        return self.result.checks if self.result is not None else ()

    def __repr__(self) -> str:
        """Return a small table; while the block runs, its duration."""
        title = escape_unprintable(self.name or "measurement")
        if not self._end_ns:
            return f"<{title}: {f'measuring for {self.duration_s:.1f} s' if self._start_ns else 'not begun'}>"
        try:
            from joulelab.report.run_summary import describe_measurement

            return describe_measurement(title, self.duration_s, self.run, self.result)
        except Exception as error:  # noqa: BLE001 - printing must not end a program
            return f"{title}: {self.duration_s:.3f} s, cannot be analysed ({type(error).__name__}: {error})"


@overload
def measure(name: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def measure(
    name: str | None = None,
    *,
    runs: str | Path | None = None,
    meters: Sequence[Mapping[str, Any] | str] | None = None,
    period_s: float | None = None,
    idle_s: float | None = None,
    tail_s: float | None = None,
    labels: Mapping[str, str] | None = None,
) -> Measurement: ...
def measure(
    name: str | Callable[P, R] | None = None,
    *,
    runs: str | Path | None = None,
    meters: Sequence[Mapping[str, Any] | str] | None = None,
    period_s: float | None = None,
    idle_s: float | None = None,
    tail_s: float | None = None,
    labels: Mapping[str, str] | None = None,
) -> Measurement | Callable[P, R]:
    """Measure a `with` block, or each call of a function (as a decorator, with or without a name).

    All arguments but `name` and `labels` apply only if the block starts a run of its own.

    `runs` is the store (JOULELAB_RUNS or ./joulelab-runs). `meters` are names, or {"meter": ..., "config": {...}};
    without it the usual and configured meters are read. Idle power is recorded for `idle_s` (0) before the block,
    `tail_s` (0.3) limits the wait at the end, power is read each `period_s` (0.1); the table [run] of joulelab.toml
    has their defaults. Raises ConfigError for wrong arguments before anything is recorded: for names that no meter has
    when the block begins.
    """
    times = {"period_s": period_s, "idle_s": idle_s, "tail_s": tail_s}
    copy = functools.partial(_make_measurement, runs=runs, meters=meters, times=times, labels=labels)
    if callable(name) or isinstance(name, classmethod):
        return _wrap_function(name, None, None, copy)
    return copy(name)


_begun: list[Measurement] = []


def begin(name: str | None = None, **options: Any) -> Measurement:
    """Begin to measure where no `with` block is possible, until `joulelab.end()`; options as for `measure()`.

    Measurements that are begun inside others are phases of them. Raises ConfigError for wrong arguments.
    """
    if callable(name):
        raise ConfigError("begin() takes a name, not a function", next=BEGIN_ADVICE, code="config.wrong-name")
    if name is not None and not isinstance(name, str):
        raise ConfigError(
            "the name of a measurement must be text", why=f"it is {name!r}", next=BEGIN_ADVICE, code="config.wrong-name"
        )
    measurement = measure(name, **options)
    measurement.__enter__()
    _begun.append(measurement)
    return measurement


def end() -> Measurement:
    """End the measurement that was begun last, and return it. Raises ConfigError where none is open."""
    if not _begun:
        raise ConfigError("no measurement is open", next='call `joulelab.begin("name")` first', code="config.not-open")
    measurement = _begun.pop()
    measurement.__exit__(None, None, None)
    return measurement


def _make_measurement(
    name: object,
    *,
    runs: str | Path | None,
    meters: Sequence[Mapping[str, Any] | str] | None,
    times: Mapping[str, float | None],
    labels: Mapping[str, str] | None,
) -> Measurement:
    title = _check_arguments(name, runs, meters, times, labels)

    def make_options() -> RunOptions:
        config = _load_configuration()
        folder = Path(runs) if runs is not None else get_runs_folder(os.environ)
        options = RunOptions(runs=folder, name=title, labels=labels or {})
        return options.with_times(config.run).with_times(times).with_meters(_choose_meters(config, meters))

    copy = functools.partial(_make_measurement, runs=runs, meters=meters, times=times, labels=labels)
    return Measurement(title, make_options, _remove_secrets(labels), copy, has_meters=meters is not None)


def _remove_secrets(labels: Mapping[str, str] | None) -> Mapping[str, str]:
    if not labels:
        return {}
    from joulelab.store.redact import redact_labels  # loaded only where labels are given

    return redact_labels(labels)


def _check_arguments(
    name: object, runs: object, meters: object, times: Mapping[str, object], labels: object
) -> str | None:
    """Return the name. Raises ConfigError for wrong arguments, so that no run begins with them."""
    if name is not None and not isinstance(name, str):
        then = 'write `with joulelab.measure("name") as m:`'
        raise ConfigError(
            "the name of a measurement must be text", why=f"it is {name!r}", next=then, code="config.wrong-name"
        )
    if runs is not None and not isinstance(runs, str | os.PathLike):
        raise ConfigError(f"runs is {runs!r}", next='give a folder: runs="joulelab-runs"', code="config.wrong-value")
    if isinstance(meters, str):
        raise ConfigError(
            f"meters is {meters!r}", next=f"give a list of names: meters=[{meters!r}]", code="config.wrong-value"
        )
    if meters is not None and not (isinstance(meters, Sequence) and all(map(_is_meter, meters))):
        raise ConfigError(
            f"meters is {meters!r}",
            next='give names or tables: meters=["nvml", {"meter": "rapl"}]',
            code="config.wrong-value",
        )
    if labels is not None and not isinstance(labels, Mapping):
        raise ConfigError(
            f"labels is {labels!r}", next='give a dictionary: labels={"lr": "0.1"}', code="config.wrong-value"
        )
    for key, value in times.items():
        if value is None:
            continue
        least = "above 0" if key == "period_s" else "of 0 or more"
        seconds = float(value) if isinstance(value, numbers.Real) else -1.0
        if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and key == "period_s"):
            raise ConfigError(
                f"{key} is {value!r}", next=f"give a number of seconds {least}", code="config.wrong-value"
            )
    return name


def _is_meter(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, Mapping) and isinstance(item.get("meter"), str))


def _load_configuration() -> Config:
    """Return the valid part of the configuration, with its problems: the block runs in any case."""
    from joulelab.run.config.configuration import Config, load_config

    try:
        config = load_config(os.environ, get_host_name())
    except Exception as error:  # noqa: BLE001 - the block runs, configured or not
        problem = ConfigError(
            "the configuration cannot be loaded", why=f"{type(error).__name__}: {error}", code="config.not-loaded"
        )
        return Config(problems=[problem], unread={Path("the configuration"): problem})
    for warning in config.warnings:
        _log.warning("configuration: %s", warning)
    return config


def _choose_meters(config: Config, meters: Sequence[Mapping[str, Any] | str] | None) -> MeterChoice:
    """Return the meters to read: those that are given, or the usual and configured ones.

    Logs problems of the configuration. Raises ConfigError for a name that no meter has.
    """
    from joulelab.run.config.configuration import Config
    from joulelab.run.config.meter_choice import (
        MeterChoice,
        check_meter_name,
        choose_meters,
        list_general_problems,
        word_lost_meters,
    )

    wanted = [m for m in meters or () if isinstance(m, str)]
    given = [dict(m) for m in meters or () if not isinstance(m, str)]
    for table in given:
        check_meter_name(Config(), table["meter"])
    if wanted or meters is None:
        choice = choose_meters(config, os.environ, wanted)
    else:
        lost = list_general_problems(config)
        choice = MeterChoice(meters=[], node=dict(config.node), site=config.site, lost=lost)
    for warning in (*word_lost_meters(choice.lost), *choice.warnings):
        _log.warning("%s", warning)
    if given:
        choice.meters = [*(choice.meters or ()), *given]
        choice.named += [str(m.get("name") or m.get("meter", "")) for m in given]
    return choice


@overload
def measured(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def measured(
    function: str, /, *, report: Callable[[Measurement], object] | None = None, **options: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def measured(
    *, name: str | None = None, report: Callable[[Measurement], object] | None = None, **options: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def measured(
    function: Callable[P, R] | str | None = None,
    /,
    *,
    name: str | None = None,
    report: Callable[[Measurement], object] | None = None,
    **options: Any,
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Measure each call of a function, coroutine or generator: `@joulelab.measured`, `@joulelab.measured("name")`.

    `report` is called with each measurement (try print). `options` are those of `measure()`. The last measurement is
    the function's attribute `measurement`. Raises ConfigError for anything but a function.
    """

    def make(title: str | None) -> Measurement:
        return measure(title, **options)

    make(None)  # refuses wrong options here, not when the function is called
    if isinstance(function, str):
        if name is not None:
            raise ConfigError(
                f"there are two names, {function!r} and {name!r}", next="give one", code="config.two-names"
            )
        function, name = None, function
    if function is not None:
        return _wrap_function(function, name, report, make)
    return lambda f: _wrap_function(f, name, report, make)


def _wrap_function(
    function: Callable[P, R] | None,
    name: str | None,
    report: Callable[[Measurement], object] | None,
    make: Callable[[str], Measurement],
) -> Callable[P, R]:
    """Return the function or method with each call measured. Raises ConfigError for anything else."""
    if isinstance(function, staticmethod | classmethod):
        method = type(function)(_wrap_function(function.__func__, name, report, make))
        return cast("Callable[P, R]", method)
    if inspect.isclass(function):
        why = "only functions and methods are measured"
        what = f"the class {function.__name__} cannot be measured"
        raise ConfigError(what, why=why, next="decorate its methods", code="config.not-measurable")
    if not callable(function):
        then = 'write `@joulelab.measured("name")` above a function'
        raise ConfigError(
            f"{function!r} cannot be measured", why="it is not a function", next=then, code="config.not-measurable"
        )
    title = name or str(getattr(function, "__qualname__", "function"))

    @contextlib.contextmanager
    def call() -> Iterator[None]:
        m = make(title)
        try:
            with m:
                yield
        finally:
            wrapper.__dict__["measurement"] = m
            if report is not None:
                report(m)

    wrapper = functools.wraps(function)(_make_wrapper(cast("Callable[..., Any]", function), call))
    return cast("Callable[P, R]", wrapper)


def _make_wrapper(function: Callable[..., Any], call: Callable[[], AbstractContextManager[None]]) -> Callable[..., Any]:
    """Return a function of the same kind (plain, generator, coroutine, both) that is measured from start to end."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        with call():
            return function(*args, **kwargs)

    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with call():
            return (yield from function(*args, **kwargs))

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        with call():
            return await function(*args, **kwargs)

    async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        with call():
            async for item in function(*args, **kwargs):
                yield item

    if inspect.iscoroutinefunction(function):
        return coroutine
    if inspect.isasyncgenfunction(function):
        return stream
    return generator if inspect.isgeneratorfunction(function) else plain
