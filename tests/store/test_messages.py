"""The words of the store's errors and problems: what, where, why, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.codes import raises_code
from tests.store.make import close_run, gpus, make_run, ramp, write_rows

from joulelab.store.run_folder import create_run, find_run
from joulelab.store.run_query import run_query
from joulelab.store.run_reader import open_run
from joulelab.store.seal import seal_run
from joulelab.store.upgrade import upgrade_document

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_that_is_not_found_says_where_it_was_looked_for_and_what_is_near(runs: Path) -> None:
    with raises_code("not-a-run.none-yet") as caught:
        find_run(runs, "last")
    assert str(caught.value) == f"{runs}: there is no run yet; joulelab run -- COMMAND"
    made = [make_run(runs, name=name) for name in ("baseline", "other")]
    with raises_code("not-a-run.unknown") as caught:
        find_run(runs, "baselin")
    assert "nearest: baseline" in str(caught.value)
    with raises_code("not-a-run.ambiguous") as caught:
        find_run(runs, made[0].name[:4])
    assert (caught.value.what, caught.value.next) == (
        f"the names of 2 runs begin with {made[0].name[:4]!r}",
        "give more letters of the name",
    )


def test_places_and_schemas_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_code("store.not-created") as caught:
        create_run(tmp_path / "file", {"host": "n", "command": []})
    assert caught.value.next == "set JOULELAB_RUNS"
    with raises_code("newer-schema") as caught:
        upgrade_document("run", {"schema": 2}, where="r", steps={}, schema=1)
    assert str(caught.value).startswith("r: schema 2 is newer than this joulelab reads (1)")
    assert caught.value.next == "pip install --upgrade joulelab"


def test_streams_and_channels_that_are_not_there_list_those_that_are(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(2), ramp(5, streams=2))
    with open_run(run) as opened:
        (info,) = opened.tables()
        with raises_code("store.unknown-stream") as caught:
            opened.series(info, "gpu7")
        assert caught.value.why == "it has gpu0, gpu1"
        with raises_code("store.unknown-channel") as caught:
            opened.series(info, "gpu0", channels=["volts"])
        assert caught.value.why == "it has energy, power"


@pytest.mark.system  # pure, and slow
def test_a_query_with_a_mistake_lists_views_and_columns(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(2), ramp(5, streams=2))
    close_run(run)
    seal_run(run)
    with raises_code("config.query-failed") as caught:
        run_query(runs, "SELECT * FROM energiez")
    assert "energiez" in str(caught.value.why)
    assert str(caught.value.next).startswith("there are runs")
    with raises_code("config.query-failed") as caught:
        run_query(runs, "SELECT powr FROM nvml_fast")
    assert "nvml_fast(run, host, stream" in str(caught.value.next)


def test_damage_is_told_with_its_numbers(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulelab.store.run_folder.HASHED_BYTES", -1)  # as of a large run
    run = make_run(runs)
    path = write_rows(run, gpus(), ramp(10))
    close_run(run)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with open_run(run) as opened:
        opened.tables()
        (found,) = (p for p in opened.damage(opened.events()) if p.lost)
    assert found.what == "it was cut off after 9 rows"
