from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.rows import every_row
from tests.slurm.fake import DAY, PM, T0, Fake, row

from joulelab.analysis.analyse import analyse_run
from joulelab.core.errors import ConfigError, ReadFailed, StoreError
from joulelab.instruments import slurm
from joulelab.report.messages import word_check
from joulelab.run.run_import import (
    ArchiveRequest,
    ImportRequest,
    import_archives,
    make_archive_request,
    read_archive_entry,
)
from joulelab.store.imported import ImportedPhase
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.analysis.result import Check

WANTED = ImportRequest(source="csv", command=["joulelab", "import", "csv"])
NS = 10**9


def asked(path: Path, **more: Any) -> ArchiveRequest:
    columns = [{"column": "w", "scope": "node.ac", "unit": "W"}]
    return ArchiveRequest("file", "log", {"path": str(path), "time": "t", "columns": columns, **more})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text("t,w\n1714564800,5\n1714564801,6\n")
    return path


def test_a_meter_that_is_read_live_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read afterwards"):
        import_archives(tmp_path / "runs", [ArchiveRequest("rapl", "rapl", {})], WANTED)


def test_an_interval_has_to_come_from_somewhere(tmp_path: Path, log: Path) -> None:
    (tmp_path / "fake.py").write_text(
        "class A:\n    def fetch(self, a, b):\n        return []\n    def close(self):\n        pass\n"
        "def open_archive(config):\n    return A()\n"
    )
    fake = ArchiveRequest(str(tmp_path / "fake.py"), "fake", {})
    with pytest.raises(ConfigError, match="has no interval of its own"):
        import_archives(tmp_path / "runs", [fake], WANTED)
    between = ImportRequest(source="csv", command=[], start_ns=1 * NS, end_ns=2 * NS)
    with pytest.raises(ReadFailed, match="no reading in that interval"):
        import_archives(tmp_path / "runs", [fake], between)
    assert not (tmp_path / "runs").exists()
    both = import_archives(tmp_path / "runs", [fake, asked(log)], WANTED)  # the file knows
    assert both.run.is_dir()


def test_one_row_has_no_length(tmp_path: Path, log: Path) -> None:
    log.write_text("t,w\n1714564800,5\n")
    with pytest.raises(ConfigError, match="it has no length"):
        import_archives(tmp_path / "runs", [asked(log)], WANTED)


def test_secrets_are_not_typed(tmp_path: Path) -> None:
    path = tmp_path / "fake.py"
    path.write_text('SECRETS = ("password",)\ndef open_archive(config):\n    raise AssertionError\n')
    with pytest.raises(ConfigError, match="a secret is given in plain text") as error:
        make_archive_request(str(path), "fake", {"password": "hunter2"}, {})
    assert "hunter2" not in str(error.value)
    found = make_archive_request(str(path), "fake", {"password": {"env": "WORD"}}, {"WORD": "hunter2"})
    assert found.settings["password"] == "hunter2"
    assert "hunter2" not in repr(found)


def test_entries_are_found_and_paths_are_beside_their_file(tmp_path: Path, log: Path) -> None:
    config = tmp_path / "joulelab.toml"
    config.write_text('[meters.dcim]\nmeter = "file"\npath = "log.csv"\ntime = "t"\n')
    found = read_archive_entry("dcim", {}, "here", named=config)
    assert (found.meter, found.label, found.settings["path"]) == ("file", "dcim", str(log))
    with pytest.raises(ConfigError, match="did you mean 'dcim'"):
        read_archive_entry("dcmi", {}, "here", named=config)


def test_what_is_not_known_of_the_interval_is_in_the_run(tmp_path: Path, log: Path) -> None:
    (tmp_path / "fake.py").write_text(
        "class A:\n    interval = (1714564800 * 10**9, 1714564801 * 10**9)\n"
        "    doubts = [{'event': 'interval-doubt', 'side': s, 'status': t, 'what': w, 'next': ''} for s, t, w in"
        " (('begin', 'failed', 'B'), ('end', 'warning', 'E'), ('', 'note', 'N'))]\n"
        "    def fetch(self, a, b):\n        return []\n    def close(self):\n        pass\n"
        "def open_archive(config):\n    return A()\n"
    )
    fake = ArchiveRequest(str(tmp_path / "fake.py"), "fake", {})
    given = [{}, {"start_ns": 1714564800 * NS}, {"end_ns": 1714564801 * NS}]
    for more, left, problems in zip(given, ("BEN", "EN", "BN"), (["B", "E"], ["E"], ["B"]), strict=True):
        done = import_archives(tmp_path / "runs", [fake, asked(log)], replace(WANTED, **more))
        with open_run(done.run) as run:
            told = [e["what"] for e in run.events() if e["event"] == "interval-doubt"]
        assert told == list(left), "who gives a begin or an end knows it"
        assert [p for p in done.problems if len(p) == 1] == problems
    with pytest.raises(ReadFailed, match="no reading in that interval"):
        import_archives(tmp_path / "runs", [fake], WANTED)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"others": f"2|COMPLETED|{DAY}00:30|{DAY}01:30|n1\n"}, "shared n1 with 2 (30 s)"),
        ({"config": PM.replace("none", "jobs,users")}, "PrivateData"),
        ({"config": PM.replace("AcctGatherNodeFreq = 1 sec\n", "")}, "how often the meter is sampled is not stated"),
    ],
)
def test_a_doubtful_job_is_imported_with_its_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], said: str
) -> None:
    fake = Fake(row("1", 5000) + row("1.0", 5000), **more)
    monkeypatch.setattr(slurm, "open_archive", lambda _: fake.archive())
    done = import_archives(tmp_path / "runs", [ArchiveRequest("slurm", "slurm", {})], WANTED)
    assert [said in problem for problem in done.problems] == [True], done.problems
    with open_run(done.run) as run:
        assert [said in e["what"] for e in run.events() if e["event"] == "problem"] == [True]


def test_a_step_of_a_job_has_the_energy_of_its_own_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no share of the job's total by time; a step without a row of its own, or any other phase, has no energy."""
    rows = row("1", 20_540) + row("1.batch", 21_800) + row("1.0", 20_540, "00:15", "00:45")
    rows += row("1.1", "", "00:50", "00:55")
    monkeypatch.setattr(slurm, "open_archive", lambda _: Fake(rows).archive())
    begin_ns = T0 + 5 * NS
    wanted = replace(WANTED, phases=[ImportedPhase("mine", begin_ns, begin_ns + 9 * NS)])
    done = import_archives(tmp_path / "runs", [ArchiveRequest("slurm", "slurm", {})], wanted)
    with open_run(done.run) as run:
        found = analyse_run(run)
    energies = {p.title: round(p.energy["job"].value) for p in found.phases if "job" in p.energy}
    assert energies == {"batch": 21_800, "0": 20_540}
    assert [p.title for p in found.phases if not p.energy] == ["mine", "1"]
    assert {s.scope: round(s.energy.value) for s in found.scopes} == {
        "job": 21_800,
        "job/batch": 21_800,
        "job/0": 20_540,
    }
    assert not any(check.name == "not read" for check in found.checks)
    accounted = [(c.code, c.status, c.scope, c.texts) for c in found.checks if c.name == "accounting"]
    assert accounted == [("accounting.no-step", "note", "job/1", {"reason": "Slurm has no value"})]


def test_a_job_without_accounted_energy_fails_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "open_archive", lambda _: Fake(row("1", "") + row("1.0", "")).archive())
    done = import_archives(tmp_path / "runs", [ArchiveRequest("slurm", "slurm", {})], WANTED)
    with open_run(done.run) as run:
        found = {(c.name, c.status): c for c in analyse_run(run).checks}
    check = found["accounting", "failed"]
    assert (check.code, check.scope, [*check.texts]) == ("accounting.no-job", "job", ["reason"])


def test_a_step_alone_cannot_be_imported_and_the_error_names_its_job() -> None:
    with pytest.raises(ConfigError, match=r"import the job: joulelab import slurm 1234"):
        slurm.check({"job": "1234.0"})


def watts(tmp_path: Path, values: Sequence[float], scope: str = "node.ac", unit: str = "W") -> list[Check]:
    """Return the failed checks of an imported column."""
    path = tmp_path / "log.csv"
    path.write_text("t,w\n" + "".join(f"{1714564800 + k},{value}\n" for k, value in enumerate(values)))
    columns = [{"column": "w", "scope": scope, "unit": unit}]
    done = import_archives(tmp_path / "runs", [asked(path, columns=columns)], WANTED)
    with open_run(done.run) as run:
        return [check for check in analyse_run(run).checks if check.status == "failed"]


@every_row(
    ("values", "scope", "unit", "said"),
    [
        ([500.0, 500.0, 90_000.0, 500.0], "node.ac", "W", "reaches 90.0 kW, far from its median of 500 W"),
        ([0.31, 0.35, 0.7], "gpu:0", "W", "less than a GPU draws when idle"),
        ([0.0, 0.3, 0.3], "gpu:0", "W", "less than a GPU draws when idle"),
        ([0.0, 1e-7, 2e-7], "gpu:0", "kWh", "less than a GPU draws when idle"),
        ([6.1, 6.0, 6.2], "node.ac", "W", " W, less than a server draws when idle"),
        ([1.0, 1.1, 1.2], "node.ac", "MWh", "energy_j of log reaches 240 MW"),
    ],
)
def test_powers_that_cannot_be_fail_a_check(
    tmp_path: Path, values: list[float], scope: str, unit: str, said: str
) -> None:
    (check,) = watts(tmp_path, values, scope, unit)
    assert check.name == "impossible power"
    assert said in word_check(check).text
    assert "import it again" in word_check(check).next


@pytest.mark.system  # pure, and slow
def test_powers_that_can_be_pass(tmp_path: Path) -> None:
    assert watts(tmp_path, [400.0, 14_300.0, 400.0]) == []
    assert watts(tmp_path, [0.0, 0.3, -0.5], "gpu:0") == []
    assert watts(tmp_path, [0.0, 0.0, 0.0], "gpu:0") == []
    assert watts(tmp_path, [0.31, 0.35, 0.7], "gpu:0", "kW") == []
    assert watts(tmp_path, [6.1, 6.0, 6.2], unit="kW") == []


@every_row(
    ("value", "scope"),
    [(1e308, "node.ac"), (-1e100, "node.ac"), (1e12, "node.ac"), (-35.0, "node.ac"), (12e3, "gpu:0"), (11e6, "rack")],
)
def test_a_power_that_no_device_has_is_refused_with_its_line(tmp_path: Path, value: float, scope: str) -> None:
    with pytest.raises(ReadFailed, match="is no power of") as error:
        watts(tmp_path, [400.0, value, 400.0], scope)
    assert error.value.code == "read-failed.impossible-power"
    assert str(error.value.where).endswith("log.csv, line 3, column 'w'")
    assert f"missing={value}" in str(error.value.next)
    assert "1 of 3 readings" in str(error.value.why)
    assert not (tmp_path / "runs").exists()


def test_a_huge_energy_is_refused(tmp_path: Path) -> None:
    """Sums and squares of it would not fit into a float."""
    with pytest.raises(StoreError, match=r"at 2024-05-01T12:00:01\+00:00 is no reading .*import it again"):
        watts(tmp_path, [400.0, 1e308, 1e308], unit="J")
    assert list((tmp_path / "runs").iterdir()) == []


def test_readings_of_another_zone_are_named_with_the_offset_to_type(tmp_path: Path, log: Path) -> None:
    log.write_text("t,w\n" + "".join(f"{1714564800 + k},400\n" for k in range(600)))
    wanted = replace(WANTED, start_ns=(1714564800 + 7200) * NS, end_ns=(1714564800 + 7500) * NS)
    with pytest.raises(ReadFailed) as error:
        import_archives(tmp_path / "runs", [asked(log)], wanted)
    assert error.value.code == "read-failed.no-readings"
    assert "from 2024-05-01T12:00:00Z to 2024-05-01T12:09:59Z" in str(error.value.why)
    assert "clock_offset_s=7200" in str(error.value.next)
    near = replace(WANTED, start_ns=round(1714564800.2 * NS), end_ns=round(1714564800.7 * NS))
    assert import_archives(tmp_path / "runs", [asked(log)], near).run.is_dir(), "between two readings"
