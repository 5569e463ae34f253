"""Make a run from measurements of other programs: `joulelab import csv FILE`."""  # noqa: N999 named as the command is

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import load_current_site, measure_terminal, print_blocks, print_json, show_progress
from joulelab.cli.parameters import KeyValue, config_option, format_examples, json_option, name_run, runs_option
from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.run.run_import import ArchiveRequest, ImportedRun

TOOLS = ("codecarbon", "zeus", "perun")
SOURCES = ("slurm", "prometheus", "csv", "wandb", "mlperf", *TOOLS)
MOST_RESULTS = 1000  # runs that one file makes
MLPERF_LOGS = ("mlperf_log_detail.txt*", "spl.txt*", "result_*.txt*", "node_*.txt*")  # also by gzip
MOST_NAME = 16  # letters of a name in a list
NO_RUNS = ("ranging", "accuracy")  # folders beside that of the measured run
_KEYS = {"from": "since", "to": "until", "phase": "phases", "entry": "entries", "label": "labels"}
_KEYS |= {"map": "maps", "time": "stamps", "node": "nodes"}
EXAMPLES = format_examples(
    "joulelab import csv power.csv",
    "joulelab import csv power.csv --time t=unix --map watts=node.ac:W",
    "joulelab import csv smi.csv --zone Europe/Berlin",
    "joulelab import wandb events.csv",
    "joulelab import mlperf run_1/",
    "joulelab import codecarbon emissions.csv",
    "joulelab import zeus windows.csv only=training",
    "joulelab import perun perun_results/app.json",
    "joulelab import slurm 123456",
    "joulelab import slurm 123456 --into RUN",
    "joulelab import prometheus 123456 --entry NAME",
    "joulelab import prometheus address=http://mon:9090 --node n1,n2 \\",
    "    --from 2024-05-01T12:00Z --to 2024-05-01T13:00Z",
)


@click.command("import", epilog=EXAMPLES)
@click.argument("source", type=click.Choice(SOURCES))
@click.argument("what", nargs=-1, metavar="[FILE|FOLDER|JOBID] [KEY=VALUE]...")
@click.option("--from", "since", metavar="TIME", help="Start of the run: 2024-05-01T12:00:00Z or seconds since 1970.")
@click.option("--to", "until", metavar="TIME", help="End of the run.")
@click.option("--zone", metavar="ZONE", help="Time zone of times without one, here and in the file.  [default: UTC]")
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="COLUMN=SCOPE:UNIT",
    help="Meaning of a column of the file: ac_w=node.ac:W; repeatable.",
)
@click.option("--time", "stamps", metavar="COLUMN[=FORMAT]", help="Column with the times: t=unix_ms.")
@click.option("--start", metavar="TIME", help="Time 0 of the file, if its times are relative.")
@click.option("--preset", metavar="NAME", help="Layout of the file: nvidia-smi, wandb, spl or mllog.")
@click.option(
    "--entry", "entries", multiple=True, metavar="NAME", help="Also read this entry of joulelab.toml; repeatable."
)
@click.option("--idle", nargs=2, metavar="FROM TO", help="Interval in which the node was idle.")
@click.option("--phase", "phases", nargs=3, multiple=True, metavar="NAME FROM TO", help="Name an interval; repeatable.")
@click.option("--node", "nodes", metavar="NAME,...", help="Nodes to read from Prometheus.")
@click.option("--host", default="", metavar="NAME", help="Name of the measured node.")
@click.option("--name", metavar="NAME", help="Name of the run; with --into, of the added data.")
@click.option("--into", metavar="RUN", help="Add the energy that Slurm accounted to this run.")
@click.option(
    "-l", "--label", "labels", type=KeyValue(), multiple=True, metavar="KEY=VALUE", help="Attach a label; repeatable."
)
@config_option
@json_option
@runs_option
def command(source: str, what: tuple[str, ...], as_json: bool, runs: Path, **options: Any) -> None:
    """Make a run from measurements of other programs.

    Columns of a file whose names show their meaning are guessed, and the guess is printed. Further settings of the
    source are given as KEY=VALUE, written as in joulelab.toml.
    """
    if options["into"] is not None:
        _print_imported(_attach_job(source, what, runs, options), as_json=as_json)
        return
    if source in TOOLS:
        _import_tool_file(source, what, runs, options, as_json=as_json)
        return
    from joulelab.instruments.file.values import find_zone, read_user_time
    from joulelab.run.run_import import ImportRequest, import_archives
    from joulelab.store.imported import ImportedPhase

    zone = find_zone(options["zone"], "--zone") if options["zone"] else None
    start_ns = None if options["since"] is None else read_user_time(options["since"], zone, "--from")
    end_ns = None if options["until"] is None else read_user_time(options["until"], zone, "--to")
    idle = tuple(read_user_time(t, zone, "--idle") for t in options["idle"]) if options["idle"] else None
    phases = [
        ImportedPhase(name, read_user_time(start, zone, "--phase"), read_user_time(end, zone, "--phase"))
        for name, start, end in options["phases"]
    ]
    if any(p.end_ns <= p.start_ns for p in phases) or (idle and idle[1] <= idle[0]):
        raise ConfigError(
            "an interval ends before it starts",
            where="--phase, --idle",
            next="give FROM, then TO",
            code="config.interval",
        )
    wanted = ImportRequest(
        source=source,
        command=["joulelab", "import", source, *what, *(w for n in options["entries"] for w in ("--entry", n))],
        start_ns=start_ns,
        end_ns=end_ns,
        idle=(idle[0], idle[1]) if idle else None,
        phases=phases,
        host=options["host"],
        name=options["name"],
        labels=dict(options["labels"]),
    )
    asked = _list_archives(source, what, options)
    with show_progress(f"reading from {source}"):
        imported = import_archives(runs, asked, wanted)
    _print_imported(imported, as_json=as_json)


def _import_tool_file(tool: str, what: Sequence[str], runs: Path, options: dict[str, Any], *, as_json: bool) -> None:
    """Make a run of each result in a file of CodeCarbon, Zeus or perun. Raises JoulelabError."""
    from joulelab.instruments.file.tool_results import read_tool_results
    from joulelab.instruments.file.values import find_zone, read_user_time
    from joulelab.run.run_import import ImportedRun, ImportRequest, import_tool_results

    given = [
        f"--{key}"
        for key in ("from", "to", "map", "time", "preset", "entry", "idle", "phase", "node")
        if options[_KEYS.get(key, key)]
    ]
    if given:
        why = f"{tool} states totals, and no readings between"
        raise ConfigError(
            f"{', '.join(given)} cannot be used with {tool}", why=why, next="leave it out", code="config.not-for-source"
        )
    files = [w for w in what if "=" not in w or Path(w).exists()]
    settings = dict(_read_setting(w) for w in what if w not in files)
    if len(files) != 1:
        raise ConfigError("give one file", next=f"joulelab import {tool} FILE", code="config.no-file")
    if unknown := sorted(settings.keys() - {"only", "gain", "reference"}):
        advice = "only=NAME chooses results by their name, gain=0.05 states their accuracy"
        raise ConfigError(f"there is no setting {unknown[0]!r}", where=tool, next=advice, code="config.unknown-key")
    path, wanted_name = Path(files[0]), settings.pop("only", None)
    zone = find_zone(options["zone"], "--zone") if options["zone"] else None
    start_ns = None if options["start"] is None else read_user_time(options["start"], zone, "--start")
    results, remarks = read_tool_results(tool, path, zone=zone, start_ns=start_ns)
    names = list(dict.fromkeys(one.name for one in results))
    results = [one for one in results if wanted_name is None or one.name == str(wanted_name)]
    if not results:
        listed = ", ".join(names[:8])
        raise ConfigError(
            f"no result is called {wanted_name!r}", where=str(path), next=f"choose one of {listed}", code="config.only"
        )
    if len(results) > MOST_RESULTS:
        what_for = f"it holds {len(results)} results, more than {MOST_RESULTS}"
        raise ConfigError(
            what_for, where=str(path), next="choose some by their name: only=NAME", code="config.too-many-subjects"
        )
    wanted = ImportRequest(
        source=tool,
        command=["joulelab", "import", tool, *what],
        host=options["host"],
        name=options["name"],
        labels=dict(options["labels"]),
    )
    with show_progress(f"reading from {tool}"):
        made = import_tool_results(runs, path, results, wanted, settings)
    inside = list(dict.fromkeys(one.labels["inside"] for one in results if "inside" in one.labels))
    if inside and len(made) > 1:
        remarks.append(f"Windows inside {', '.join(inside[:3])} are runs of their own: do not add them to it.")
    if len(made) == 1:
        _print_imported(ImportedRun(made[0], (), remarks), as_json=as_json)
    else:
        _print_several(made, remarks, tool, as_json=as_json)


def _attach_job(source: str, what: Sequence[str], runs: Path, options: dict[str, Any]) -> ImportedRun:
    """Add the energy that Slurm accounted for a job to an existing run. Raises JoulelabError."""
    from joulelab.run.run_import import ImportedRun
    from joulelab.store.run_folder import find_run
    from joulelab.study.accounting import attach_job

    if source != "slurm":
        why = "the meters of the run would be counted twice"
        raise ConfigError(
            f"{source} cannot be added to a run",
            where="--into",
            why=why,
            next="import it as a run",
            code="config.not-into",
        )
    given = [f"--{n}" for n in ("from", "to", "idle", "phase", "entry", "host", "label") if options[_KEYS.get(n, n)]]
    if given:
        raise ConfigError(
            f"{', '.join(given)} cannot be used with --into",
            why="the run has its own",
            next="leave it out",
            code="config.not-into",
        )
    run = find_run(runs, options["into"])
    asked = _list_archives(source, what, options)[0]
    return ImportedRun(run, attach_job(run, {**asked.settings, "label": asked.label}, name=options["name"] or ""))


def _list_archives(source: str, what: Sequence[str], options: dict[str, Any]) -> list[ArchiveRequest]:
    """Return the archives to read: the source, unless entries replace it, and the entries. Raises ConfigError."""
    from joulelab.run.run_import import make_archive_request, read_archive_entry

    subjects = [w for w in what if "=" not in w or Path(w).exists()]
    settings = dict(_read_setting(w) for w in what if w not in subjects)
    if options["nodes"] is not None and source != "prometheus":
        raise ConfigError(
            "--node is only for prometheus",
            next="leave it out, or name the node of a file with --host",
            code="config.not-for-source",
        )
    host = options["host"] or socket.gethostname()
    entries = [read_archive_entry(n, os.environ, host, named=options["config"]) for n in options["entries"]]
    if source == "mlperf":
        files = find_mlperf_logs(subjects)
        if options["host"] and sum(Path(f).name.startswith("node_") for f in files) > 1:
            raise ConfigError("--host is one name for several nodes", next="leave it out", code="config.hosts")
        logs = [(Path(f).stem, _make_file_settings(source, f, options, settings)) for f in files]
        return [*(make_archive_request("file", stem, one, os.environ) for stem, one in logs), *entries]
    if len(subjects) > 1:
        raise ConfigError(
            f"only one can be imported: {', '.join(subjects)}",
            next="add others with --entry NAME",
            code="config.too-many-subjects",
        )
    if source in ("csv", "wandb"):
        if subjects:
            given = _make_file_settings(source, subjects[0], options, settings)
            return [make_archive_request("file", Path(subjects[0]).stem, given, os.environ), *entries]
        if entries:
            return entries
        raise ConfigError("no file is given", next=f"joulelab import {source} FILE", code="config.no-file")
    if source == "slurm":
        if not subjects:
            raise ConfigError("no job is given", next="joulelab import slurm JOBID", code="config.no-job")
        if (options["since"] or options["until"]) and not entries:
            raise ConfigError(
                "a job cannot be cut",
                where="--from, --to",
                why="Slurm has one energy for a job and for each of its steps, and no readings between",
                next="leave them out, or add a meter that has readings: --entry NAME",
                code="config.not-for-source",
            )
        return [make_archive_request("slurm", "slurm", {"job": subjects[0], **settings}, os.environ), *entries]
    return _list_servers(subjects, settings, entries, options["nodes"])


def find_mlperf_logs(subjects: Sequence[str]) -> list[str]:
    """Return the logs of a run of MLPerf, those of its load first: files as given, those of a folder by their names.

    The log of a training, `result_0.txt`, and its power logs in `power/result_0` belong together. Raises ConfigError.
    """
    if not subjects:
        raise ConfigError("no folder is given", next="joulelab import mlperf FOLDER", code="config.no-file")
    found: list[Path] = []
    for subject in map(Path, subjects):
        powers, load = subject.parent / "power" / subject.stem, subject.parent.parent / f"{subject.name}.txt"
        if subject.is_dir():
            found += sorted(p for name in MLPERF_LOGS for p in subject.rglob(name) if p.parent.name not in NO_RUNS)
            found += [load] if subject.parent.name == "power" and load.is_file() else []
        else:
            found += [subject, *(sorted(powers.glob("node_*.txt*")) if powers.is_dir() and len(subjects) == 1 else ())]
    found = list(dict.fromkeys(found))
    kinds = Counter(p.name.partition("_" if p.name.startswith("result_") else ".")[0] for p in found)
    if not found or any(count > 1 for kind, count in kinds.items() if not kind.startswith("node_")):
        listed = ", ".join(str(p) for p in found[:8]) or f"none of {', '.join(MLPERF_LOGS)}"
        advice = "name the folder of one run, or its files: joulelab import mlperf mlperf_log_detail.txt spl.txt"
        what = "these are not the logs of one run"
        raise ConfigError(what, where=" ".join(subjects), why=listed, next=advice, code="config.mlperf")
    return [str(p) for p in sorted(found, key=lambda p: p.name.startswith(("spl", "node_")))]


def _list_servers(
    subjects: Sequence[str], settings: dict[str, Any], entries: Sequence[ArchiveRequest], nodes: str | None
) -> list[ArchiveRequest]:
    """Return the servers to read: for one job, for some nodes, or all. Raises ConfigError."""
    from dataclasses import replace

    from joulelab.run.run_import import make_archive_request

    if subjects and not re.fullmatch(r"\d+([_+]\w+)?", subjects[0]):
        advice = "give address=... with --from and --to, or a job: joulelab import prometheus JOBID"
        raise ConfigError(f"{subjects[0]!r} is neither KEY=VALUE nor a job number", next=advice, code="config.no-pair")
    more: dict[str, Any] = {"job": subjects[0]} if subjects else {}
    if nodes is not None:
        more["nodes"] = [name.strip() for name in nodes.split(",") if name.strip()]
    if settings.keys().isdisjoint(("preset", "queries")):
        settings = {"preset": "joulelab", **settings} if "address" in settings else settings
    typed = (
        [make_archive_request("prometheus", "prometheus", settings | more, os.environ)]
        if settings or not entries
        else []
    )
    asked = [replace(e, settings={**e.settings, **more}) if e.meter == "prometheus" else e for e in entries]
    return [*typed, *asked]


def _make_file_settings(source: str, path: str, options: dict[str, Any], typed: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a file from the options."""
    settings: dict[str, Any] = {"path": path, **typed}
    if options["preset"] or source == "wandb":
        settings.setdefault("preset", options["preset"] or source)
    if options["maps"]:
        settings["columns"] = [*settings.get("columns", []), *(_read_map(m) for m in options["maps"])]
    time: dict[str, Any] = {}
    if options["stamps"]:
        column, equals, form = options["stamps"].partition("=")
        time = {"column": column, **({"format": form} if equals else {})}
    time |= {key: options[key] for key in ("zone", "start") if options[key]}
    if time:
        given = settings.get("time", {})
        settings["time"] = {**({"column": given} if isinstance(given, str | list) else given), **time}
    if options["host"]:
        settings.setdefault("host", options["host"])
    return settings


def _read_map(text: str) -> dict[str, str]:
    column, equals, place = text.rpartition("=")
    scope, colon, unit = place.rpartition(":")
    from joulelab.instruments.file.values import find_unit

    if not colon or find_unit(unit) is None:  # the scope may contain a colon: gpu:0
        scope, unit = place, ""
    if not equals or not scope:
        raise ConfigError(
            f"{text!r} is not a column with its meaning",
            where="--map",
            next="write it as ac_w=node.ac:W",
            code="config.map",
        )
    return {"column": column, "scope": scope, **({"unit": unit} if unit else {})}


def _read_setting(text: str) -> tuple[str, Any]:
    """Return key and value of KEY=VALUE; the value is read as TOML, or taken as text."""
    import tomllib

    key, _, value = text.partition("=")
    if key == "missing" and not value.startswith("["):
        return key, value  # as it is written in the file: -1.000 is no number here
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def _print_several(made: Sequence[Path], remarks: Sequence[str], tool: str, *, as_json: bool) -> None:
    """Print a row for each run that was made of one file, then the next command."""
    from joulelab.analysis.results_file import load_head, load_result
    from joulelab.report.result_json import describe_head, describe_result

    if as_json:
        results = [describe_result(load_result(run)) | {"folder": str(run)} for run in made]
        print_json({"runs": results, "remarks": list(remarks)})
        return
    from joulelab.report import format as fmt
    from joulelab.report.run_tables import format_run_energy
    from joulelab.report.tables import make_table
    from joulelab.report.terminal import TextLine

    print_blocks([TextLine(text) for text in remarks])
    rows, is_estimate = list[tuple[str, ...]](), False
    with show_progress("analysing the runs"):
        for run in made:
            result, head = load_result(run), describe_head(load_head(run))
            doubts = [c.name for c in result.checks if c.status != "note" and c.name != "estimate"]
            is_estimate |= head["estimate"]
            rows.append(
                (
                    run.name,
                    fmt.shorten_end(str(head["name"] or ""), MOST_NAME),
                    fmt.format_duration(head["duration_s"]),
                    format_run_energy(head),
                    ", ".join(dict.fromkeys(doubts)),
                )
            )
    marks = " ~ is an estimate." if is_estimate else ""
    click.echo(f"Imported {len(made)} results of {tool}; each is a run.{marks}\n")
    print_blocks([make_table(("run", "name", "time", "energy", "warnings"), rows, left=(0, 1, 4))])
    warned = next((run for run, row in zip(made, rows, strict=True) if row[-1]), None)
    click.echo(f"\nnext   joulelab show {name_run(made[-1] if warned is None else warned)}")
    click.echo(f"       joulelab compare {name_run(made[0])} {name_run(made[-1])}")


def _print_imported(imported: ImportedRun, *, as_json: bool) -> None:
    from joulelab.analysis.results_file import load_result

    if not as_json:
        from joulelab.report.terminal import TextLine

        print_blocks([TextLine(text) for text in imported.remarks])
    with show_progress("analysing the run"):
        result = load_result(imported.run).with_site(load_current_site())
    if as_json:
        from joulelab.report.result_json import describe_result

        extra = {"folder": str(imported.run), "problems": list(imported.problems), "remarks": list(imported.remarks)}
        print_json(describe_result(result) | extra)
        return
    from joulelab.report.run_summary import lay_out_summary

    named = name_run(imported.run)
    if result.energy is None:  # the notes of a run would be about meters of this machine
        click.echo("Imported without energy: no source has power or energy in this interval.")
        for text in imported.problems:
            click.echo(f"  {text}")
        click.echo(f"-> joulelab show {named}")
    else:
        print_blocks(lay_out_summary(result, imported.run, width=measure_terminal(), handle=named))
