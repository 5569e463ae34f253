"""Simulate a queue of jobs under a power budget in virtual time: `joulelab plan queue`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from joulelab.cli.output import print_json, print_notice
from joulelab.cli.parameters import Duration, format_examples, json_option
from joulelab.plan.options import (
    Percent,
    RunFolders,
    Watts,
    add_picture_option,
    add_plan_option,
    add_run_options,
    add_why_option,
    check_picture,
    read_named_runs,
    write_picture,
)

# Options that stand for keys of [queue], by the names of the keys.
KEYS = (
    "nodes", "budget_w", "margin", "idle_w", "unused", "rated_w", "node_w", "processors", "accuracy", "count",
    "slowdown", "repeat", "every",
)  # fmt: skip
EXAMPLES = format_examples(
    "joulelab plan queue --plan examples/plans/queue.toml",
    "joulelab plan queue --jobs jobs.csv --nodes 24 --budget 100kW --idle 2.2kW",
    "joulelab plan queue --jobs log.swf.gz --nodes 24 --budget 100kW --node-w 6kW",
    "joulelab plan queue STUDY --repeat 200 --every 10m --nodes 8 --budget 40kW",
)


@click.command("queue", epilog=EXAMPLES)
@click.argument("words", nargs=-1, metavar="[RUN|STUDY]...")
@add_plan_option("the jobs and the site, [queue]")
@click.option(
    "--jobs", type=click.Path(path_type=Path), metavar="FILE", help="Jobs: CSV, `sacct -P`, or SWF (.swf.gz)."
)
@click.option("--repeat", type=click.IntRange(min=1), metavar="N", help="Number of jobs to make from the runs.")
@click.option("--every", type=Duration(), help="Time between these jobs.")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the site.")
@click.option("--budget", "budget_w", type=Watts(), help="Highest power of all nodes, idle ones included.")
@click.option("--margin", type=Percent(), help="Share of the budget to keep free.")
@click.option("--idle", "idle_w", type=Watts(zero=True), help="Power of an unused node; 0W: off.  [default: measured]")
@click.option("--unused", type=click.Choice(("idle", "off")), hidden=True)
@click.option("--rated", "rated_w", type=Watts(), help="Nameplate of a node.")
@click.option("--count", type=click.Choice(("mean", "highest")), help="Power of a job that counts against the budget.")
@click.option("--slowdown", type=Percent(), help="Largest slowdown by a cap.  [default: 10%]")
@click.option("--node-w", "node_w", type=Watts(), help="Mean power of a node, for jobs without power.")
@click.option("--processors", type=click.IntRange(min=1), metavar="N", help="Processors of a node, for SWF.")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs of a node, to model caps.")
@click.option("--gpu-power", "gpu_w", type=Watts(), help="Highest cap of a GPU, to model caps.")
@click.option("--accuracy", type=Percent(), help="Common error of all powers in --jobs (k = 2).")
@click.option("--draws", type=click.IntRange(min=0), metavar="N", help="Number of Monte Carlo draws.")
@click.option("--seed", type=int, default=9, show_default=True, metavar="N", help="Seed of the draws.")
@add_why_option
@add_picture_option
@json_option
@add_run_options
def command(
    words: tuple[str, ...],
    plan: Path | None,
    jobs: Path | None,
    gpus: int | None,
    gpu_w: float | None,
    draws: int | None,
    seed: int,
    is_explained: bool,
    picture: Path | None,
    force: bool,
    as_json: bool,
    runs: Path,
    studies: Path,
    only: tuple[tuple[str, str], ...],
    **given: Any,
) -> None:
    """Simulate a queue of jobs under a power budget, with caps per job.

    Jobs come from a file, or are the named runs, submitted when they started. Runs at several caps show the effect of
    caps, also on the jobs of a file. Compares first come, first served, backfill, and backfill with caps;
    recommends one.
    """
    from dataclasses import replace

    from joulelab.cli.output import print_blocks, show_progress
    from joulelab.core.errors import ConfigError
    from joulelab.plan.measured_runs import require_one_origin, require_one_side
    from joulelab.plan.plan_file import read_plan_file
    from joulelab.plan.queue.jobs import make_run_stream, read_job_file
    from joulelab.plan.queue.policy_comparison import compare_policies
    from joulelab.plan.queue.queue_output import encode_queue, lay_out_queue
    from joulelab.plan.queue.site import (
        EVERY_WORKLOAD,
        SLOWDOWN,
        QueueTable,
        WorkloadCaps,
        find_responses,
        list_cap_steps,
        make_site,
    )

    kind = check_picture(picture, force=force)
    plan_file = read_plan_file(plan, need="queue")
    table = plan_file.queue or QueueTable()
    if gpus is not None or gpu_w is not None:
        table = replace(table, workloads={**table.workloads, EVERY_WORKLOAD: WorkloadCaps(gpus=gpus, gpu_w=gpu_w)})
    table = replace(table, **{key: given[key] for key in KEYS if given[key] is not None})

    folders = RunFolders(runs, studies, only)
    names = list(words) or plan_file.near(table.runs)
    measured = read_named_runs(names, folders) if names else []
    named = {
        name: read_named_runs(plan_file.near(caps.runs), folders) for name, caps in table.workloads.items() if caps.runs
    }
    advice = "name runs with a meter of the whole node (joulelab meters), or give --jobs FILE with the power of jobs"
    every = [*measured, *(one for listed in named.values() for one in listed)]
    require_one_origin(every)
    require_one_side(every, "the power of a job", advice)
    path = jobs or (plan_file.folder / table.jobs if table.jobs else None)
    if path is not None:
        if table.repeat is not None:
            raise ConfigError("--repeat is for runs, not for a file of jobs", next="remove one of them")
        stream = read_job_file(path, node_w=table.node_w, accuracy=table.accuracy, processors=table.processors)
    else:
        stream = make_run_stream(measured, table.repeat, table.every)
    site, site_notes = make_site(table, stream, every)
    responses, cap_notes = find_responses(table, stream, measured, named)
    slowdown = SLOWDOWN if table.slowdown is None else table.slowdown
    steps = {name: list_cap_steps(response, slowdown) for name, response in responses.items()}
    with show_progress(f"simulating {len(stream.jobs)} jobs"):
        comparison = compare_policies(stream, site, steps, draws=draws, seed=seed)

    if picture is not None:
        from joulelab.plan.queue.queue_picture import draw_queue

        write_picture(picture, draw_queue(comparison, kind))
        print_notice(f"wrote {picture}")
    notes = [*site_notes, *cap_notes, *stream.notes]
    if as_json:
        print_json(encode_queue(comparison, responses, notes))
    else:
        print_blocks(lay_out_queue(comparison, responses, notes, is_explained=is_explained))
