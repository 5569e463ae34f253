"""Make figures and a reproduction by hand, as the tests of the frame need them."""

from __future__ import annotations

from typing import Any

from joulelab.papers import Paper, PublishedTable
from joulelab.papers.covered import Covered
from joulelab.papers.figure_judgement import NONE, POINTS, STEP, Figure, printed
from joulelab.papers.told import Told


def figure(name: str = "x.time_s", published: Any = 100.0, reproduced: Any = 104.0, **more: Any) -> Figure:
    return Figure(id=name, label=more.pop("label", name), published=published, reproduced=reproduced, **more)


def figures() -> list[Figure]:
    return [
        figure("p.idle_w", 700, 701.0, unit="W", label="node, idle", kind="calibrated"),
        figure("p.median_w", 4680, 4750.0, unit="W", uncertainty=48.0, label="median power of the training"),
        figure("p.energy_kj", 109477.1, 111000.0, unit="kJ", tolerance=printed(1104.9), note="the host sleeps less"),
        figure("p.gain_pct", 25.39, 23.8, unit="%", tolerance=POINTS),
        figure("p.best_cap_w", 160, 170, unit="W", tolerance=STEP),
        figure("p.missing_s", 85, None, unit="s"),
        figure("p.energy_kwh", 123, 120.5, unit="kWh", kind="identity"),
        figure("p.order", "cpu-mix uses most", True, kind="finding", tolerance=NONE, detail="4.9 against 2.8 MJ"),
        figure("p.grows", "savings grow", False, kind="finding", tolerance=NONE, note="they shrink"),
        figure("p.quality_pct", 63.79, None, unit="%", kind="outside", note="needs the data"),
    ]


def paper(**more: Any) -> Paper:
    given: dict[str, Any] = {"name": "gdansk", "title": "A study of caps", "file": "gdansk.toml", "twins": {}}
    return Paper(**{**given, "figures": lambda *_: figures(), **more})


def told(**more: Any) -> Told:
    table = PublishedTable("batches", "Batches", ("batch", "energy"), (("512", "123 kWh"),), records=({"batch": 512},))
    given: dict[str, Any] = {"paper": paper(), "figures": figures(), "twins": {"one": "8 GPUs"}, "seed": 7}
    given |= {"slots": 680, "ran_s": 90_000.0, "took_s": 42.0, "new": 680, "tables": [table], "folder": "here"}
    held = Covered(680, 679, 6120, 6100, 0.012, 0.009, 68, 67, ("train, cap 100 W", 9, 10))
    given |= {"covered": held, "meters": ["The PDU costs 3 %."], "assumed": ["cooling.fan_max_w", "host"]}
    return Told(**{**given, "files": ["here/figures.csv"], "then": [("next", "joulelab ls")], **more})
