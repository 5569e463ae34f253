"""Say what another cooling would change: `joulelab plan cooling [RUN...] --node bnl-h100 --to direct-to-chip`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from joulelab.cli.output import print_json
from joulelab.cli.parameters import KeyValue, format_examples, json_option
from joulelab.core.errors import ConfigError
from joulelab.plan.options import Number, Percent, RunFolders, Watts, add_plan_option, add_run_options, read_each_named

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.cooling.decide import Given
    from joulelab.plan.cooling.fans import CoolingKind, Seen
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.plan_file import PlanFile
    from joulelab.store.run_reader import Run
    from joulelab.twin.model import Node

KINDS = ("air", "rear-door", "direct-to-chip", "immersion")  # a test holds it against the planner's
EXAMPLES = format_examples(
    "joulelab plan cooling --node bnl-h100",
    "joulelab plan cooling last --to direct-to-chip --inlet 27 --fan-max 900W",
    "joulelab plan cooling last --node bnl-h100 --supply 70kW --margin 27%",
    "joulelab plan cooling last --pue rear-door=1.3 --pue direct-to-chip=1.1",
)


@click.command("cooling", epilog=EXAMPLES)
@click.argument("words", nargs=-1, metavar="[RUN]...")
@add_plan_option("rack and kind of node")
@click.option("--node", metavar="NAME|FILE", help="Model of the node: bnl-h100, 8xh100, mine.toml.")
@click.option("--power", type=Watts(), metavar="W", help="Mean power of a node at the wall, without runs.")
@click.option("--now", "kind", type=click.Choice(KINDS), help="Present cooling.  [default: of the model, or air]")
@click.option("--inlet-now", type=Number(-20, 60), metavar="C", help="Present inlet temperature.")
@click.option("--to", "kinds", type=click.Choice(KINDS), multiple=True, help="Cooling to compare with; repeatable.")
@click.option(
    "--inlet",
    "inlets",
    type=Number(-20, 60),
    multiple=True,
    metavar="C",
    help="Inlet temperature to compare with; repeatable.",
)
@click.option("--exhaust", type=Number(0, 80), metavar="C", help="Temperature of the exhaust air.  [default: 45]")
@click.option("--fan-max", type=Watts(), metavar="W", help="Power of all fans of a node at full speed.")
@click.option("--fan-rpm", type=Number(min=1), metavar="RPM", help="Full speed of the fans.")
@click.option("--efficiency", type=Percent(), metavar="%", help="Efficiency of the power supplies under load.")
@click.option("--use", type=Percent(), metavar="%", help="Share of the year that the node works.  [default: 100]")
@click.option("--supply", type=Watts(), metavar="W", help="Highest power of the rack: 70kW.")
@click.option("--margin", type=Percent(), metavar="%", help="Share of the supply to keep free.")
@click.option(
    "--pue",
    "pues",
    type=KeyValue(),
    multiple=True,
    metavar="KIND=PUE",
    help="PUE of the site with this cooling; repeatable.",
)
@json_option
@add_run_options
def command(
    words: tuple[str, ...], as_json: bool, runs: Path, studies: Path, only: tuple[tuple[str, str], ...], **asked: Any
) -> None:
    """Compare kinds of cooling and inlet temperatures.

    RUN is a run (id, name, path or `last`) or a study, with all its runs. Fan power is scaled from the runs; without
    fan readings the model of --node is used. Without runs the node is at --power, or at full load.
    """
    from joulelab.plan.cooling.decide import plan_cooling

    plan = _filled(asked)
    given = _given(asked)
    words = words or tuple(plan.near(plan.kind.runs))
    found = read_each_named(words, RunFolders(runs, studies, only), _read) if words else []
    measured = [one for one, _ in found]
    node = _node(asked["node"], measured)
    kinds = cast("tuple[CoolingKind, ...]", asked["kinds"])
    answer = plan_cooling(measured, [s for _, s in found], node, given, kinds=kinds, inlets_c=asked["inlets"])
    if as_json:
        print_json(answer.to_json())
        return
    from joulelab.cli.output import print_blocks
    from joulelab.plan.cooling.cooling_output import lay_out_cooling

    print_blocks(lay_out_cooling(answer))


def _filled(asked: dict[str, Any]) -> PlanFile:
    """Put what the plan file says in the place of what was not typed, and return the file. Raises ConfigError."""
    from joulelab.plan.plan_file import read_plan_file

    plan = read_plan_file(asked["plan"])
    kind, rack = plan.kind, plan.rack
    said = {"node": kind.twin or None, "efficiency": kind.efficiency, "use": kind.use}
    if rack is not None:
        said |= {"supply": rack.capacity_w, "margin": rack.margin}
    for key, value in said.items():
        if asked[key] is None:
            asked[key] = value
    return plan


def _read(run: Run) -> tuple[MeasuredRun, Seen]:
    """Return what a run measured, and what it saw of fans and inlet while the workload ran."""
    from joulelab.plan.cooling.fans import seen_of
    from joulelab.plan.measured_runs import read_measured_run

    one = read_measured_run(run)
    return one, seen_of(run, one.result.start_ns, one.result.end_ns)


def _node(name: str | None, measured: list[MeasuredRun]) -> Node | None:
    """Return the node that was named, or the twin that the runs are of. Raises ConfigError."""
    from joulelab.twin.commands import find_node
    from joulelab.twin.nodefile import list_own_nodes

    twins = {m.result.twin for m in measured if m.result.twin}
    if name is None and len(twins) == 1 and (own := twins & set(list_own_nodes())):
        name = own.pop()
    return None if name is None else find_node(name).node


def _given(asked: dict[str, Any]) -> Given:
    """Return what the options say. Raises ConfigError."""
    from joulelab.plan.cooling.decide import Given

    for key in ("efficiency", "use", "margin"):
        value = asked[key]
        if value is not None and not (0 <= value < 1 if key == "margin" else 0 < value <= 1):
            raise ConfigError(f"--{key} is {value:.0%}", why="it is a share", next=f"write it as --{key} 27%")
    use, margin = asked["use"], asked["margin"]
    return Given(
        kind=asked["kind"], inlet_c=asked["inlet_now"], exhaust_c=asked["exhaust"],
        fan_max_w=asked["fan_max"], fan_rpm=asked["fan_rpm"], power_w=asked["power"], efficiency=asked["efficiency"],
        use=1.0 if use is None else use, supply_w=asked["supply"], margin=0.0 if margin is None else margin,
        pue=dict(_pue(*pair) for pair in asked["pues"]),
    )  # fmt: skip


def _pue(kind: str, text: str) -> tuple[str, float]:
    """Return a kind of cooling and its PUE. Raises ConfigError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if kind not in KINDS or not 1 <= value < 10:
        why = f"kinds are {', '.join(KINDS)}" if kind not in KINDS else "a PUE is at least 1"
        raise ConfigError(f"--pue {kind}={text} is none", why=why, next="write it as --pue direct-to-chip=1.1")
    return kind, value
