from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import tomllib
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.instruments.file import open_archive
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result
    from tests.cli.conftest import Call, Fail

EXAMPLE = Path(__file__).parents[2] / "examples" / "import"
START = 1_714_564_800
FAKE = """
from joulelab.core.spec import Fetched, Spec, Stream
CONFIG = {"label": "its name", "watts": "power", "token": "secret"}
SECRETS = ("token",)
NS = 10**9

class Archive:
    interval = (1_714_564_800 * NS, 1_714_564_860 * NS)
    facts = {"job": "77", "nodes": ["n1", "n2"], "name": "pretrain"}
    steps = [("batch", 1_714_564_800 * NS, 1_714_564_860 * NS), ("0", 1_714_564_810 * NS, 1_714_564_830 * NS)]

    def __init__(self, watts):
        self.watts = watts

    def fetch(self, start, end):
        spec = Spec("power_w", "power", "W", "power", 1.0, 1.0)
        stream = Stream("node.ac", "power", "node.ac", 1.0, (spec,))
        rows = [(t * NS, t * NS, (self.watts,)) for t in range(start // NS - 1, end // NS + 2)]
        return [Fetched(stream, rows, host) for host in ("n1", "n2")]

    def close(self):
        pass

def open_archive(config):
    assert config["label"] == "acct" and config.get("token") in (None, "s3cret-word")
    return Archive(config["watts"])
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "power.csv"
    path.write_text("t,w\n" + "".join(f"{START + k},{200 + (k >= 30) * 300}\n" for k in range(61)))
    return path


def result(done: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def scope(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(s for s in found["scopes"] if s["scope"] == name)


def test_a_file_becomes_a_run_with_the_same_table(call: Call, log: Path) -> None:
    words = ("--time", "t=unix", "--map", "w=node.ac:W", "gain=0.01", "--name", "elsewhere", "-l", "rack=7")
    done = call("import", "csv", log, *words)
    assert "imported" in done.stdout
    assert "the whole node at the wall" in done.stdout
    shown = call("show", "elsewhere").stdout
    assert done.stdout.splitlines()[:12] == shown.splitlines()[:12]
    found = json.loads(call("show", "elsewhere", "--json").stdout)
    assert (found["outcome"], found["state"], found["labels"]) == ("imported", "closed", {"rack": "7"})
    assert scope(found, "node.ac")["reading"]["energy"]["value"] == pytest.approx(30 * 200 + 30 * 500, rel=0.02)
    assert "elsewhere" in call("ls").stdout


def test_json_interval_idle_and_phases(call: Call, log: Path) -> None:
    parts = ["--from", "2024-05-01T12:00:30Z", "--to", "2024-05-01 14:00:50", "--zone", "Europe/Berlin"]
    parts += ["--idle", str(START), str(START + 25), "--phase", "train", "2024-05-01T12:00:35Z", str(START + 45)]
    found = result(call("import", "csv", log, "--time", "t=unix", "--map", "w=node.ac:W", *parts, "--json"))
    assert (found["start_ns"], found["end_ns"]) == ((START + 30) * 10**9, (START + 50) * 10**9)
    node = scope(found, "node.ac")
    assert node["idle_w"]["value"] == pytest.approx(200.0, rel=0.05)
    assert node["reading"]["energy"]["value"] == pytest.approx(20 * 500, rel=0.05)
    assert [(p["name"], p["start_s"], p["duration_s"]) for p in found["phases"]] == [("train", 5.0, 10.0)]
    assert Path(found["folder"]).is_dir()


def test_wandb_needs_no_map(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    rows = "".join(f"{START + 15 * k},{300},{310}\n" for k in range(20))
    path.write_text("_timestamp,system.gpu.0.powerWatts,system.gpu.1.powerWatts\n" + rows)
    found = result(call("import", "wandb", path, "--host", "node3", "--json"))
    assert found["host"] == "node3"
    assert scope(found, "gpu:1")["reading"]["energy"]["value"] == pytest.approx(310 * 285, rel=1e-6)


def test_the_example_of_the_documents(call: Call) -> None:
    done = call("import", "csv", "--entry", "dcim", "--config", EXAMPLE / "joulelab.toml", "--json")
    found = result(done)
    assert {"outlet:1", "outlet:2"} <= {s["scope"] for s in found["scopes"]}
    (problem,) = found["problems"]
    assert "line 28, 'ERR'" in problem
    with open_run(Path(found["folder"])) as run:
        (about,) = run.meta["imported"]["archives"]
        assert (about["file"], about["clock_offset_s"], len(about["sha256"])) == ("power.csv", -1.5, 64)
        assert run.meta["host"] == "node07"
        gaps = [e for e in run.events() if e["event"] == "gap"]
    assert [(g["stream"], g["line"]) for g in gaps] == [("outlet:2", 28)]


def test_entries_in_the_documents_are_valid(tmp_path: Path) -> None:
    """The page's first entry is the example's; each is accepted for a file of its columns."""
    page = (EXAMPLE.parents[1] / "docs" / "how-to" / "import.md").read_text()
    entries = [tomllib.loads(block)["meters"] for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    assert [list(e) for e in entries] == [["dcim"], ["h100"]]
    shipped = tomllib.loads((EXAMPLE / "joulelab.toml").read_text())["meters"]["dcim"]
    assert {**entries[0]["dcim"], "columns": []} == {**shipped, "columns": []}
    assert entries[0]["dcim"]["columns"][0] == shipped["columns"][0]
    log = tmp_path / "1node_resnet_1.csv"
    log.write_text("node,t_s,ac_w,dc_w\nn1,-2.0,2795,2617\nn1,0.5,2755,\n")
    settings = {k: v for k, v in entries[1]["h100"].items() if k != "meter"}
    ac, dc = open_archive({**settings, "path": str(log)}).fetch(0, 2**62)
    assert (ac.host, ac.stream.scope, dc.stream.scope) == ("n1", "node.ac", "node.dc")


@pytest.mark.system  # pure, and slow
def test_entries_are_asked_beside_a_file(
    call: Call, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake.py").write_text(FAKE)
    entry = '[meters.acct]\nmeter = "./fake.py"\nwatts = 450.0\ntoken = { env = "ACCT_TOKEN" }\n'
    (tmp_path / "joulelab.toml").write_text(entry)
    monkeypatch.setenv("ACCT_TOKEN", "s3cret-word")
    words = ("--time", "t=unix", "--map", "w=gpu:0:W", "--host", "n1", "--json")
    found = result(call("import", "csv", log, *words, "--entry", "acct"))
    assert {(s["host"], s["scope"]) for s in found["scopes"]} == {("n1", "gpu:0"), ("n1", "node.ac"), ("n2", "node.ac")}
    assert [p["name"] for p in found["phases"]] == ["batch", "0"]
    assert found["name"] == "pretrain"
    folder = Path(found["folder"])
    assert not [p for p in folder.rglob("*") if p.is_file() and b"s3cret-word" in p.read_bytes()]
    with open_run(folder) as run:
        assert [a.get("job") for a in run.meta["imported"]["archives"]] == [None, "77"]
        assert {t.meter for t in run.tables()} == {"power", "acct"}


MAPPED = ["csv", "LOG", "--time", "t", "--map", "w=node.ac:W"]


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["csv"], "config.no-file", "csv"),
        (["csv", "LOG", "LOG2", *MAPPED[2:]], "config.too-many-subjects", "LOG2"),
        (["csv", "LOG", "--time", "t", "--map", "x=node.ac:W"], "config", "'x'"),
        (["csv", "LOG", "--time", "t", "--map", "w"], "config.map", "--map"),
        (["csv", "LOG", "--time", "t", "--map", "w=nodeac:W"], "config", "'node.ac'"),
        (["csv", "LOG", "--time", "t", "--map", "w=node:W"], "config", "'node'"),
        (["prometheus", "address=http://a:b-secret@h", "preset=dcgm"], "config", "address"),
        ([*MAPPED, "delimeter=;"], "config", "'delimiter'"),
        ([*MAPPED, "--from", "noon"], "config", "--from"),
        ([*MAPPED, "--from", "2", "--to", "1"], "config", "--from and --to"),
        ([*MAPPED, "--phase", "x", "2", "1"], "config.interval", "--phase"),
        ([*MAPPED, "--entry", "pdu1"], "config", "[meters.pdu1]"),
        ([*MAPPED, "--zone", "Europe/Berln"], "config", "'Europe/Berlin'"),
        (["wandb", "LOG"], "config", "wandb"),
        (["slurm"], "config.no-job", "slurm"),
        (["slurm", "7", "--from", "1"], "config.not-for-source", "--entry"),
        (
            ["slurm", "7", "--into", "LOG", "--from", "1", "--phase", "x", "1", "2"],
            "config.not-into",
            "--from, --phase",
        ),
        (["csv", "LOG", "--into", "last"], "config.not-into", "--into"),
        (["prometheus", "LOG"], "config.no-pair", "JOBID"),
    ],
)
def test_what_is_wrong_is_said(fail: Fail, log: Path, runs: Path, words: list[str], code: str, named: str) -> None:
    failure = fail("import", *(str(log) if w == "LOG" else w for w in words))
    assert code in (failure.code, failure.kind)
    assert named in failure.stderr
    assert "b-secret" not in failure.stderr
    assert not list(runs.glob("*/run.json"))


def test_a_file_whose_numbers_cannot_be_read(call: Call, fail: Fail, tmp_path: Path, runs: Path) -> None:
    path = tmp_path / "commas.csv"
    path.write_text("t;w\n" + "".join(f"{START + k};200,5\n" for k in range(9)))
    words = ("import", "csv", path, "--time", "t=unix", "--map", "w=node.ac:W")
    failure = fail(*words, code=1)
    assert (failure.code, failure.where, failure.next) == ("read-failed.no-numbers", str(path), 'type decimal=","')
    assert not any(word in failure.stderr for word in ("doctor", "twin"))
    assert not list(runs.glob("*/run.json"))
    found = result(call(*words, "decimal=,", "--json"))
    assert scope(found, "node.ac")["reading"]["energy"]["value"] == pytest.approx(8 * 200.5, rel=0.01)


def test_the_advice_for_kilowatts_under_a_header_of_watts_works(call: Call, fail: Fail, tmp_path: Path) -> None:
    path = tmp_path / "kilowatts.csv"
    path.write_text("t,power_w\n" + "".join(f"{START + k},2.5\n" for k in range(9)))
    (check,) = (c for c in result(call("import", "csv", path, "--json"))["checks"] if c["status"] == "failed")
    assert check["code"] == "impossible-power.wrong-unit"
    assert "--map COLUMN=node.ac:kW header_units=false" in str(check)
    assert fail("import", "csv", path, "--map", "power_w=node.ac:kW").code == "config.header-unit"
    found = result(call("import", "csv", path, "--map", "power_w=node.ac:kW", "header_units=false", "--json"))
    assert scope(found, "node.ac")["reading"]["energy"]["value"] == pytest.approx(8 * 2500)


def test_what_has_no_energy_is_said_to_have_none(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "inlet.csv"
    path.write_text("t,c\n" + "".join(f"{START + k},{20 + k}\n" for k in range(9)))
    words = ("import", "csv", path, "--time", "t=unix", "--map", "c=node:C")
    assert result(call(*words, "--json"))["energy"] is None
    assert not any(word in call(*words).output for word in ("doctor", "twin"))


@pytest.mark.parametrize(("watts", "usual"), [(9e4, 500), (5.2, 5.1)])
def test_ls_marks_an_impossible_power_and_shows_no_energy(
    call: Call, tmp_path: Path, watts: float, usual: float
) -> None:
    path = tmp_path / "spike.csv"
    path.write_text("t,w\n" + "".join(f"{START + k},{watts if k == 5 else usual}\n" for k in range(9)))
    call("import", "csv", path, "--time", "t=unix", "--map", "w=node.ac:W")
    listed = call("ls").output
    assert " impossible power " in listed
    assert not re.search(r"\d ?[kMGT]?J\b", listed)
    (row,) = json.loads(call("ls", "--json").output)
    assert (row["check"], row["problem"].partition(":")[0]) == ("impossible power", "node.ac")


def test_a_file_that_is_not_there(fail: Fail, runs: Path) -> None:
    failure = fail("import", "csv", "none.csv", "--time", "t", "--map", "w=node.ac:W", code=1)
    assert (failure.kind, failure.where) == ("unavailable", "none.csv")
    assert not runs.exists()


@pytest.fixture
def monitoring(tmp_path: Path) -> Iterator[str]:
    """Serve a VictoriaMetrics that holds five minutes of a GPU at 200 W, every 5 s."""
    program = shutil.which("victoria-metrics")
    if program is None:
        pytest.skip("no victoria-metrics: apt install victoria-metrics")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    begin = int(datetime.now(UTC).timestamp()) // 60 * 60 - 3600
    words = [f"-storageDataPath={tmp_path / 'vm'}", f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=1y"]
    with (tmp_path / "vm.log").open("wb") as out, subprocess.Popen([program, *words], stdout=out, stderr=out) as server:
        try:
            lines = "".join(
                f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",Hostname="n1"}} 200 {(begin + 5 * k) * 1000}\n' for k in range(61)
            )
            _post(f"http://127.0.0.1:{port}/api/v1/import/prometheus", lines.encode())
            urllib.request.urlopen(f"http://127.0.0.1:{port}/internal/force_flush", timeout=120).close()
            yield f"{port} {begin}"
        finally:
            server.kill()


def _post(url: str, data: bytes) -> None:
    for _ in range(1200):
        try:
            urllib.request.urlopen(url, data, timeout=120).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("victoria-metrics did not come up within 120 s")


@pytest.mark.system
def test_a_monitoring_system_is_asked_for_a_past_interval(
    call: Call, fail: Fail, monitoring: str, tmp_path: Path
) -> None:
    port, begin = monitoring.split()
    entry = f'[meters.monitoring]\nmeter = "prometheus"\naddress = "http://127.0.0.1:{port}"\npreset = "dcgm"\n'
    (tmp_path / "joulelab.toml").write_text(entry)
    interval = ("--from", begin, "--to", str(int(begin) + 300))
    done = call("import", "prometheus", "--entry", "monitoring", *interval, "--json")
    found = result(done)
    (gpu,) = found["scopes"]
    assert gpu["scope"] == "gpu:0"
    assert gpu["reading"]["energy"]["value"] == pytest.approx(200 * 300, rel=1e-6)
    with open_run(Path(found["folder"])) as run:
        (table,) = run.tables()
        assert (table.meter, table.rows) == ("monitoring", 61)
    assert fail("import", "prometheus", "--entry", "monitoring").kind == "config"
    typed = call("import", "prometheus", f"address=http://127.0.0.1:{port}", "preset=dcgm", *interval, "--json")
    assert scope(result(typed), "gpu:0")["reading"]["energy"]["value"] == gpu["reading"]["energy"]["value"]
