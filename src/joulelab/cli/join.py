"""Join the runs of the nodes of one job: `joulelab join RUN RUN...`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from joulelab.cli.output import load_current_site, measure_terminal, print_blocks, print_json, show_progress
from joulelab.cli.parameters import KeyValue, format_examples, json_option, name_run, runs_option

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = format_examples(
    "joulelab join node1/20261117-101500-0a1b node2/20261117-101501-2c3d",
    "joulelab join RUN RUN --name two-nodes --runs joulelab-runs",
)


@click.command("join", epilog=EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="RUN RUN...")
@click.option("--name", metavar="NAME", help="Name the joined run, to find it again.")
@click.option(
    "-l", "--label", "labels", type=KeyValue(), multiple=True, metavar="KEY=VALUE", help="Attach a label; repeatable."
)
@json_option
@runs_option
def command(
    sources: tuple[str, ...], name: str | None, labels: tuple[tuple[str, str], ...], as_json: bool, runs: Path
) -> None:
    """Join the runs of the nodes of one job into one run.

    Each node was recorded by its own `joulelab run`. Name the node of rank 0 first. The energy of a node is that of
    its own command; the clocks of the nodes are joined by UTC. The named runs stay as they are.
    """
    from joulelab.analysis.results_file import load_result
    from joulelab.report.result_json import describe_result
    from joulelab.report.run_summary import lay_out_summary
    from joulelab.run.node_runs import join_runs
    from joulelab.store.run_folder import find_run

    with show_progress(f"joining {len(sources)} runs"):
        run = join_runs(runs, [find_run(runs, word) for word in sources], name=name, labels=dict(labels))
        result = load_result(run).with_site(load_current_site())
    if as_json:
        print_json(describe_result(result) | {"folder": str(run)})
    else:
        print_blocks(lay_out_summary(result, run, width=measure_terminal(), handle=name_run(run)))
