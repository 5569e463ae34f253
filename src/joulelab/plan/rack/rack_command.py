"""Say how many nodes fit in a rack: `joulelab plan rack [RUN...] --supply 70kW --margin 27%`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import check_overwrite, print_blocks, print_json, write_file
from joulelab.cli.parameters import format_examples, json_option
from joulelab.core.errors import ConfigError
from joulelab.plan.options import (
    Percent,
    RunFolders,
    Watts,
    add_picture_option,
    add_plan_option,
    add_run_options,
    check_picture,
    find_run_folders,
    read_named_runs,
    write_picture,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.plan_file import PlanFile
    from joulelab.plan.rack.job_mix import MixJob

FIRST_LINE = "# A plan of joulelab: joulelab plan rack --plan FILE"
EXAMPLES = format_examples(
    "joulelab plan rack --supply 70kW --margin 27% --rated 10.2kW --max 8.48kW",
    "joulelab plan rack last --supply 70kW --margin 27%",
    "joulelab plan rack STUDY --plan rack.toml --picture rack.pdf",
    "joulelab plan rack last --supply 70kW --margin 27% --save rack.toml",
)


@click.command("rack", epilog=EXAMPLES)
@click.argument("words", nargs=-1, metavar="[RUN]...")
@add_plan_option("rack, nodes, mix of jobs")
@click.option("--supply", type=Watts(), metavar="W", help="Highest power of the rack: 70kW.")
@click.option("--rated", type=Watts(), metavar="W", help="Nameplate of a node: 10.2kW.")
@click.option("--margin", type=Percent(), metavar="%", help="Share of the supply to keep free: 27%.")
@click.option("--nodes", type=click.IntRange(min=0), metavar="N", help="Nodes in the rack now.")
@click.option("--max", "most", type=Watts(), metavar="W", help="Highest power of a node, measured elsewhere.")
@click.option(
    "--percentile", "percentiles", type=Percent(), multiple=True, metavar="%",
    help="Percentile of a node's power, repeatable.  [default: 99, 99.9]",
)  # fmt: skip
@click.option("--confidence", type=Percent(), metavar="%", help="Confidence of the intervals.  [default: 95]")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs of a node.  [default: the runs']")
@click.option("--gpu-power", "gpu_w", type=Watts(), metavar="W", help="Highest cap of a GPU.  [default: the runs']")
@click.option(
    "--cap",
    "caps",
    type=Watts(),
    multiple=True,
    metavar="W",
    help="Compute the guarantee of this cap on each GPU; repeatable.",
)
@click.option("--why", is_flag=True, help="Explain the answer: limits, errors, refusals, assumptions.")
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Save these options as a plan file.")
@add_picture_option
@json_option
@add_run_options
def command(
    words: tuple[str, ...],
    plan: Path | None,
    picture: Path | None,
    save: Path | None,
    force: bool,
    as_json: bool,
    why: bool,
    runs: Path,
    studies: Path,
    only: tuple[tuple[str, str], ...],
    **given: Any,
) -> None:
    """Find how many nodes fit in a rack, by each rule, with the risk.

    RUN is a run (id, name, path or `last`) or a study, with all its runs. Without runs give --rated and --max. Rules
    are the nameplate, the measured maximum, percentiles, and the guarantee of GPU caps. Powers need a unit: 70kW.
    """
    from joulelab.plan.plan_file import read_plan_file
    from joulelab.plan.rack.rack_output import lay_out_rack, write_json
    from joulelab.plan.rack.rack_plan import plan_rack
    from joulelab.run.config.toml_writing import format_toml_file

    rack, node = _read_given(given)
    stores = RunFolders(runs, studies, only)
    if words:
        node["runs"] = list(words) if save is None else _name_saved_runs(save, words, stores)
    asked = read_plan_file(plan, rack, node, need="rack")
    assert asked.rack is not None
    file_format = check_picture(picture, force=force)
    if save is not None:
        if only and not words:
            raise ConfigError(
                "--only cannot be saved in a plan file",
                next="name the runs as well; the plan file then has the chosen ones",
            )
        check_overwrite(save, FIRST_LINE.encode(), what="plan file", force=force, option="--save")
    measured = _read_runs(words or asked.near(asked.kind.runs), stores)
    jobs = [(job, _read_runs(_find_job_runs(asked, job, words), stores)) for job in asked.mix]
    found = plan_rack(asked.rack, asked.kind, measured, jobs, title=asked.title)
    if picture is not None:
        from joulelab.plan.rack.rack_picture import draw_rack

        write_picture(picture, draw_rack(found, file_format))
    if save is not None:
        write_file(save, format_toml_file(asked.values, FIRST_LINE).encode(), what="plan file", option="--save")
    if as_json:
        print_json(write_json(found))
    else:
        print_blocks(lay_out_rack(found, is_explained=why))


def _read_given(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options about the rack and about the node, with the keys of a plan file."""
    rules = {
        "max_w": given["most"],
        "percentiles": [round(100 * p, 10) for p in given["percentiles"]] or None,
        "confidence": given["confidence"],
        "caps_w": list(given["caps"]) or None,
    }
    rules = {key: value for key, value in rules.items() if value is not None}
    rack = {"supply_w": given["supply"], "margin": given["margin"], "nodes_now": given["nodes"], "rules": rules or None}
    node = {"rated_w": given["rated"], "gpus": given["gpus"], "gpu_w": given["gpu_w"]}
    found, about = ({key: value for key, value in one.items() if value is not None} for one in (rack, node))
    return found, about


def _read_runs(words: Sequence[str], stores: RunFolders) -> list[MeasuredRun]:
    return read_named_runs(words, stores) if words else []


def _find_job_runs(asked: PlanFile, job: MixJob, words: Sequence[str]) -> list[str]:
    """Return the runs of a job of the mix: its own, else those of its kind of node."""
    kind = asked.nodes.get(job.node)
    named = job.runs or (kind.runs if kind is not None else ())
    if not named and job.node in ("", asked.kind.name) and words:
        return list(words)
    if not named:
        then = 'name runs that measured it: runs = ["last"]'
        raise ConfigError(f"{job.name} of [[mix]] has no runs", why=f"nor has node {job.node!r}", next=then)
    return asked.near(named)


def _name_saved_runs(save: Path, words: Sequence[str], stores: RunFolders) -> list[str]:
    """Return the names of runs for a plan file: as given, or as paths from the file's folder if they may change."""
    folder = save.parent.resolve()
    chosen = find_run_folders(words, stores) if stores.only else []
    for word in () if stores.only else words:
        chosen += find_run_folders([word], stores) if word == "last" else [Path(word)]
    return [os.path.relpath(path.resolve(), folder) if path.exists() else str(path) for path in chosen]
