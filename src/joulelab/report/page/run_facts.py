"""Make what a run's page says of how it was made: workload, configuration, and how to work it out again."""

from __future__ import annotations

import contextlib
import json
import shlex
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import JoulelabError
from joulelab.core.text import SERVED_TWIN
from joulelab.report import format as fmt
from joulelab.report.caps import cap_lines
from joulelab.report.page.blocks import Commands, Fold, Heading, Lines, Table, Text
from joulelab.report.page.tables import Grid, Row
from joulelab.report.run_tables import list_load_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.core.spec import Spec, Stream
    from joulelab.report.page.blocks import Block
    from joulelab.store.run import TableInfo

MOST_SCOPES = 200  # letters of a list of scopes


def workload(result: Result) -> tuple[Block, ...]:
    """Return caps, load, and every fact that the workload told."""
    blocks: list[Block] = []
    if rows := cap_lines(result) + list_load_facts(result):
        blocks.append(Lines(tuple(rows)))
    if result.facts:
        grid = Grid(
            ("fact", "value"),
            tuple(Row((name, fmt.format_fact(value, 400))) for name, value in result.facts.items()),
            frozenset({0, 1}),
        )
        blocks.append(Table(grid, "What the workload told of itself"))
    return tuple(blocks)


def configuration(folder: Path) -> tuple[Block, ...]:
    """Return how the run was measured: options, versions, environment, every meter with its accuracy, run.json."""
    from joulelab.store.folder import read_end
    from joulelab.store.run import open_run

    try:
        with open_run(folder) as run:
            meta, tables = run.meta, run.tables()
            problems = [f"{p.path.name}: {p.what}" for p in run.problems()]
    except (JoulelabError, OSError) as error:
        return (Text(f"The run's folder cannot be read: {error}", "note warn"),)
    end = None
    with contextlib.suppress(JoulelabError, OSError):
        end = read_end(folder)
    blocks: list[Block] = [Lines(tuple(_told(meta)))]
    if problems:
        blocks.append(Lines(tuple(("damaged", text) for text in problems), "checks"))
    grid = meter_grid(tables)
    if grid.rows:
        blocks += [Heading("Meters"), Table(grid, "Every channel that was read, and how accurate that is")]
    if meta.get("environment"):
        rows = tuple((str(k), str(v)) for k, v in meta["environment"].items())
        blocks += [Heading("Environment"), Lines(rows)]
    files = [("run.json", meta), *([("end.json", end)] if end else [])]
    blocks += [
        Fold(
            name,
            (
                Commands(
                    tuple(_json(data)),
                ),
            ),
        )
        for name, data in files
    ]
    return tuple(blocks)


def _told(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return who ran what where, with which options; what is not set is left out."""
    rows = [("command", shlex.join(map(str, meta.get("command") or [])))]
    rows += [(key, str(meta[key])) for key in ("host", "user", "cwd") if meta.get(key)]
    versions = [f"{key} {meta[key]}" for key in ("joulelab", "python") if meta.get(key)]
    rows.append(("versions", ", ".join(versions)))
    options = meta.get("options") or {}
    given = [f"{k} = {_short(v)}" for k, v in options.items() if v not in (None, [], {}, "", False)]
    rows.append(("options", "; ".join(given)))
    return [(label, text) for label, text in rows if text]


def _short(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(v, dict) and "name" in v for v in value):
        return ", ".join(f"{v['name']} ({v.get('meter', '')})" for v in value)
    return value if isinstance(value, str) else json.dumps(value)


def meter_grid(tables: Iterable[TableInfo]) -> Grid:
    """Return every channel of power or energy with its accuracy and where that is known from, equal ones together."""
    alike: dict[tuple[str, Spec, float, str], list[tuple[str, Stream]]] = {}
    for info in tables:
        for stream in info.streams:
            for spec in stream.channels:
                if spec.kind != "state" and spec.unit in ("W", "J"):
                    key = (info.meter, spec, stream.period_s, stream.model)
                    alike.setdefault(key, []).append((info.host, stream))
    heads = (
        "scope",
        "meter",
        "channel",
        "device",
        "read every",
        "renewed every",
        "accuracy",
        "known from",
        "reference",
    )
    return Grid(
        heads, tuple(_meter_row(*key, members) for key, members in alike.items()), frozenset({0, 1, 2, 3, 7, 8})
    )


def _meter_row(meter: str, spec: Spec, period_s: float, model: str, members: Sequence[tuple[str, Stream]]) -> Row:
    hosts = {host for host, _ in members}
    scopes = fmt.join_scopes(list(dict.fromkeys(stream.scope for _, stream in members)))
    where = f" on {len(hosts)} nodes" if len(hosts) > 1 else ""
    named = (fmt.shorten_middle(scopes, MOST_SCOPES) + where, meter, spec.name, model)
    times = (fmt.format_period(period_s), fmt.format_period(spec.update_s))
    return Row((*named, *times, _accuracy(spec), spec.accuracy.source, spec.accuracy.reference))


def _accuracy(spec: Spec) -> str:
    a = spec.accuracy
    if spec.estimate:
        return "an estimate"
    if a.source == "unknown":
        return "unknown"
    parts = [f"{fmt.format_percent(a.gain, signed=False)}"] if a.gain else []
    parts += [fmt.format_rough(a.offset, spec.unit, 2)] if a.offset else []
    seen = f", sees {fmt.format_percent(spec.seen, signed=False)} of the time" if spec.seen < 1 else ""
    return ("± " + " + ".join(parts) if parts else "± 0") + seen


def _json(data: Mapping[str, Any]) -> list[str]:
    return json.dumps(data, indent=1, ensure_ascii=False).splitlines()


def recomputed(result: Result, folder: Path, name: str) -> tuple[Block, ...]:
    """Return the commands that make these figures again from the run's folder, and measure again."""
    typed = [
        f"joulelab show {name} --budget --phases --scopes all",
        f"joulelab show {name} --json",
        f"joulelab report {name}",
    ]
    if result.scopes:
        typed.append(f"joulelab export {name} --to csv")
    blocks: list[Block] = [
        Text(f"Every figure of this page is worked out from the run's folder, `{folder}`: no meter is needed for it."),
        Commands(tuple(typed)),
    ]
    if result.command and result.outcome != "imported" and result.twin in ("", SERVED_TWIN):
        blocks += [
            Text("To measure again:"),
            Commands((f"joulelab run -- {shlex.join(result.command)}",)),
        ]
    return tuple(blocks)
