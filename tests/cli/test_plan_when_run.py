"""`joulelab plan when --run` and `--submit` as a person types them, on the twin."""

from __future__ import annotations

import datetime as dt
import json
import shlex
import sys
from typing import TYPE_CHECKING

import pytest
from tests.cli.capped import FOUND_W, CapBench

from joulelab.plan.when.plan_run import read_utc_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytest.importorskip("highspy")
pytestmark = pytest.mark.system
JOB = (
    f"{shlex.quote(sys.executable)} -m joulelab.twin.job --gpus 2 --speed 20 --work 300 > /dev/null; echo over; exit 7"
)
GIVEN = ("--power", "700W", "--idle", "150W", "--duration", "6s")
SLOT_S = 4


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[CapBench]:
    with CapBench(tmp_path) as made:
        yield made


def format_utc(time_s: float) -> str:
    return dt.datetime.fromtimestamp(time_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_series(path: Path, start_s: float, values: Sequence[float], *lines: str) -> None:
    rows = [f"{format_utc(start_s + SLOT_S * k)},{value}" for k, value in enumerate(values)]
    path.write_text("\n".join([*lines, f"# step: {SLOT_S}s", "time,value", *rows]) + "\n")


def make_words(bench: CapBench, lead_s: float) -> tuple[str, ...]:
    """Write two rates with two cheap slots and a dear one between them; return the options of a plan by them."""
    start_s = float((int(read_utc_s() + lead_s) // SLOT_S + 1) * SLOT_S)
    write_series(bench.folder / "g.csv", start_s, [100, 900, 100, 500], "# kind: average", "# unit: g/kWh")
    write_series(bench.folder / "p.csv", start_s, [0.1, 0.5, 0.1, 0.3], "# kind: price", "# unit: EUR/kWh")
    rates = ("--intensity", "g.csv", "--tariff", "p.csv", "--by", "carbon", "--slot", f"{SLOT_S}s")
    times = ("--from", format_utc(start_s), "--deadline", format_utc(start_s + 4 * SLOT_S))
    return ("plan", "when", *GIVEN, *rates, *times, "--choose", "pauses")


def test_a_planned_job_pauses_in_the_dear_slot_and_passes_its_output_and_exit_code(bench: CapBench) -> None:
    done = bench.call(*make_words(bench, 10.0), "--run", "--", "sh", "-c", JOB, code=7)
    assert done.stdout == "over\n"
    events = [event for event in bench.events() if event["event"] in ("plan", "job-paused", "job-continued")]
    assert [event["event"] for event in events] == ["plan", "job-paused", "job-continued"]
    plan = events[0]["plan"]
    assert [one["action"] for one in plan["stretches"]][:3] == ["run", "pause", "run"]
    assert bench.caps() == [FOUND_W, FOUND_W]
    sentence = " ".join(done.stderr.split())
    assert "The job used" in sentence
    assert " g (" in sentence
    assert " EUR (" in sentence


def test_a_plan_for_several_nodes_is_refused_before_the_wait(bench: CapBench) -> None:
    words = (*make_words(bench, 3600.0), "--nodes", "4", "--json", "--run", "--", "touch", "started")
    done = bench.call(*words, code=125)
    assert json.loads(done.stdout)["error"]["code"] == "config.several-nodes"
    assert not (bench.folder / "started").exists()
