"""Measure each test of a pytest session, repeat those with a maximum or a baseline, and list the most expensive.

The session is one run; the call of each test (without its fixtures) is a phase of it. A test fails by its energy only
if that is significantly above its limit: it is repeated until the answer is clear, and passes if it never gets clear
(`analysis/energy_gate.py`). Nothing here changes the outcome of a test if the measurement itself fails.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import call_and_report

from joulelab.analysis.energy_gate import (
    FEWEST_REPEATS,
    GateVerdict,
    find_look_level,
    judge_maximum,
    judge_rise,
    judge_single,
)
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_unlike_scopes
from joulelab.integrations.pytest_energy import OPTIONS
from joulelab.run import marking
from joulelab.run.live import wait_until_covered
from joulelab.run.measure import measure

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from joulelab.analysis.cell_comparison import RepeatSample
    from joulelab.analysis.energy_gate import GateReason
    from joulelab.report.tables import Table

SCHEMA = 1
UPDATE_REPEATS = 5  # of each test that is written to a baseline
LONGEST_NAME = 40  # letters of a test in the table
Span = tuple[int, int]  # monotonic ns


@dataclass(frozen=True, slots=True)
class SpanEnergies:
    """Hold the energy of everything measured (J) in each time span, the names of its devices, and its scopes."""

    energies: list[Quantity] = field(default_factory=list)
    devices: str = ""
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """Hold the energies of a test in a baseline, and the scopes that they are the sum of.

    Baselines of earlier versions have no `scopes`, and names of devices without the host.
    """

    sample: RepeatSample
    scopes: tuple[str, ...] | None = None

    def find_unlike(self, devices: str, scopes: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the scopes that only the baseline has, and those that only the session has.

        Without the scopes of the baseline, the devices of each meter are counted; if their numbers differ, the names of
        all of them are returned.
        """
        if self.scopes is not None:
            return find_unlike_scopes(self.scopes, scopes)
        stored, now = (text.split("; ") for text in ("; ".join(sorted(self.sample.devices)), devices))
        counts = [Counter(name.partition(" ")[0] for name in names) for names in (stored, now)]
        return ((), ()) if counts[0] == counts[1] else (tuple(stored), tuple(now))


@dataclass(slots=True)
class MeasuredTest:
    """Hold the calls of one test: their time spans, energies (J) as far as known, limits and the verdict."""

    most_j: float | None = None
    baseline: BaselineEntry | None = None
    spans: list[Span] = field(default_factory=list)
    measured: SpanEnergies = field(default_factory=SpanEnergies)
    verdict: GateVerdict | None = None

    @property
    def energies(self) -> list[Quantity]:
        """Return the energy of each call (J), empty if it is not known."""
        return self.measured.energies

    @property
    def unlike(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the scopes that only the baseline has, and those that only this session has; empty if none."""
        if self.baseline is None or not self.energies:
            return (), ()
        return self.baseline.find_unlike(self.measured.devices, self.measured.scopes)

    @property
    def has_limit(self) -> bool:
        """Return whether the test can fail by its energy."""
        return self.most_j is not None or self.baseline is not None

    @property
    def seconds(self) -> float:
        """Return the mean time of a call."""
        return sum(b - a for a, b in self.spans) / NS / len(self.spans)

    @property
    def is_too_short(self) -> bool:
        """Return whether each of its energies is smaller than its interval."""
        return bool(self.energies) and not any(energy.is_resolved for energy in self.energies)

    def make_sample(self) -> RepeatSample:
        """Return the energies as a sample of repeats."""
        from joulelab.analysis.cell_comparison import make_samples

        return make_samples(self._make_cell())["energy"]

    def compute_mean(self) -> Quantity | None:
        """Return the mean energy of a call (J) with its interval, None if nothing was measured."""
        from joulelab.analysis.study_cells import compute_means

        means = compute_means(self._make_cell()) if self.energies else None
        return None if means is None else means.energy

    def _make_cell(self) -> Any:
        from joulelab.analysis.study_cells import Cell, Trial

        trials = (
            Trial(energy, (b - a) / NS, meter=self.measured.devices)
            for energy, (a, b) in zip(self.energies, self.spans, strict=True)
        )
        return Cell("test", {}, tuple(trials))


def measure_spans(run: Path, spans: Sequence[Span]) -> SpanEnergies:
    """Return the energy of everything measured (J) in each time span; nothing without a power meter.

    Raises JoulelabError, OSError.
    """
    from joulelab.analysis.breakdown import stack_scopes
    from joulelab.analysis.channels import load_channels
    from joulelab.analysis.joining import join_meters
    from joulelab.analysis.study_cells import name_meter_device
    from joulelab.store.run_reader import open_run

    with open_run(run) as opened:
        joined = join_meters(load_channels(opened), min(a for a, _ in spans), max(b for _, b in spans))
        scopes = [scope for scope, _ in stack_scopes(joined.scopes)]
        energies = [add_quantities(scope.best.energy(a, b) for scope in scopes) for a, b in spans]
    if not scopes:
        return SpanEnergies()
    devices = (name_meter_device(s.best.meter, s.best.spec.name, s.best.stream.device, s.host) for s in scopes)
    return SpanEnergies(energies, "; ".join(sorted(devices)), tuple(scope.scope for scope in scopes))


class EnergySession:
    """Measure the tests of a session: the plug-in that `--energy` registers."""

    def __init__(self, config: pytest.Config) -> None:
        """Read the options. Raises pytest.UsageError."""
        self.tests: dict[str, MeasuredTest] = {}
        self.notes: list[str] = []
        self._config = config
        options = {name: config.getoption(name) for name in OPTIONS}
        options = {name: OPTIONS[name] if given is None else given for name, given in options.items()}
        self._repeats, self._seconds = options["energy_repeats"], options["energy_time"]
        self._top = options["energy_top"]
        self._is_update = options["energy_update"]
        given = options["energy_baseline"]
        self._file = None if given is None else config.invocation_params.dir / given
        self._shown_file = given
        _refuse_workers(config)
        if self._repeats < FEWEST_REPEATS:
            raise pytest.UsageError(f"--energy-repeats {self._repeats}: give at least {FEWEST_REPEATS}")
        if not 0 <= self._seconds < math.inf:
            raise pytest.UsageError(f"--energy-time {self._seconds:g}: give a number of seconds")
        if self._is_update and self._file is None:
            raise pytest.UsageError("--energy-update needs --energy-baseline FILE")
        self._limit = _read_limit(options["energy_limit"])
        self._baseline = {} if self._file is None else read_baseline(self._file, may_lack=self._is_update)
        self._run: Path | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Find the limits of the tests. Raises pytest.UsageError for a wrong marker."""
        for item in items:
            marker = item.get_closest_marker("energy")
            most_j = None if marker is None else _read_maximum(marker, item.nodeid)
            baseline = None if self._is_update else self._baseline.get(item.nodeid)
            self.tests[item.nodeid] = MeasuredTest(most_j, baseline)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Record all tests as one run, and compute their energies at its end."""
        if session.config.option.collectonly:
            return (yield)
        measurement = measure("pytest")
        try:
            with measurement:
                self._run = measurement.run
                return (yield)
        finally:  # also after -x and Ctrl-C
            self._measure_tests()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Mark the call of a test as a phase."""
        start_ns = monotonic_ns()
        try:
            with marking.phase(item.nodeid):
                return (yield)
        finally:
            self._find_test(item).spans.append((start_ns, monotonic_ns()))

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test that has a limit until it can be judged; others are run by pytest itself."""
        test = self._find_test(item)
        is_called = not item.config.getoption("setuponly", False)  # noqa: FBT003 - pytest's order
        if self._run is None or not (test.has_limit or self._is_update) or not is_called:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._repeat_test(item, nextitem, test):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _find_test(self, item: pytest.Item) -> MeasuredTest:
        """Return the record of a test; one that another plug-in added late has no limit."""
        return self.tests.setdefault(item.nodeid, MeasuredTest())

    def _repeat_test(
        self, item: pytest.Item, nextitem: pytest.Item | None, test: MeasuredTest
    ) -> list[pytest.TestReport]:
        """Return the reports of the last repeat; that of the call fails if the test needs significantly more.

        Fixtures of the test itself are fresh in each repeat; those of a wider scope stay until the last one. So it is
        decided before the teardown whether a repeat is the last, which pytest's `runtestprotocol` does not allow.
        """
        until_ns = monotonic_ns() + round(self._seconds * NS)
        failures: list[pytest.TestReport] = []
        while True:
            item._report_sections.clear()  # noqa: SLF001 - else a failure prints the output of all repeats
            reports = run_call(item)
            is_last = bool(failures) or self._is_last(item, test, reports, until_ns)
            # The parent stands for an item after this one that shares all fixtures of a wider scope.
            reports.append(tear_down(item, nextitem if is_last else item.parent))
            if is_last:
                break
            failures += [] if reports[-1].passed else reports[-1:]
        if test.verdict is not None and test.verdict.decision == "above":
            call = next(report for report in reports if report.when == "call")
            call.outcome, call.longrepr = "failed", self._word_failure(test)
        return [*reports, *failures]

    def _is_last(
        self, item: pytest.Item, test: MeasuredTest, reports: Sequence[pytest.TestReport], until_ns: int
    ) -> bool:
        """Judge a test after a call, and return whether it is to be called no more."""
        is_ending = item.session.shouldfail or item.session.shouldstop
        if is_ending or not all(report.passed for report in reports) or not test.spans:
            return True
        if not self._is_update:
            test.verdict = self._judge_test(test)
            if test.verdict is None or not test.verdict.needs_repeats:
                return True
        most = min(UPDATE_REPEATS, self._repeats) if self._is_update else self._repeats
        return len(test.spans) >= most or monotonic_ns() + round(test.seconds * NS) > until_ns

    def _judge_test(self, test: MeasuredTest) -> GateVerdict | None:
        """Return the verdict so far, None if nothing is measured."""
        assert self._run is not None
        count = len(test.spans)
        if 1 < count < FEWEST_REPEATS:
            return GateVerdict("undecided", "repeats")
        wait_until_covered(self._run, test.spans[-1][1])
        try:
            test.measured = measure_spans(self._run, test.spans)
        except (JoulelabError, OSError, ValueError) as error:
            self.notes.append(f"{type(error).__name__}: {error}")
            test.measured = SpanEnergies()
        if not test.energies:
            return None
        # Energies of other parts of the machine are not compared; the maximum of the test holds nevertheless.
        unlike = GateVerdict("undecided", "scopes") if any(test.unlike) else None
        baseline = test.baseline if unlike is None else None
        if unlike is not None and test.most_j is None:
            return unlike
        if count == 1:
            first = judge_single(test.energies[0], test.most_j or 0.0)
            if baseline is None and first.decision == "not above":
                return unlike or first
            return GateVerdict("undecided", "repeats")
        if _is_hopeless(test.energies, self._repeats):
            return GateVerdict("undecided", "too-short")
        sample, verdicts = test.make_sample(), []
        # Two limits of one test share the 5 %.
        level = find_look_level(count, self._repeats) / ((test.most_j is not None) + (baseline is not None))
        if test.most_j is not None:
            verdicts.append(judge_maximum(sample, test.most_j, level))
        if baseline is not None:
            verdicts.append(judge_rise(sample, baseline.sample, self._limit, level))
        order = ("above", "undecided", "not above")
        worst = min(verdicts, key=lambda verdict: order.index(verdict.decision))
        return unlike if unlike is not None and worst.decision == "not above" else worst

    def _word_failure(self, test: MeasuredTest) -> str:
        from joulelab.report.format import format_percent, format_quantity

        verdict, mean = test.verdict, test.compute_mean()
        assert verdict is not None
        assert verdict.interval is not None
        assert mean is not None
        figure = f"{format_quantity(mean, 'J')} in {len(test.energies)} runs"
        text = f"This test needs significantly more energy than allowed: {figure}"
        if test.most_j is not None and judge_maximum(test.make_sample(), test.most_j).decision == "above":
            return f"{text}, max_j is {test.most_j:g} J."
        ends = " to ".join(format_percent(end - 1) for end in verdict.interval)
        limit = format_percent(self._limit, signed=False)
        return f"{text}, {ends} against the baseline in {self._shown_file}; a rise of {limit} must not pass."

    def _measure_tests(self) -> None:
        """Compute the energies of all tests, and write the baseline."""
        called = [test for test in self.tests.values() if test.spans]
        if self._run is None or not called:
            return
        try:
            found = measure_spans(self._run, [span for test in called for span in test.spans])
        except (JoulelabError, OSError, ValueError) as error:
            self.notes.append(f"The energies are not known ({type(error).__name__}: {error}).")
            found = SpanEnergies()
        left = iter(found.energies)
        for test in called:
            test.measured = replace(found, energies=[next(left) for _ in test.spans if found.energies])
        if self._is_update and self._file is not None and found.energies:
            self._write_baseline(self._file)

    def _write_baseline(self, file: Path) -> None:
        kept = {
            name: BaselineEntry(test.make_sample(), test.measured.scopes)
            for name, test in self.tests.items()
            if len(test.energies) > 1 and not test.is_too_short
        }
        try:
            write_baseline(file, {**self._baseline, **kept})
            self.notes.append(f"Written to {self._shown_file}: the energy of {_count_tests(len(kept))}.")
        except OSError as error:
            self.notes.append(f"{self._shown_file} cannot be written ({error.strerror}).")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the sum, the most expensive tests, and notes."""
        from joulelab.report.format import format_quantity
        from joulelab.report.tables import write_terminal

        if not any(test.spans for test in self.tests.values()):
            return
        terminalreporter.write_sep("=", "energy")
        known = {name: test for name, test in self.tests.items() if test.energies}
        if not known:
            why = "no power meter was read" if self._run is not None else "nothing was recorded"
            for note in (*self.notes, f"No test has an energy: {why}. -> joulelab meters"):
                terminalreporter.write_line(note)
            self._print_unknown(terminalreporter)
            return
        whole = add_quantities(energy for test in known.values() for energy in test.energies)
        calls = sum(len(test.energies) for test in known.values())
        count = "1 call" if calls == 1 else f"{calls} calls"
        terminalreporter.write_line(f"{format_quantity(whole, 'J')} in {count} of {_count_tests(len(known))}")
        table = make_test_table(known, self._top)
        for line in write_terminal(table, self._config.get_terminal_writer().fullwidth).splitlines():
            terminalreporter.write_line(line)
        for note in (*self.notes, *_list_open(known)):
            terminalreporter.write_line(note)
        self._print_unknown(terminalreporter)

    def _print_unknown(self, terminalreporter: Any) -> None:
        """Print how many tests have no entry in the baseline, with a warning if that is all of them."""
        called = [test for test in self.tests.values() if test.spans]
        lacking = sum(test.baseline is None for test in called)
        if self._file is None or self._is_update or not lacking:
            return
        if lacking < len(called):
            text = f"Not compared, no entry in {self._shown_file}: {_count_tests(lacking)}. Add them: --energy-update"
            terminalreporter.write_line(text)
            return
        text = f"Warning: no test was compared: {self._shown_file} has no entry for {_count_tests(len(called))}."
        terminalreporter.write_line(text, yellow=True)
        if self._baseline:
            first, asked = next(iter(self._baseline)), next(name for name, test in self.tests.items() if test.spans)
            terminalreporter.write_line(f"It has {first}, this session {asked}; rootdir is {self._config.rootpath}.")


def run_call(item: pytest.Item) -> list[pytest.TestReport]:
    """Set a test up and call it, as pytest's own protocol does; return the reports."""
    if getattr(item, "_request", None) is False:  # it ran before, and its request for fixtures has ended
        item._initrequest()  # type: ignore[attr-defined]  # noqa: SLF001 - as pytest does
    reports = [call_and_report(item, "setup", log=False)]
    return [*reports, call_and_report(item, "call", log=False)] if reports[0].passed else reports


def tear_down(item: pytest.Item, following: pytest.Item | pytest.Collector | None) -> pytest.TestReport:
    """Tear down the fixtures of a test that `following` does not share; return the report."""
    is_ending = item.session.shouldfail or item.session.shouldstop
    try:
        return call_and_report(item, "teardown", log=False, nextitem=None if is_ending else following)
    finally:
        if hasattr(item, "_request"):
            item._request, item.funcargs = False, None  # type: ignore[attr-defined]  # noqa: SLF001 - as pytest does


def make_test_table(tests: dict[str, MeasuredTest], most: int) -> Table:
    """Return the tests with the largest energy per call."""
    from joulelab.report.format import shorten_middle
    from joulelab.report.tables import make_table, scale_column

    means = {name: test.compute_mean() for name, test in tests.items()}
    ranked = sorted(tests, key=lambda name: -(mean.value if (mean := means[name]) is not None else 0.0))[: max(most, 0)]
    rows = [
        (shorten_middle(name, LONGEST_NAME), means[name], f"{tests[name].seconds:.2f}", len(tests[name].energies),
         _word_state(tests[name]))
        for name in ranked
    ]  # fmt: skip
    columns = ("test", scale_column("energy", "J", [means[name] for name in ranked]), "s", "runs", "limit")
    return make_table(columns, rows, left=(0, 4))


def _word_state(test: MeasuredTest) -> str:
    if test.verdict is None:
        return ""
    if test.verdict.decision == "undecided":
        return "too short to measure" if test.is_too_short and not _has_reason(test, "scopes") else "cannot decide"
    return test.verdict.decision


def _list_open(tests: dict[str, MeasuredTest]) -> list[str]:
    """Return a line about tests that passed because they could not be judged."""
    unclear = [
        name for name, test in tests.items() if test.verdict is not None and test.verdict.decision == "undecided"
    ]
    lines = []
    unlike = [tests[name] for name in unclear if _has_reason(tests[name], "scopes")]
    if unlike:
        lines.append(f"Not judged, other devices than in the baseline: {_count_tests(len(unlike))}.")
        for where, k in (("baseline", 0), ("session", 1)):
            names = dict.fromkeys(scope for test in unlike for scope in test.unlike[k])
            lines += [f"Only in the {where}: {', '.join(names)}. -> joulelab meters"] if names else []
    unclear = [name for name in unclear if not _has_reason(tests[name], "scopes")]
    short = sum(tests[name].is_too_short for name in unclear)
    if short:
        lines.append(f"Not judged, too short to measure: {_count_tests(short)}. Let each call do more work.")
    others = [tests[name].verdict for name in unclear if not tests[name].is_too_short]
    if fixed := sum(verdict is not None and verdict.reason in ("meters", "accuracy") for verdict in others):
        lines.append(f"Not judged because of the meters' accuracy: {_count_tests(fixed)}. Choose a larger limit.")
    if left := len(others) - fixed:
        lines.append(f"Not judged, cannot decide: {_count_tests(left)}. Raise --energy-repeats or --energy-time.")
    return lines


def _has_reason(test: MeasuredTest, reason: GateReason) -> bool:
    return test.verdict is not None and test.verdict.reason == reason


def _count_tests(count: int) -> str:
    return "1 test" if count == 1 else f"{count} tests"


def _is_hopeless(energies: Sequence[Quantity], at_most: int) -> bool:
    """Return whether not even the mean of all repeats would be larger than its interval."""
    widths = [energy.expanded / max(energy.value, 1e-12) for energy in energies if energy.expanded is not None]
    return bool(widths) and median(widths) / math.sqrt(at_most) > 1


def _refuse_workers(config: pytest.Config) -> None:
    """Refuse xdist: energy is measured for the whole machine, so only one test may run at a time."""
    workers = getattr(config.option, "numprocesses", None) or getattr(config.option, "tx", None)
    if workers or hasattr(config, "workerinput"):
        raise pytest.UsageError("--energy measures the whole machine, so one test at a time: add -n 0")


def _read_maximum(marker: pytest.Mark, test: str) -> float:
    """Return the maximum (J) of a marker. Raises pytest.UsageError."""
    given = [*marker.args, *(value for name, value in marker.kwargs.items() if name == "max_j")]
    most_j = given[0] if len(given) == 1 == len(marker.args) + len(marker.kwargs) else None
    if isinstance(most_j, bool) or not isinstance(most_j, int | float) or not 0 < most_j < math.inf:
        raise pytest.UsageError(f"{test}: write the marker as energy(max_j=50), in joules")
    return most_j


def _read_limit(text: str) -> float:
    from joulelab.study.folder import parse_precision

    try:
        return parse_precision(text)
    except ConfigError:
        raise pytest.UsageError(f"--energy-limit {text}: write a percentage, such as 5%") from None


def read_baseline(file: Path, *, may_lack: bool = False) -> dict[str, BaselineEntry]:
    """Return the entries of a baseline by test. Raises pytest.UsageError; a file that `may_lack` is empty."""
    from joulelab.analysis.cell_comparison import make_sample

    if may_lack and not file.exists():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}")  # noqa: TRY301 - all that is wrong is one error
        return {
            str(name): BaselineEntry(
                make_sample(
                    [_read_energy(value) for value in entry["values_j"]],
                    None if entry["meter"] is None else float(entry["meter"]),
                    terms={str(source): float(u) for source, u in entry["terms"].items()},
                    devices=frozenset(map(str, entry["devices"])),
                ),
                tuple(map(str, entry["scopes"])) if "scopes" in entry else None,
            )
            for name, entry in data["tests"].items()
        }
    except FileNotFoundError:
        then = f"pytest --energy --energy-baseline {shlex.quote(str(file))} --energy-update"
        raise pytest.UsageError(f"there is no baseline {file}; write it: {then}") from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise pytest.UsageError(f"{file} is not a baseline of --energy ({type(error).__name__}: {error})") from None


def _read_energy(value: Any) -> float:
    """Return an energy (J) of a baseline. Raises ValueError."""
    if not math.isfinite(energy_j := float(value)):
        raise ValueError(f"an energy is {value}")
    return energy_j


def write_baseline(file: Path, entries: dict[str, BaselineEntry]) -> None:
    """Write the entries of tests: energies in J, errors of meters relative. Raises OSError."""
    from joulelab.store.safe_files import replace_file

    tests = {
        name: {
            "values_j": list(entry.sample.values),
            "meter": entry.sample.meter,
            "terms": dict(entry.sample.terms),
            "devices": sorted(entry.sample.devices),
            **({} if entry.scopes is None else {"scopes": list(entry.scopes)}),
        }
        for name, entry in sorted(entries.items())
    }
    text = json.dumps({"schema": SCHEMA, "tests": tests}, indent=1, ensure_ascii=False)
    replace_file(file, f"{text}\n".encode(), sync=False)
