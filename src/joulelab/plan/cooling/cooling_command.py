"""Answer `joulelab plan cooling [RUN]`: the effect of another inlet temperature or cooling on a node's power."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import click

from joulelab.cli.output import print_blocks, print_json
from joulelab.cli.parameters import format_examples, json_option
from joulelab.core.errors import ConfigError
from joulelab.plan.options import (
    Number,
    Percent,
    RunFolders,
    Watts,
    add_plan_option,
    add_run_options,
    add_why_option,
    read_each_named,
)

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.cooling.cooling_model import CoolingKind, CoolingOption, CoolingPlan, FanReadings
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.report.tables import Table
    from joulelab.store.run_reader import Run
    from joulelab.twin.model import Node

KINDS = ("air", "rear-door", "direct-to-chip", "immersion")  # a test compares it with the model's
EXAMPLES = format_examples(
    "joulelab plan cooling --node bnl-h100 --inlet 27",
    "joulelab plan cooling last --node bnl-h100",
    "joulelab plan cooling last --to immersion --fan-max 900W --fan-rpm 13000",
)
CELSIUS = Number(-20, 60)
FAN_SOURCES = {
    "measured": "scaled from the measured fan power",
    "speed": "scaled from the measured fan speed",
    "model": "by the fan model of {model}",
}


@click.command("cooling", epilog=EXAMPLES)
@click.argument("words", nargs=-1, metavar="[RUN]")
@add_plan_option("kind of node and its run")
@click.option("--node", metavar="NAME|FILE", help="Model of the node: bnl-h100, 8xh100, mine.toml.")
@click.option("--power", type=Watts(), metavar="W", help="Mean power of a node at the wall, without a run.")
@click.option("--now", "kind", type=click.Choice(KINDS), help="Present cooling.  [default: of the model, or air]")
@click.option("--inlet-now", type=CELSIUS, metavar="C", help="Present inlet temperature.")
@click.option("--to", "kinds", type=click.Choice(KINDS), multiple=True, help="Cooling to compare with; repeatable.")
@click.option("--inlet", "inlets", type=CELSIUS, multiple=True, metavar="C", help="Inlet to compare with; repeatable.")
@click.option("--exhaust", type=Number(0, 80), metavar="C", help="Temperature of the exhaust air.  [default: 45]")
@click.option("--fan-max", type=Watts(), metavar="W", help="Power of all fans of a node at full speed.")
@click.option("--fan-rpm", type=Number(min=1), metavar="RPM", help="Full speed of the fans.")
@click.option("--efficiency", type=Percent(), metavar="%", help="Efficiency of the power supplies under load.")
@add_why_option
@json_option
@add_run_options
def command(
    words: tuple[str, ...],
    is_explained: bool,
    as_json: bool,
    runs: Path,
    studies: Path,
    only: tuple[tuple[str, str], ...],
    **asked: Any,
) -> None:
    """Compare kinds of cooling and inlet temperatures.

    RUN is a run (id, name, path or `last`). Its measured fan power or speed is scaled; without fan readings the model
    of --node is used. Without a run the node is at --power, or at full load.
    """
    from joulelab.plan.cooling.cooling_model import CoolingInput, FanReadings, plan_cooling
    from joulelab.plan.plan_file import read_plan_file

    plan_file = read_plan_file(asked["plan"])
    kind = plan_file.kind
    efficiency = asked["efficiency"] if asked["efficiency"] is not None else kind.efficiency
    if efficiency is not None and not 0.5 <= efficiency <= 1:
        raise ConfigError(
            f"--efficiency is {100 * efficiency:g} %",
            why="power supplies under load have 50 to 100 %",
            next="write it as --efficiency 94%",
        )
    found = read_each_named(words or plan_file.near(kind.runs), RunFolders(runs, studies, only), _read_run)
    if len(found) > 1:
        raise ConfigError(
            f"{len(found)} runs are named",
            why="the cooling of one run is compared",
            next="name one with a typical load",
            code="config.several-runs",
        )
    run, seen = found[0] if found else (None, FanReadings())
    plan = plan_cooling(
        run,
        seen,
        _find_node(asked["node"] or kind.twin, run),
        CoolingInput(
            kind=asked["kind"],
            inlet_c=asked["inlet_now"],
            exhaust_c=asked["exhaust"],
            fan_max_w=asked["fan_max"],
            fan_rpm=asked["fan_rpm"],
            power_w=asked["power"],
            efficiency=efficiency,
        ),
        kinds=cast("tuple[CoolingKind, ...]", asked["kinds"]),
        inlets_c=asked["inlets"],
    )
    if as_json:
        print_json({"answer": word_answer(plan), **plan.to_json()})
        return
    from joulelab.plan.plan_output import lay_out_answer

    # The power of the cooling in the answer, rounded up: less would allow too many nodes.
    highest_kw = math.ceil(_find_best(plan).highest_w / 10) / 100
    blocks = lay_out_answer(
        [word_answer(plan)],
        [make_cooling_table(plan)],
        plan.notes,
        is_explained=is_explained,
        next_commands=[f"joulelab plan rack --max {highest_kw:g}kW --supply POWER"],
    )
    print_blocks(blocks)


def _read_run(run: Run) -> tuple[MeasuredRun, FanReadings]:
    from joulelab.plan.cooling.cooling_model import read_fans
    from joulelab.plan.measured_runs import read_measured_run

    one = read_measured_run(run)
    return one, read_fans(run, one.result.start_ns, one.result.end_ns)


def _find_node(name: str, run: MeasuredRun | None) -> Node | None:
    """Return the node that was named, or the twin that the run is of. Raises ConfigError."""
    from joulelab.twin.commands import find_node
    from joulelab.twin.nodefile import list_own_nodes

    if not name and run is not None and run.result.twin in list_own_nodes():
        name = run.result.twin
    return find_node(name).node if name else None


def _find_best(plan: CoolingPlan) -> CoolingOption:
    return min(plan.options, key=lambda option: option.change_w.value)


def word_answer(plan: CoolingPlan) -> str:
    """Write the answer: the effect of the cooling that was asked for, of several that with the lowest power."""
    from joulelab.report import format as fmt

    best = _find_best(plan)
    now, then, change_w = plan.now.setting, best.setting, best.change_w
    if then.kind == now.kind:
        name = f"At {then.inlet_c:g} °C instead of {now.inlet_c:g} °C inlet"
    else:
        where = "" if then.kind == "immersion" or then.inlet_c == now.inlet_c else f" at {then.inlet_c:g} °C"
        name = f"With {then.kind}{where} instead of {now.kind}{f' at {now.inlet_c:g} °C' if where else ''} cooling"
    factor, unit = fmt.choose_scale([change_w.value], "W")
    moved = fmt.format_scaled(abs(change_w), factor, unit)
    share = fmt.format_percent(abs(change_w.value) / plan.now.node_w.value, signed=False)
    node = fmt.format_watts(plan.now.node_w.value, plan.now.node_w.expanded)
    if change_w.is_resolved and change_w.value:
        more = "more" if change_w.value > 0 else "less"
        effect = f"a node draws {moved} {more} for its fans ({share} of {node})"
    else:
        limit = fmt.format_rough(abs(change_w.value) + (change_w.expanded or 0.0), "W", 2)
        effect = f"the power of a node does not change significantly (at most {limit})"
    source = FAN_SOURCES[plan.fans_by].format(model=plan.model)
    most = ", the largest saving of these" if len(plan.options) > 1 and change_w.value < 0 else ""
    unmeasured = "with it" if then.kind != now.kind else f"at {then.inlet_c:g} °C"
    simulated = f" ({fmt.name_twins([plan.twin])})" if plan.twin else ""
    return f"{name} {effect}{most}, {source}; nothing was measured {unmeasured}{simulated}."


def make_cooling_table(plan: CoolingPlan) -> Table:
    """Make the table of an answer: a row for each cooling, the present one first."""
    from joulelab.report import format as fmt
    from joulelab.report.tables import Column, MarkedCell, TableRow, make_table

    rows = [plan.now, *plan.options]
    columns: list[Column | str] = [
        "cooling",
        Column("inlet, °C"),
        Column("fans", "W", signed=True),
        Column("node", "kW", factor=1e3, signed=True),
        Column("change", "W", signed=True),
        Column("highest", "kW", factor=1e3, digits=3),
    ]
    made = [
        TableRow(
            (
                f"{one.setting.kind}{' (now)' if one is plan.now else ''}",
                fmt.NOTHING if one.setting.kind == "immersion" else f"{one.setting.inlet_c:g}",
                MarkedCell(one.fans_w, after=" !" if one.is_at_full_speed else " ~" if one.is_beyond_seen else ""),
                one.node_w,
                None if one is plan.now else one.change_w,
                one.highest_w,
            )
        )
        for one in rows
    ]
    return make_table(columns, made)
