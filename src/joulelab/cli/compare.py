"""Compare two runs or two groups of runs: `joulelab compare A B`, `joulelab compare A... vs B...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import (
    load_current_site,
    measure_terminal,
    print_blocks,
    print_json,
    print_notice,
    show_progress,
)
from joulelab.cli.parameters import UsageError, add_format_option, format_examples, json_option, runs_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.result import Result
    from joulelab.report.group_comparison import RunGroup
    from joulelab.site.footprint import Site

BETWEEN = "vs"


@click.command(
    "compare",
    epilog=format_examples(
        "joulelab compare baseline",
        "joulelab compare A B --json",
        "joulelab compare batch=256 vs batch=512",
        "joulelab compare run1 run2 run3 vs run4 run5 run6 --format latex",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="A... [vs] [B]...")
@add_format_option("csv")
@json_option
@runs_option
def command(words: tuple[str, ...], form: str, as_json: bool, runs: Path) -> None:
    """Compare two runs or two groups of runs.

    States the difference with its uncertainty. A and B are runs: an id or its beginning, a name, a path, or `last`; B
    is the last run by default. Groups have `vs` between them. LABEL=VALUE is every run with this label that succeeded,
    name=NAME every run of this name, a folder of runs every run in it.
    """
    first, second = split_groups(words)
    paths = [find_group(runs, group) for group in (first, second)]
    if BETWEEN in words:
        _mention_names(runs, (*first, *second))
    both = {path.resolve() for path in paths[0]} & {path.resolve() for path in paths[1]}
    if both:
        name, is_pair = min(both).name, len(paths[0]) == len(paths[1]) == 1
        if is_pair:
            raise UsageError("same-run", f"A and B are the same run {name}; name two runs of `joulelab ls`")
        raise UsageError("same-run", f"run {name} is in both groups ({len(both)} in all); name each run in one only")
    with show_progress(f"reading {sum(map(len, paths))} runs"):
        site = load_current_site()
        groups = [load_group(*each, site) for each in zip("AB", (first, second), paths, strict=True)]
    a, b = groups
    if len(a.runs) == len(b.runs) == 1:
        if left_out := a.left_out + b.left_out:
            print_notice(f"{left_out} of the chosen runs did not succeed; one run each remains")
        _print_pair(a.runs[0], b.runs[0], form, as_json=as_json)
    else:
        _print_groups(a, b, form, as_json=as_json)


def split_groups(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of both groups; without `vs`, A and B are one word each, and B is the last run by default."""
    if BETWEEN in words:
        place = words.index(BETWEEN)
        first, second = tuple(words[:place]), tuple(words[place + 1 :])
    else:
        first, second = tuple(words[:1]), tuple(words[1:]) or ("last",)
        if len(second) > 1:
            raise UsageError("no-vs", "write vs between the two groups: joulelab compare A1 A2 vs B1 B2")
    if not first or not second or BETWEEN in second:
        raise UsageError("no-vs", "write vs once, between the two groups: joulelab compare A1 A2 vs B1 B2")
    return first, second


def find_group(runs: Path, words: Sequence[str]) -> list[Path]:
    """Return the runs of a group, each once. Raises NotARun."""
    from joulelab.store.run_folder import find_run, select_runs

    found: list[Path] = []
    for word in words:
        found += select_runs(runs, word) if _is_label(word) else _list_inside(word) or [find_run(runs, word)]
    return list({path.resolve(): path for path in found}.values())


def _mention_names(runs: Path, words: Sequence[str]) -> None:
    """Say which words are the name of several runs, of which only the last is taken."""
    from joulelab.core.errors import NotARun
    from joulelab.store.run_folder import select_runs

    for word in (w for w in words if not _is_label(w) and "," not in w):
        try:
            count = len(select_runs(runs, f"name={word}"))
        except NotARun:
            continue
        if count > 1:
            print_notice(f"{word} is the last of {count} runs of this name; name={word} is all of them")


def _is_label(word: str) -> bool:
    return "=" in word and not Path(word).exists()


def _list_inside(word: str) -> list[Path]:
    """Return the runs of a folder of runs; none for anything else."""
    from joulelab.store.run_folder import list_runs

    return list_runs(Path(word)) if Path(word).is_dir() else []


def load_group(letter: str, words: Sequence[str], paths: Sequence[Path], site: Site | None) -> RunGroup:
    """Read the runs of a group; of those that a label or a folder chose, failed runs are left out."""
    from joulelab.analysis.results_file import load_result
    from joulelab.report.comparison import is_success
    from joulelab.report.group_comparison import RunGroup

    results = [load_result(path).with_site(site) for path in paths]
    kept = [r for r in results if is_success(r)] if any(_is_label(w) or _list_inside(w) for w in words) else results
    if not kept:
        raise UsageError("no-whole-run", f"none of the {len(results)} runs of {' '.join(words)} has succeeded")
    return RunGroup(letter, " ".join(words), tuple(kept), len(results) - len(kept))


def _print_pair(a: Result, b: Result, form: str, *, as_json: bool) -> None:
    from joulelab.report.comparison import compare_runs, lay_out_comparison, write_comparison

    found = compare_runs(a, b)
    if as_json:
        print_json(found.to_json())
    elif form == "text":
        print_blocks(lay_out_comparison(found, width=measure_terminal()))
    else:
        sys.stdout.write(write_comparison(found, form))


def _print_groups(a: RunGroup, b: RunGroup, form: str, *, as_json: bool) -> None:
    from joulelab.report.group_comparison import compare_groups, lay_out_groups, write_groups

    found = compare_groups(a, b)
    if as_json:
        print_json(found.to_json())
    elif form == "text":
        print_blocks(lay_out_groups(found, width=measure_terminal()))
    else:
        sys.stdout.write(write_groups(found, form))
