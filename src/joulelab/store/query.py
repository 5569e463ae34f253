"""Answer SQL over all runs of a store, and let the statement touch nothing else.

Views: `runs`, one row per run; `energies` and `phases`, from results; `<meter>_<table>`, the samples of all sealed runs
with columns `run` and `host`, where a channel that was not read is NULL. Statements run in an in-memory database that
may open the sealed files of this store and no other, and only statements that select are accepted.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, NewerSchema, Refused, StoreError
from joulelab.store.folder import list_runs, read_end, read_json, read_meta, run_state
from joulelab.store.table import connect, named, quoted

Row = Mapping[str, Any]
# What a caller may know about a run: rows for the views of results, by the name of the view.
Results = Callable[[Path], Mapping[str, Sequence[Row]]]

RUN_COLUMNS = {
    "run": "VARCHAR",
    "name": "VARCHAR",
    "host": "VARCHAR",
    "state": "VARCHAR",
    "outcome": "VARCHAR",
    "exit_code": "BIGINT",
    "signal": "BIGINT",
    "started": "TIMESTAMP",
    "ended": "TIMESTAMP",
    "duration_s": "DOUBLE",
    "command": "VARCHAR",
    "cwd": "VARCHAR",
    "username": "VARCHAR",
    "joulelab": "VARCHAR",
    "labels": "MAP(VARCHAR, VARCHAR)",
    "path": "VARCHAR",
}
# Columns that are there even before the first result; further keys of the rows become further columns.
RESULT_COLUMNS = {
    "energies": {
        "run": "VARCHAR",
        "host": "VARCHAR",
        "scope": "VARCHAR",
        "meter": "VARCHAR",
        "energy_j": "DOUBLE",
        "uncertainty_j": "DOUBLE",
        "mean_w": "DOUBLE",
        "net_j": "DOUBLE",
        "estimate": "BOOLEAN",
    },
    "phases": {
        "run": "VARCHAR",
        "phase": "VARCHAR",
        "n": "BIGINT",
        "start_s": "DOUBLE",
        "duration_s": "DOUBLE",
        "energy_j": "DOUBLE",
        "uncertainty_j": "DOUBLE",
    },
}


def query(runs: Path, sql: str, *, results: Results | None = None) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return column names and rows of one SELECT over all runs.

    `results` is called once per run and returns rows for `energies` and `phases` (it may compute them, and seal the
    run); without it they come from `results.json` where that has them. Raises ConfigError for wrong SQL, with the
    views and columns there are, and Refused for statements that do anything but select.
    """
    known = list_runs(runs)
    rows = _result_rows(known, results or stored_results)
    with connect() as con:
        _only_select(con, sql)
        _make_view(con, "runs", [_run_row(path) for path in known], RUN_COLUMNS)
        for name, columns in RESULT_COLUMNS.items():
            _make_view(con, name, rows[name], columns)
        tables = _sealed_tables(known)
        wanted = {name: files for name, files in tables.items() if _mentions(sql, name)}
        for name, files in wanted.items():
            _make_table_view(con, name, files)
        _fence(con, [file for files in wanted.values() for file in files])
        try:
            found = con.execute(sql)
            return [str(column[0]) for column in found.description or ()], found.fetchall()
        except duckdb.Error as error:
            raise _explained(con, error, sql, tables) from None


def stored_results(run: Path) -> Mapping[str, Sequence[Row]]:
    """Return the rows that a run's `results.json` has for the views; none where there is no such file."""
    try:
        data = read_json(run / "results.json")
    except StoreError:
        return {}
    return {name: rows for name in RESULT_COLUMNS if isinstance(rows := data.get(name), list)}


def _result_rows(known: Sequence[Path], results: Results) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {view: [] for view in RESULT_COLUMNS}
    for path in known:
        found = results(path)
        for view in rows:
            rows[view] += [{"run": path.name, **row} for row in found.get(view, ())]
    return rows


def _only_select(con: duckdb.DuckDBPyConnection, sql: str) -> None:
    try:
        statements = con.extract_statements(sql)
    except duckdb.Error as error:
        raise ConfigError("the query is not valid SQL", why=_first_lines(error)) from None
    if len(statements) != 1:
        raise ConfigError(f"a query is one statement, this has {len(statements)}", next="joulelab query 'SELECT ...'")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = statements[0].type.name
        raise Refused(f"{kind} is not allowed in a query", why="runs are never changed by queries", next="use SELECT")


def _fence(con: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    allowed = ", ".join(quoted(file) for file in files)
    con.execute(f"SET allowed_paths = [{allowed}]")
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")


def _run_row(path: Path) -> Row:
    try:
        meta, end = read_meta(path), read_end(path) or {}
        state = str(run_state(path, meta))
    except NewerSchema:
        return {"run": path.name, "path": str(path), "state": "newer schema"}
    except StoreError:
        return {"run": path.name, "path": str(path), "state": "damaged"}
    start_ns, end_ns = end.get("start_ns"), end.get("end_ns")
    return {
        **{key: meta.get(key) for key in ("name", "host", "cwd", "joulelab")},
        **{key: end.get(key) for key in ("outcome", "exit_code", "signal")},
        "run": path.name,
        "state": state,
        "started": _timestamp(meta.get("started")),
        "ended": _timestamp(end.get("ended")),
        "duration_s": (end_ns - start_ns) / NS if start_ns is not None and end_ns is not None else None,
        "command": shlex.join(meta.get("command") or []),
        "username": meta.get("user"),
        "labels": {str(k): str(v) for k, v in (meta.get("labels") or {}).items()},
        "path": str(path),
    }


def _timestamp(pair: Mapping[str, Any] | None) -> str | None:
    return datetime.fromtimestamp(pair["utc_ns"] / NS, UTC).isoformat(sep=" ")[:26] if pair else None


def _make_view(con: duckdb.DuckDBPyConnection, name: str, rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    # Values go in as text and are cast: numpy has no NULL, and a float's repr is exact.
    extra = dict.fromkeys(key for row in rows for key in row if key not in columns)
    types = {**columns, **{key: _type_of([row.get(key) for row in rows]) for key in extra}}
    data = {f"c{k}": np.array([_text(row.get(key)) for row in rows], object) for k, key in enumerate(types)}
    con.register("given", data)
    cast = ", ".join(f"{_cast(f'c{k}', kind)} AS {named(key)}" for k, (key, kind) in enumerate(types.items()))
    con.execute(f"CREATE TABLE {named(name)} AS SELECT {cast} FROM given")  # noqa: S608 (quoted)
    con.unregister("given")


def _cast(column: str, kind: str) -> str:
    return f"{column}::VARCHAR::JSON::{kind}" if kind.startswith("MAP") else f"{column}::VARCHAR::{kind}"


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, dict | list | tuple | bool) else repr(value)


def _type_of(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        return "BIGINT"
    return "DOUBLE" if kinds and kinds <= {int, float} else "VARCHAR"


def _sealed_tables(known: Sequence[Path]) -> dict[str, list[Path]]:
    tables: dict[str, list[Path]] = {}
    for run in known:
        for file in sorted(run.glob("*/[!.]*.parquet")):
            name = re.sub(r"\W", "_", file.name.removesuffix(".parquet"))
            tables.setdefault(name, []).append(file)
    return tables


def _mentions(sql: str, name: str) -> bool:
    # Opening the files of ten thousand runs takes seconds: only those that the statement can see.
    return bool(re.search(rf"(?i)\b{re.escape(name)}\b|\bshow\b|information_schema|duckdb_\w+\(|\bsummarize\b", sql))


def _make_table_view(con: duckdb.DuckDBPyConnection, name: str, files: list[Path]) -> None:
    try:
        described = con.execute(f"DESCRIBE SELECT * FROM {_source(files)}").fetchall()  # noqa: S608 (quoted)
    except duckdb.Error:
        files[:] = [file for file in files if _readable(con, file)]
        if not files:
            return
        described = con.execute(f"DESCRIBE SELECT * FROM {_source(files)}").fetchall()  # noqa: S608 (quoted)
    own = [str(row[0]) for row in described if row[0] != "filename"]
    where = "parse_path(filename, 'both_slash')"
    columns = ", ".join([f"{where}[-3] AS run", f"{where}[-2] AS host", *map(named, own)])
    con.execute(f"CREATE VIEW {named(name)} AS SELECT {columns} FROM {_source(files)}")  # noqa: S608 (quoted)


def _source(files: Sequence[Path]) -> str:
    listed = ", ".join(quoted(file) for file in files)
    return f"read_parquet([{listed}], union_by_name = true, filename = true)"


def _readable(con: duckdb.DuckDBPyConnection, file: Path) -> bool:
    try:
        con.execute(f"DESCRIBE SELECT * FROM {_source([file])}")  # noqa: S608 (quoted)
    except duckdb.Error:
        return False
    return True


def _explained(con: duckdb.DuckDBPyConnection, error: duckdb.Error, sql: str, tables: Mapping[str, Any]) -> ConfigError:
    if isinstance(error, duckdb.PermissionException):
        return Refused("a query reads runs and no other files", why=_first_lines(error), next="use the views")
    columns = "SELECT table_name, string_agg(column_name, ', ' ORDER BY column_index) FROM duckdb_columns() GROUP BY 1"
    known = dict(con.execute(columns).fetchall())
    shown = {name: known.get(name) for name in ("runs", *RESULT_COLUMNS, *sorted(tables))}
    mentioned = {name for name in shown if re.search(rf"(?i)\b{re.escape(name)}\b", sql)}
    views = [
        f"{name}({cols})" if cols and (name in mentioned or not mentioned) else name for name, cols in shown.items()
    ]
    return ConfigError("the query failed", why=_first_lines(error), next="there are " + ", ".join(views))


def _first_lines(error: duckdb.Error) -> str:
    text = str(error).split("\n\nLINE")[0]
    return " ".join(line.strip() for line in text.splitlines() if line.strip())
