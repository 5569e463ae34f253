"""`joulelab tune`, end to end on the twin with a simulated job: by whole runs, and inside one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.capped import FOUND_W, CapBench, kill
from tests.waiting import until

from joulelab.store.run_folder import list_runs
from joulelab.twin.job_notes import CPU_SHARE
from joulelab.twin.model import RTX6000

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system
JOB = (sys.executable, "-m", "joulelab.twin.job", "--gpus", "2", "--speed", "20")
CAPS = (100.0, 180.0, 260.0)
FEW_PERCENT = 1.05
WIDE = ("--online", "--window", "600ms", "--settle", "200ms")
SHORT = ("--online", "--window", "300ms", "--settle", "100ms")  # where nothing depends on what was chosen


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CapBench]:
    with CapBench(tmp_path) as made:
        yield made


def true_energy(bench: CapBench, cap_w: float) -> float:
    """Return the true energy of a unit of the job's work under a cap, by the job's formula, in J times a constant."""
    node = bench.truth.node
    full = [min(node.range_w(f"gpu:{gpu}")[1], node.gpus[gpu].default_cap_w) for gpu in range(2)]
    rest = 0.0
    for leaf in (f"{kind}:{j}" for j in range(node.packages) for kind in ("cpu", "dram")):
        low, high = node.range_w(leaf)
        rest += low + CPU_SHARE * (high - low)
    took = max(node.gpus[gpu].compute_stretch(min(w, cap_w) / w) for gpu, w in enumerate(full))
    return (sum(min(w, cap_w) for w in full) + rest) * took


def regret(bench: CapBench, cap_w: float) -> float:
    return true_energy(bench, cap_w) / min(true_energy(bench, cap) for cap in CAPS)


def windows(bench: CapBench) -> list[dict[str, Any]]:
    return [e for e in bench.events() if e["event"] == "tune-window"]


# A job that ends, with a code of its own, when the tuning inside it is over and a little more of it has run.
UNTIL_CHOSEN = f"""{" ".join(JOB)} --work 100000 > /dev/null &
until grep -qE 'tune-(choice|failed)' $JOULELAB_RUN/*/events.run.jsonl; do sleep 0.1; done
sleep 0.2; kill $!; wait $!; echo over; exit 7"""


def test_online_tries_caps_while_the_command_goes_on_and_leaves_as_it_did(bench: CapBench) -> None:
    words = ("--goal", "energy", "--cap", "100,260", "--trials", "2", "--gpu", "0,1", "-o", "told.json")
    done = bench.call("tune", *words, *SHORT, "--", "sh", "-c", UNTIL_CHOSEN, code=7)
    assert done.stdout == "over\n"
    (choice,) = [e for e in bench.events() if e["event"] == "tune-choice"]
    assert choice["cap"] in (100, 260)
    seen = windows(bench)
    assert seen[0]["cap"] == 260
    assert all(e["to"] - e["from"] >= 0.3e9 and e["work"] > 0 and e["energy"] > 0 for e in seen)
    # Windows lie apart, and the choice is what was set last.
    assert all(a["to"] <= b["from"] for a, b in pairwise(seen))
    assert [e["asked"] for e in bench.events() if e["event"] == "cap-set"][-1] == choice["cap"]
    assert bench.caps() == [FOUND_W, FOUND_W]
    assert not bench.journals()
    told = json.loads((bench.folder / "told.json").read_text())
    tune = told["tune"]
    assert (told["exit_code"], tune["mode"], tune["unit"], tune["complete"]) == (7, "online", "steps", True)
    assert tune["choice_w"] == choice["cap"]
    assert tune["saved_j"]["expanded"] > 0
    assert tune["cost"]["trials"] >= 2


@pytest.mark.campaign  # the choice is as good as the time is even: study/tuning/test_account.py has virtual time
def test_online_finds_a_good_cap(bench: CapBench) -> None:
    words = ("--goal", "energy", "--cap", "100:260:80", "--trials", "3", "--gpu", "0,1", "-o", "told.json")
    bench.call("tune", *words, *WIDE, "--", "sh", "-c", UNTIL_CHOSEN, code=7)
    tune = json.loads((bench.folder / "told.json").read_text())["tune"]
    assert regret(bench, tune["choice_w"]) < FEW_PERCENT
    assert tune["cost"]["trials"] >= 3
    for row in (row for row in tune["rows"] if row["cap_w"] < 260):
        wide = max(2 * row["loss"]["expanded"], 0.05)
        assert row["loss"]["value"] == pytest.approx(RTX6000.compute_stretch(row["cap_w"] / 260) - 1, abs=wide)


def test_a_command_that_ends_early_is_told_to_run_longer(bench: CapBench) -> None:
    done = bench.call("tune", "--goal", "edp", "--online", "--window", "10m", "--", *JOB, "--work", "5")
    assert "0 windows" in done.stderr
    assert "--window 300s" in done.stderr
    assert bench.caps() == [FOUND_W, FOUND_W]


def test_a_command_without_reports_of_work_is_told_to_make_some(bench: CapBench) -> None:
    done = bench.call("tune", "--goal", "edp", *SHORT, "--", "sh", "-c", "sleep 0.1; exit 3", code=3)
    assert "joulelab.work(samples=64)" in done.stderr
    assert not [e for e in bench.events() if e["event"] == "cap-set"]
    assert bench.caps() == [FOUND_W, FOUND_W]


@pytest.mark.campaign  # a kill; control/test_client.py replaces a keeper, run/test_capping.py tells it
def test_a_keeper_that_is_killed_does_not_end_the_tuning(bench: CapBench) -> None:
    words = ("--goal", "energy", "--cap", "180,260", "--trials", "2")
    tune = bench.start("tune", *words, *SHORT, "--", "sh", "-c", UNTIL_CHOSEN)
    until(lambda: list_runs(bench.folder / "runs") and windows(bench))
    kill(bench.keeper())
    _, told = tune.communicate(timeout=120)
    assert tune.returncode == 7, told
    events = [e["event"] for e in bench.events()]
    assert "keeper-died" in events
    assert "tune-choice" in events
    assert "tune-failed" not in events
    assert bench.caps() == [FOUND_W, FOUND_W]
    assert not bench.journals()


def test_a_signal_goes_to_the_command_and_the_caps_come_back(bench: CapBench) -> None:
    tune = bench.start("tune", "--goal", "energy", *SHORT, "--", *JOB, "--work", "100000")
    until(lambda: list_runs(bench.folder / "runs") and windows(bench))
    tune.send_signal(signal.SIGTERM)
    _, told = tune.communicate(timeout=120)
    assert tune.returncode == -signal.SIGTERM, told
    assert not [e for e in bench.events() if e["event"] == "tune-choice"]
    assert bench.caps() == [FOUND_W, FOUND_W]


@pytest.mark.campaign
def test_whole_runs_are_tried_and_count_when_it_is_asked_again(bench: CapBench) -> None:
    pairs = ("--cap", "100,260", "--clock", "1050,2100")
    words = ("tune", "--goal", "energy", *pairs, "--trials", "2", "--gpu", "all")
    done = bench.call(*words, "--", *JOB, "--work", "100")
    assert "trial 1: 260 W, 2100 MHz" in done.stderr
    assert "2 trials:" in done.stdout
    assert "…" not in done.stdout
    told = [line for line in done.stdout.splitlines() if not line.startswith(("study", "next"))]
    assert max(map(len, told)) <= 80
    # Each cap was run once, so nothing is known to be saved.
    assert "runs pay" not in done.stdout
    again = json.loads(bench.call(*words, "--json", "--", *JOB, "--work", "100").stdout)
    assert not again["saved_surely"]
    assert again["cost"]["trials"] == 0
    assert again["choice_w"] in (100, 260)
    assert again["choice_clock_hz"] in (1050e6, 2100e6)
    # A setting without significant difference from the reference is not proposed.
    tied = (again["reference_w"], again["reference_clock_hz"]) in zip(
        again["tied_w"], again["tied_clocks_hz"], strict=True
    )
    assert ("joulelab cap --clock" in again["next"]) == (not tied)
    assert len(list(bench.folder.glob("joulelab-studies/*/cells/*/r*/claim.json"))) == 2
    assert bench.caps() == [FOUND_W, FOUND_W]
    assert [bench.truth.locked_mhz(gpu) for gpu in (0, 1)] == [None, None]


@pytest.mark.campaign  # a run of a second is half start-up, as long as the machine is busy: study/tuning/test_runs.py
def test_whole_runs_find_a_good_cap(bench: CapBench) -> None:
    words = ("tune", "--goal", "energy", "--cap", "100:260:80", "--trials", "3", "--gpu", "all", "--json")
    told = json.loads(bench.call(*words, "--", *JOB, "--work", "200").stdout)
    assert regret(bench, told["choice_w"]) < FEW_PERCENT


@pytest.mark.campaign  # study/tuning/test_runs.py goes on and leaves such caps out, in virtual time
def test_an_interrupted_tune_goes_on_and_a_cap_that_fails_is_left_out(bench: CapBench) -> None:
    # The second trial waits for the interrupt.
    script = f"""test {{cap}} -gt 120 || exit 1
    test ! -e first -o -e go || exec sleep 600
    touch first; exec {" ".join(JOB)} --work 100"""
    words = ("--goal", "edp", "--cap", "100,180,260", "--trials", "3", "--scope", "gpu", "--", "sh", "-c", script)
    tune = bench.start("tune", *words)
    done = bench.folder / "joulelab-studies"
    until(lambda: list(done.glob("*/cells/*/r01/2*/results.json")))
    tune.send_signal(signal.SIGINT)
    _, told = tune.communicate(timeout=120)
    assert tune.returncode == 130, told
    (bench.folder / "go").touch()
    again = bench.call("tune", *words)
    assert "trial 1: 260 W" not in again.stderr
    tuned = json.loads(bench.call("tune", "--json", *words).stdout)
    assert (tuned["scopes"], {row["cap_w"] for row in tuned["rows"]}) == ("gpu", {180.0, 260.0})
    (note,) = (note for note in tuned["notes"] if "100 W" in note)  # where the command failed
    assert note in " ".join(again.stdout.split())
    assert bench.caps() == [FOUND_W, FOUND_W]


def test_runs_that_are_too_short_are_refused_after_the_first(bench: CapBench) -> None:
    done = bench.call("tune", "--goal", "energy", "--cap", "100,260", "--json", "--", "sleep", "0.01", code=2)
    assert json.loads(done.stdout)["error"]["code"].startswith("refused")
    assert "trial 2" not in done.stderr
    assert bench.caps() == [FOUND_W, FOUND_W]


def test_what_cannot_be_done_is_said_before_anything_runs(bench: CapBench) -> None:
    edp = ("--goal", "edp")
    cases = [
        (("--goal", "edpp", "--", "true"), "config", "'edpp'"),
        ((*edp, "--clock", "100,900", "--", "true"), "refused", "2100 MHz"),
        ((*edp, "--cap", "50,260", "--", "true"), "refused", "100 to 260 W"),
        ((*edp, "--cap", "200", "--", "true"), "config", "--cap"),
        ((*edp, "--gpu", "7", "--", "true"), "config", "'7'"),
        ((*edp, "--window", "3s", "--", "true"), "usage.other-mode", "--window"),
        (edp, "usage.no-command", ""),
        ((*edp, "--", "echo", "{batch}"), "config", "{batch}"),
        # The command's own words are not ours: without --online the usual code stays.
        ((*edp, "--window", "soon", "--", "true", "--online"), "usage", "'soon'"),
    ]
    bench.refuse("tune", cases, code=2)
    cases = [
        (("--online", *edp, "--cap", "50,260", "--", "true"), "refused", "100 to 260 W"),
        (("--online", *edp, "--retry", "--", "true"), "usage.other-mode", "--retry"),
        (("--online", "--goal", "energy@f1>=0.9", "--", "true"), "usage.no-quality", "f1"),
        (("--online", *edp, "--window", "soon", "--", "true"), "usage", "'soon'"),
        (("--online", *edp), "usage.no-command", ""),
    ]
    bench.refuse("tune", cases, code=125)
    assert not list_runs(bench.folder / "runs")


@pytest.fixture(scope="module")
def unenforced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CapBench]:
    with CapBench(tmp_path_factory.mktemp("loose"), unenforced_caps=True) as made:
        yield made


@pytest.mark.campaign  # study/tuning/test_online.py chooses none either
def test_online_chooses_no_cap_where_none_is_enforced(unenforced: CapBench) -> None:
    done = unenforced.call("tune", "--goal", "edp", "--cap", "100,260", *SHORT, "--", "sh", "-c", UNTIL_CHOSEN, code=7)
    assert "100 W" in done.stderr
    assert "joulelab cap 100" not in done.stderr
    run = list_runs(unenforced.folder / "runs")[-1]
    assert not any("tune-choice" in path.read_text() for path in run.glob("*/events.*.jsonl"))
    assert unenforced.caps() == [FOUND_W, FOUND_W]


@pytest.mark.campaign  # tuning/test_runs.py chooses none either, and test_sweep.py finds such caps in runs on the twin
def test_whole_runs_choose_no_cap_where_none_is_enforced(unenforced: CapBench) -> None:
    words = ("--goal", "edp", "--cap", "100,110,260", "--json", "--", *JOB, "--work", "100")
    told = json.loads(unenforced.call("tune", *words, code=1).stdout)
    assert told["choice_w"] is None
    assert "joulelab cap" not in told["next"]
    assert unenforced.caps() == [FOUND_W, FOUND_W]


def test_every_thread_beside_a_tuned_workload_blocks_the_signals_of_the_run(tmp_path):
    script = "sleep 0.5; grep -h SigBlk /proc/$PPID/task/*/status"
    tune = [sys.executable, "-m", "joulelab", "tune", "--online", "--goal", "energy", "-q", "--runs", str(tmp_path)]
    twin = [sys.executable, "-m", "joulelab", "twin", "--gpus", "2", "--idle", "--", *tune, "--", "sh", "-c", script]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "4"}  # numpy has threads of its own
    done = subprocess.run(twin, capture_output=True, text=True, check=False, env=environ, timeout=300)
    masks = [int(line.split()[1], 16) for line in done.stdout.splitlines() if line.startswith("SigBlk")]
    assert masks, done.stderr
    assert all(mask >> (signal.SIGTERM - 1) & 1 for mask in masks), done.stdout
