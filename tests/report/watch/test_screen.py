"""How `joulelab watch` is drawn: on any size of terminal."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.synthetic import HOST, epochs, make_run
from tests.report.watch.looked import plain, watch

from joulelab.core.errors import StoreError
from joulelab.report.watch.watch_screen import (
    describe_view_coverage,
    draw_screen,
    draw_spark,
    list_gpu_lines,
    list_meter_lines,
)
from joulelab.report.watch.watched_run import RunWatch, WatchedMeter, WatchView, _find_starts

if TYPE_CHECKING:
    from pathlib import Path


# Drawing ---------------------------------------------------------------------------------------------------------


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("size", [(80, 24), (60, 20), (120, 40), (40, 12), (20, 5), (1, 1), (300, 3)])
@pytest.mark.parametrize("gpus", [0, 2, 8, 64])
def test_it_fits(tmp_path: Path, size: tuple[int, int], gpus: int) -> None:
    name = "a very \x1b[31m long \u202e name \n of " * 9 + "\u4e2d\u6587" * 9
    view = view_of(tmp_path, gpus)
    view = replace(view, name=name, command=name, notes=(name,))
    drawn = draw_screen(view, *size)
    assert len(drawn) <= size[1]
    assert all(text.cell_len <= size[0] for text in drawn)
    assert all(text.plain.isprintable() for text in drawn)


VIEWS: dict[int, WatchView] = {}


def view_of(folder: Path, gpus: int) -> WatchView:
    """Return a view with so many GPUs; made once, it is not changed."""
    if gpus not in VIEWS:
        VIEWS[gpus] = watch(make_run(folder, state="live", gpus=gpus, seconds=6.0, marks=epochs(30, 6.0)))
    return VIEWS[gpus]


def test_of_too_many_gpus_the_extremes_are_shown_and_the_sum(tmp_path: Path) -> None:
    view = view_of(tmp_path, 64)
    gpus = [replace(g, power=replace(g.power, now_w=100.0 + k)) for k, g in enumerate(view.gpus)]
    text = plain(list_gpu_lines(gpus, 80, 6))
    assert [line.split()[0] for line in text.splitlines()] == ["GPU", "gpu:63", "gpu:62", "gpu:1", "gpu:0", "60"]
    assert "60 of 64 " in text
    assert "gpu (64)" in plain(draw_screen(view, 80, 24))
    assert len(list_gpu_lines(gpus, 80, 65)) == 65


def test_what_matters_most_stays_on_a_small_screen(tmp_path: Path) -> None:
    text = plain(draw_screen(view_of(tmp_path, 8), 60, 20))
    for word in ("W now", "gpu (8)", "measured", "epoch 30", "gpu:7", "q quits"):
        assert word in text


def test_everything_is_there_without_a_height(tmp_path: Path) -> None:
    text = plain(draw_screen(view_of(tmp_path, 64), 80))
    assert all(f"gpu:{k} " in text for k in range(64))
    assert "covers 64 GPUs, 1 CPU; nothing measures the rest of the node" in text
    assert "q quits" not in text


def test_bars_go_from_nothing_to_the_highest() -> None:
    assert draw_spark([0.0, 50.0, 100.0, math.nan, 100.0], 5) == "▁▅█ █"
    assert draw_spark([1.0, 2.0], 4) == "  ▅█"
    assert draw_spark([0.0, 0.0], 2) == "▁▁"
    assert draw_spark([-5.0, 10.0], 2) == "▁█"
    assert draw_spark([1.0] * 9, 3, ascii_only=True).isascii()
    assert draw_spark([1.0], 0) == ""


def test_many_meters_share_a_line_where_there_is_no_room() -> None:
    meters = [WatchedMeter(f"pdu{k}", "ok", 0.1 * k, k, 0, 0, "") for k in range(30)]
    line = plain(list_meter_lines(meters, 80, 1))
    assert all(part in line for part in ("30 meters", "pdu29", "2.9 s", "435 late"))
    troubled = [*meters, *(WatchedMeter(f"x{k}", "silent", 9.0, 0, 0, 0, "") for k in range(5))]
    lines = list_meter_lines(troubled, 80, 3)
    assert len(lines) == 3
    assert all(word in lines[0].plain.split() for word in ("x0", "silent", "9"))
    assert "more" in lines[-1].plain


def test_json_has_what_is_shown(live: Path) -> None:
    view = watch(live)
    data = json.loads(json.dumps(view.to_json(), allow_nan=False))
    assert view.energy is not None
    assert data["energy"]["value"] == view.energy.value
    assert data["energy"]["expanded"] == view.energy.expanded
    assert data["rows"][0]["energy"]["value"] > 0
    assert data["phases"][0]["title"]
    assert data["gpus"][0]["cap_w"] is None


def test_a_folder_without_hosts_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, state="live", gpus=0, cpus=0)
    watched = RunWatch(run, 1.0)
    (run / HOST).rename(tmp_path / "away")
    with pytest.raises(StoreError) as raised:
        watched.read()
    assert raised.value.code == "store.no-host"
    watched.close()


def test_several_hosts_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, state="live", gpus=2, cpus=0)
    copy_host(run, "node2")
    view = watch(run)
    assert view.hosts == (HOST, "node2")
    assert describe_view_coverage(view) == "covers GPUs only (4) on 2 nodes: no meter for the rest of the nodes"
    assert view.now_w == pytest.approx(720, rel=0.01)  # half of the last second is idle
    assert [g.label for g in view.gpus] == ["node1/gpu:0", "node1/gpu:1", "node2/gpu:0", "node2/gpu:1"]
    watched = RunWatch(run, 1.0, share=10.0)
    for _ in range(4):
        last = watched.read()
    watched.close()
    assert last.energy is not None
    assert last.energy.value == pytest.approx(12_000, rel=0.02)


def copy_host(run: Path, name: str) -> None:
    import shutil

    shutil.copytree(run / HOST, run / name)
    (run / name / "events.run.jsonl").unlink()


def test_the_start_is_told_in_the_time_of_each_host() -> None:
    """By UTC, where a host has another clock; one whose clock is not known yet has to wait."""

    def host(name: str, boot: str, pair: tuple[int, int] | None) -> Any:
        power = SimpleNamespace(follower=SimpleNamespace(boot_id=boot, folder=name))
        marks = SimpleNamespace(list_steps=None)
        return SimpleNamespace(power=power, events=SimpleNamespace(pair=pair), marks=marks)

    hosts = [host("a", "x", (100, 5000)), host("b", "x", None), host("c", "y", (7100, 5050)), host("d", "z", None)]
    assert [(name, start) for name, start, _ in _find_starts(hosts, 120)] == [("a", 120), ("b", 120), ("c", 7070)]
