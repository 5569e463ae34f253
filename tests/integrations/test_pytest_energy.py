"""`pytest --energy`: tests are repeated until they can be judged, and fail only if they need significantly more."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.pytester import SysModulesSnapshot

from joulelab.core.quantity import Quantity
from joulelab.integrations import measured_tests
from joulelab.integrations.measured_tests import SpanEnergies

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytest_plugins = ["pytester"]

PLUGIN = (
    "-p",
    "no:joulelab",
    "-p",
    "joulelab.integrations.pytest_energy",
    "-p",
    "no:randomly",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:cov",
)
TESTS = """
import pytest

@pytest.mark.energy(max_j=50)
def test_marked(tmp_path):
    (tmp_path / "file").write_text("fresh")

def test_plain():
    pass

def test_other():
    pass
"""


class Bench:
    """Stand in for the recorder: each call of a test needs an energy that is drawn from its own list."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.energies: list[float] = []
        self.noise_j, self.device = 0.1, "nvml energy_j GPU-0@node1"
        self.scopes: tuple[str, ...] = ("gpu:0",)
        pytester.makepyfile(test_it=TESTS)
        # pytester forgets all modules that a session imports; a second numpy, or a second Quantity, is not the first.
        monkeypatch.setattr(
            SysModulesSnapshot,
            "restore",
            lambda _snapshot: [sys.modules.pop(name, None) for name in ("test_it", "test_next")],
        )
        monkeypatch.setattr(measured_tests, "measure", self.measure)
        monkeypatch.setattr(measured_tests, "wait_until_covered", lambda _run, _end_ns: None)
        monkeypatch.setattr(measured_tests, "measure_spans", self.measure_spans)

    def measure(self, _name: str) -> Any:
        block: Any = contextlib.nullcontext()
        block.run = self.pytester.path
        return block

    def measure_spans(self, _run: Path, spans: Sequence[tuple[int, int]]) -> SpanEnergies:
        drawn = [self.energies[k % len(self.energies)] for k in range(len(spans))] if self.energies else []
        terms = {"gain:nvml:H100": 0.01, "edge:": self.noise_j}
        energies = [Quantity(j, {s: u * (j if s != "edge:" else 1) for s, u in terms.items()}) for j in drawn]
        return SpanEnergies(energies, self.device, self.scopes)

    def run(self, *words: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess(*PLUGIN, "--energy", *words)


@pytest.fixture
def bench(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(pytester, monkeypatch)


def test_a_test_clearly_below_its_maximum_is_run_once(bench: Bench) -> None:
    bench.energies = [20.0]
    result = bench.run()
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*= energy =*", "60.* J in 3 calls of 3 tests", "*test_marked *not above*"])


def test_a_test_above_its_maximum_fails_after_repeats(bench: Bench) -> None:
    bench.energies = [80.0, 80.5, 79.5]
    result = bench.run()
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*needs significantly more energy than allowed: 80 ± 2 J in 3 runs, max_j is 50 J.*"])


def test_a_test_that_scatters_passes_undecided_after_all_repeats(bench: Bench) -> None:
    bench.energies = [49.0, 90.0, 20.0, 55.0]
    result = bench.run("--energy-repeats", "5")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*test_marked * 5  cannot decide", "Not judged, cannot decide: 1 test. *"])


def test_a_test_that_is_too_short_passes(bench: Bench) -> None:
    bench.energies, bench.noise_j = [60.0, 61.0], 2000.0
    result = bench.run()
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["*test_marked * 3  too short to measure", "Not judged, too short to measure: 1 test. *"]
    )


@pytest.mark.system
def test_a_baseline_is_written_and_fails_what_rises(bench: Bench) -> None:
    bench.energies = [20.0, 20.1, 19.9]
    written = bench.run("--energy-baseline", "base.json", "--energy-update")
    written.assert_outcomes(passed=3)
    data = json.loads((bench.pytester.path / "base.json").read_text())
    assert sorted(data["tests"]) == ["test_it.py::test_marked", "test_it.py::test_other", "test_it.py::test_plain"]
    assert data["tests"]["test_it.py::test_plain"]["values_j"] == [19.9, 20.0, 20.1, 19.9, 20.0]
    bench.run("--energy-baseline", "base.json").assert_outcomes(passed=3)
    bench.energies = [22.0, 22.1, 21.9]
    risen = bench.run("--energy-baseline", "base.json")
    risen.assert_outcomes(failed=3)
    risen.stdout.fnmatch_lines(
        ["*22.* J in 3 runs, +* % to +* % against the baseline in base.json; a rise of 5*% must not pass."]
    )
    bench.run("--energy-baseline", "base.json", "--energy-limit", "40%").assert_outcomes(passed=3)
    bench.device = (
        "nvml energy_j GPU-1@node1"  # gains do not cancel between devices, so a difference of 3 % is not resolved
    )
    bench.energies = [20.6, 20.7]
    other = bench.run("--energy-baseline", "base.json")
    other.assert_outcomes(passed=3)
    other.stdout.fnmatch_lines(["Not judged because of the meters' accuracy: 3 tests. *"])


def test_energies_of_other_devices_are_not_compared(bench: Bench) -> None:
    bench.energies, bench.scopes = [80.0, 80.1, 79.9], ("gpu:0", "gpu:1", "cpu:0")
    bench.device = "nvml energy_j GPU-0@node1; nvml energy_j GPU-1@node1; rapl energy_j intel-rapl:0@node1"
    bench.pytester.makepyfile(test_it="def test_one(): pass")
    options = ("--energy-baseline", "base.json")
    bench.run(*options, "--energy-update").assert_outcomes(passed=1)
    base = bench.pytester.path / "base.json"
    data = json.loads(base.read_text())
    assert data["tests"]["test_it.py::test_one"]["scopes"] == ["gpu:0", "gpu:1", "cpu:0"]
    bench.energies, bench.scopes = [30.0, 30.1, 29.9], ("gpu:0", "cpu:0")
    bench.device = "nvml energy_j GPU-0@node1; rapl energy_j intel-rapl:0@node1"
    less = bench.run(*options)
    less.assert_outcomes(passed=1)
    less.stdout.fnmatch_lines(
        ["*test_one * 1  cannot decide", "Not judged, other devices *: 1 test.", "Only in the baseline: gpu:1. *"]
    )
    bench.energies, bench.scopes = [300.0, 301.0, 299.0], ("gpu:0", "gpu:1", "cpu:0", "dram:0")
    more = bench.run(*options)
    more.assert_outcomes(passed=1)
    more.stdout.fnmatch_lines(["*test_one * 1  cannot decide", "Only in the session: dram:0. *"])
    # A baseline of an earlier version has no scopes: the devices of each meter are counted.
    del data["tests"]["test_it.py::test_one"]["scopes"]
    base.write_text(json.dumps(data))
    old = bench.run(*options)
    old.assert_outcomes(passed=1)
    old.stdout.fnmatch_lines(["*test_one * 1  cannot decide", "Only in the baseline: nvml energy_j GPU-0@node1, *"])
    bench.device += "; nvml energy_j GPU-7@node1"
    bench.run(*options).assert_outcomes(failed=1)


def test_a_maximum_holds_beside_a_baseline_of_other_devices(bench: Bench) -> None:
    bench.energies = [40.0, 40.1, 39.9]
    bench.pytester.makepyfile(test_it="import pytest\n@pytest.mark.energy(max_j=50)\ndef test_one(): pass")
    bench.run("--energy-baseline", "base.json", "--energy-update").assert_outcomes(passed=1)
    bench.scopes = ("cpu:0",)
    for joules, outcome, word in ((20.0, "passed", "1  cannot decide"), (80.0, "failed", "3  above")):
        bench.energies = [joules, joules + 0.1, joules - 0.1]
        result = bench.run("--energy-baseline", "base.json")
        result.assert_outcomes(**{outcome: 1})
        result.stdout.fnmatch_lines([f"*test_one * {word}"])


def test_tests_without_an_entry_in_the_baseline_are_counted(bench: Bench) -> None:
    bench.energies = [20.0, 20.1, 19.9]
    bench.run("--energy-baseline", "base.json", "--energy-update", "-k", "plain")
    some = bench.run("--energy-baseline", "base.json")
    some.assert_outcomes(passed=3)
    some.stdout.fnmatch_lines(["Not compared, no entry in base.json: 2 tests. *"])
    some.stdout.no_fnmatch_line("Warning: *")
    bench.run("--energy-baseline", "base.json", "-k", "plain").stdout.no_fnmatch_line("Not compared*")
    bench.run().stdout.no_fnmatch_line("Not compared*")
    none = bench.run("--energy-baseline", "base.json", "-k", "other")
    none.assert_outcomes(passed=1, deselected=2)
    none.stdout.fnmatch_lines(
        ["Warning: no test was compared: base.json has no entry for 1 test.",
         "It has test_it.py::test_plain, this session test_it.py::test_other; rootdir is *"]
    )  # fmt: skip


def test_a_failure_shows_the_output_of_the_last_repeat(bench: Bench) -> None:
    bench.pytester.makepyfile(
        test_it="import pytest\n@pytest.mark.energy(max_j=50)\ndef test_loud():\n    print('once')\n"
    )
    bench.energies = [80.0]
    assert bench.run().stdout.str().count("once") == 1


FIXTURES = """
import pytest

LOG = []

@pytest.fixture(scope="session", autouse=True)
def session():
    LOG.append("session")
    yield
    print("LOG", *LOG, "end-session")

@pytest.fixture(scope="module")
def model():
    LOG.append("model")
    yield
    LOG.append("end-model")

@pytest.fixture
def fresh():
    LOG.append("fresh")
    yield
    LOG.append("end-fresh")
    assert LOG.count("fresh") != FAILS

@pytest.mark.energy(max_j=50)
def test_last(model, fresh):
    LOG.append("call")
"""


def test_fixtures_of_a_wider_scope_outlive_the_repeats(bench: Bench) -> None:
    bench.energies = [80.0, 80.5, 79.5]
    bench.pytester.makepyfile(test_next="def test_after(): pass")
    once = ["fresh", "call", "end-fresh"]
    for fails, repeats in ((0, 3), (1, 2)):  # a repeat that is not the last one fails to tear down
        bench.pytester.makepyfile(test_it=f"FAILS = {fails}\n{FIXTURES}")
        result = bench.run("-s")
        result.assert_outcomes(passed=1 + bool(fails), failed=int(not fails), errors=int(bool(fails)))
        (line,) = [line for line in result.stdout.lines if "LOG session" in line]
        assert line[line.index("LOG") :].split()[1:] == [
            "session",
            "model",
            *once * repeats,
            "end-model",
            "end-session",
        ]


def test_repeats_are_not_advised_where_meters_are_the_reason(bench: Bench) -> None:
    bench.energies = [50.1, 50.2, 50.0]
    result = bench.run()
    result.stdout.fnmatch_lines(["*test_marked *cannot decide", "Not judged because of the meters' accuracy: 1 test*"])
    result.stdout.no_fnmatch_line("*Raise --energy-repeats*")


def test_without_a_meter_tests_pass_as_usual(bench: Bench) -> None:
    result = bench.run()
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["No test has an energy: no power meter was read.*"])


def test_a_failing_test_is_not_repeated(bench: Bench) -> None:
    bench.energies = [80.0]
    bench.pytester.makepyfile(test_it="import pytest\n@pytest.mark.energy(max_j=1)\ndef test_bad():\n    assert 0\n")
    result = bench.run()
    result.assert_outcomes(failed=1)
    assert "significantly more" not in result.stdout.str()


def test_a_session_that_stops_early_has_its_table(bench: Bench) -> None:
    bench.energies = [80.0]
    result = bench.run("-x")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*test_marked * 3  above"])


@pytest.mark.system
def test_mistakes_are_refused(bench: Bench) -> None:
    (bench.pytester.path / "bad.json").write_text('{"schema": 1, "tests": {"a": {}}}')
    entry = '{"values_j": [1.0, NaN], "meter": 0.1, "terms": {}, "devices": []}'
    (bench.pytester.path / "nan.json").write_text(f'{{"schema": 1, "tests": {{"a": {entry}}}}}')
    cases: list[tuple[tuple[str, ...], str]] = [
        (("-n", "2"), "*one test at a time: add -n 0*"),
        (("--energy-update",), "*--energy-update needs --energy-baseline FILE*"),
        (("--energy-baseline", "none.json"), "*there is no baseline *none.json; write it: pytest --energy *"),
        (("--energy-baseline", "bad.json"), "*bad.json is not a baseline of --energy (KeyError: 'values_j')*"),
        (("--energy-limit", "5"), "*--energy-limit 5: write a percentage*"),
        (("--energy-repeats", "2"), "*give at least 3*"),
        (("--energy-time", "nan"), "*--energy-time nan: give a number of seconds*"),
        (("--energy-baseline", "nan.json"), "*nan.json is not a baseline of --energy (ValueError: an energy is nan)*"),
    ]
    for words, text in cases:
        result = bench.run(*words)
        assert result.ret == pytest.ExitCode.USAGE_ERROR, words
        result.stderr.fnmatch_lines([text])
    for given in ("max_j='x'", "50, 60", "max_j=50, limit=3", "50, max_j=50", "max_j=float('nan')", "", "max_j=True"):
        file = bench.pytester.path / "test_it.py"
        file.write_text(f"import pytest\n@pytest.mark.energy({given})\ndef test_bad():\n    pass\n")
        result = bench.run()
        assert result.ret == pytest.ExitCode.USAGE_ERROR, given
        result.stderr.fnmatch_lines(["*test_bad: write the marker as energy(max_j=50), in joules"])
        result.stdout.no_fnmatch_line("*No test has an energy*")
    (bench.pytester.path / "test_it.py").write_text("def test_plain(): pass")
    for word in ("--energy-update", "--energy-baseline=b.json", "--energy-limit=5%", "--energy-repeats=10",
                 "--energy-time=60", "--energy-time=0", "--energy-top=0"):  # fmt: skip
        lone = bench.pytester.runpytest_inprocess(*PLUGIN, word)
        assert lone.ret == pytest.ExitCode.USAGE_ERROR, word
        lone.stderr.fnmatch_lines([f"*{word.partition('=')[0]} needs --energy*"])


METER = """
from joulelab.core.spec import Accuracy, Spec, Stream
class Steady:
    def streams(self):
        accuracy = Accuracy(gain=0.01, source="datasheet")
        channel = Spec("power_w", "power", "W", "power", update_s=0.05, accuracy=accuracy)
        return [Stream("node", "power", "node.ac", 0.05, (channel,))]
    def read(self, stream): return (1000.0,)
    def close(self): pass
def open_meter(config): return Steady()
"""
SLEEPS = """
import time, pytest

@pytest.mark.energy(max_j=20)
def test_more(): time.sleep(0.3)

def test_less(): time.sleep(0.5)
"""


@pytest.mark.system
def test_a_session_is_a_run_and_nothing_is_imported_without_the_option(tmp_path: Path) -> None:
    (tmp_path / "steady.py").write_text(METER)
    (tmp_path / "joulelab.toml").write_text(f'[meters.steady]\nmeter = "{tmp_path / "steady.py"}"\n')
    (tmp_path / "test_sleep.py").write_text(SLEEPS)
    code = (
        "import sys, pytest; code = pytest.main(sys.argv[1:]);"
        "print(sorted(m for m in sys.modules if m.startswith('joulelab'))); sys.exit(code)"
    )

    def call(*words: str) -> Any:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COVERAGE"))}
        command = [sys.executable, "-c", code, *PLUGIN, "-q", *words]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)

    plain = call()
    assert plain.returncode == 0
    assert plain.stdout.splitlines()[-1] == str(
        ["joulelab", "joulelab.core", "joulelab.core.version", "joulelab.integrations",
         "joulelab.integrations.pytest_energy"]
    )  # fmt: skip
    done = call("--energy")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "max_j is 20 J." in done.stdout
    (run,) = (tmp_path / "joulelab-runs").iterdir()
    marks = "".join(path.read_text() for path in run.glob("*/marks/*"))
    assert "test_sleep.py::test_less" in marks
