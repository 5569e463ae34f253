"""Make figures and a reproduction by hand, as the tests of the frame need them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from joulelab.papers.judgement import NO_TOLERANCE, STEP, Figure, make_gain_tolerance, make_printed_tolerance
from joulelab.papers.paper import Paper, PaperTable, find_paper
from joulelab.papers.reproduction import Reproduction, TruthCoverage
from joulelab.report.tables import make_table


def make_figure(name: str = "x.time_s", published: Any = 100.0, reproduced: Any = 104.0, **more: Any) -> Figure:
    return Figure(id=name, label=more.pop("label", name), published=published, reproduced=reproduced, **more)


def make_figures() -> list[Figure]:
    printed, gain = make_printed_tolerance(1104.9), make_gain_tolerance(25.39)
    own: dict[str, Any] = {"group": "measured"}
    ruled: dict[str, Any] = {"kind": "finding", "tolerance": NO_TOLERANCE}
    return [
        make_figure("p.idle_w", 700, 701.0, unit="W", label="node, idle", kind="calibrated", group="calibrated"),
        make_figure(
            "p.median_w", 4680, 4750.0, unit="W", uncertainty=48.0, label="median power of the training", **own
        ),
        make_figure(
            "p.energy_kj", 109477.1, 111000.0, unit="kJ", tolerance=printed, note="the host sleeps less", **own
        ),
        make_figure("p.gain_pct", 25.39, 23.8, unit="%", tolerance=gain, group="chosen"),
        make_figure("p.best_cap_w", 160, 170, unit="W", tolerance=STEP, **own),
        make_figure("p.missing_s", 85, None, unit="s", **own),
        make_figure("p.energy_kwh", 123, 120.5, unit="kWh", kind="identity", group="determined"),
        make_figure("p.factor", 4, 4.3, kind="identity", group="derived"),
        make_figure(
            "p.order", "cpu-mix uses most", True, label="cpu-mix uses most", detail="4.9 against 2.8 MJ", **ruled
        ),
        make_figure("p.grows", "savings grow", False, label="savings grow", note="they shrink", **ruled),
        make_figure("p.quality_pct", 63.79, None, unit="%", kind="outside", note="needs the data"),
    ]


def make_paper(name: str = "gdansk") -> Paper:
    """Return a paper that is there, with a title of its own."""
    paper = find_paper(name)
    return replace(paper, entries=msgspec.structs.replace(paper.entries, title="A study of caps"))


def make_reproduction(**more: Any) -> Reproduction:
    table = PaperTable(
        "batches",
        make_table(["batch", "energy"], [("512", "123 kWh")], title="Batches", notes=["Of the twin. " * 12]),
        ({"batch": 512},),
    )
    given: dict[str, Any] = {"paper": make_paper(), "figures": make_figures(), "twins": {"one": "8 GPUs"}, "seed": 7}
    given |= {"slots": 680, "ran_s": 90_000.0, "took_s": 42.0, "new": 680, "tables": [table], "folder": "here"}
    coverage = TruthCoverage(680, 679, 6120, 6100, 0.012, 0.009, 68, 67, ("train, cap 100 W", 9, 10))
    given |= {"coverage": coverage, "meters": ["The PDU costs 3 %."], "assumed": ["cooling.fan_max_w", "host"]}
    return Reproduction(**{**given, "files": ["here/figures.csv"], "next_commands": [("next", "joulelab ls")], **more})
