"""Run SQL over all runs of a store; the statement can access nothing else.

Views: `runs`, one row per run, with what it worked on and how well; `energies`, `phases` and `facts`, from results;
`<meter>_<table>`, the samples of all runs that have ended with columns `run` and `host`, where a channel that was not
read is NULL; journals that cannot be sealed (another user's) are read by a temporary copy. Statements run in an
in-memory database that may open these files and no others, and only statements that select are accepted. Its memory,
its time and the number of its rows have limits.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, NewerSchema, Refused, StoreError
from joulelab.core.text import escape_surrogates
from joulelab.store.damage import word_damage
from joulelab.store.documents import read_document
from joulelab.store.manifest import check_files, read_manifest
from joulelab.store.run_folder import RunState, list_runs, read_run_state
from joulelab.store.sample_tables import METADATA_KEY, connect_database, load_table, quote_name, quote_text
from joulelab.store.seal import TemporaryFiles, write_table
from joulelab.store.upgrade import upgrade_document

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
    "data": "VARCHAR",
    "quality": "VARCHAR",
    "gpu_load": "DOUBLE",
    "energy_kwh": "DOUBLE",
    "uncertainty_kwh": "DOUBLE",
    "cost": "DOUBLE",
    "currency": "VARCHAR",
    "co2e_kg": "DOUBLE",
    "intensity_g_per_kwh": "DOUBLE",
    "intensity_year": "BIGINT",
    "intensity_zone": "VARCHAR",
    "intensity_source": "VARCHAR",
    "pue": "DOUBLE",
}
# Columns of runs that are from their results: only read for statements that may show them.
DATA_COLUMNS = ("data", "quality", *list(RUN_COLUMNS)[list(RUN_COLUMNS).index("gpu_load") :])
# Columns that are from the record of the end, and from results for runs without one.
END_COLUMNS = ("ended", "duration_s")
# Kinds of columns that need not go through text, with numpy's type and the types of values that it takes as they are.
NATIVE: Mapping[str, tuple[type, set[type]]] = {
    "DOUBLE": (np.float64, {float, int}),
    "BIGINT": (np.int64, {int}),
    "BOOLEAN": (np.bool_, {bool}),
}
LARGEST = {"DOUBLE": float("inf"), "BIGINT": 2**63}
MOST_MEMORY_B = 4 << 30  # of a statement; less where the machine has less than twice as much
MOST_ROWS = 10_000_000  # of an answer, which is in memory as a whole
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
        "channel": "VARCHAR",
        "median_w": "DOUBLE",
        "max_w": "DOUBLE",
        "accuracy": "VARCHAR",
        "counted": "BOOLEAN",
        "device": "VARCHAR",
        "model": "VARCHAR",
        "load": "DOUBLE",
    },
    "phases": {
        "run": "VARCHAR",
        "phase": "VARCHAR",
        "n": "BIGINT",
        "start_s": "DOUBLE",
        "duration_s": "DOUBLE",
        "energy_j": "DOUBLE",
        "uncertainty_j": "DOUBLE",
        "gpu_load": "DOUBLE",
    },
    "facts": {
        "run": "VARCHAR",
        "fact": "VARCHAR",
        "value": "VARCHAR",
        "number": "DOUBLE",
    },
}


def run_query(
    runs: Path,
    sql: str,
    *,
    results: Results | None = None,
    prepare: Callable[[Path], None] | None = None,
    left_out: dict[Path, str] | None = None,
    damaged: dict[str, str] | None = None,
    limit_s: float | None = None,
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return column names and rows of one SELECT over all runs; the statement may take `limit_s`.

    Only what the statement mentions is read. `results` is called once per run and returns rows for `energies`,
    `phases` and `facts` (it may compute them); without it they are empty. `prepare` is called for runs that have
    journals before their samples are read (it may seal them). `left_out` takes the files whose samples are missing
    from the views, with the reason, `damaged` the runs whose results are incomplete or missing, with the problem that
    `results` gives (a row of `damaged`); both before the statement runs. Raises ConfigError for wrong SQL, with the
    views and columns there are, and Refused for statements that do anything but select, or exceed a limit.
    """
    known = list_runs(runs)
    memory = f"{_choose_memory() >> 20}MiB"
    with connect_database(memory_limit=memory) as con, tempfile.TemporaryDirectory(prefix="joulelab-query-") as scratch:
        _check_select(con, sql)
        if _is_mentioned(sql, "runs"):
            _make_view(con, "runs", _list_run_rows(known, sql, results), RUN_COLUMNS)
        wanted_results = [name for name in RESULT_COLUMNS if _is_mentioned(sql, name)]
        problems = {} if damaged is None else damaged
        rows = _list_result_rows(known, results or (lambda _: {}), wanted_results, problems) if wanted_results else {}
        for name in wanted_results:
            _make_view(con, name, rows[name], RESULT_COLUMNS[name])
        tables, unsealed = _find_tables(known, prepare) if _may_name_samples(con, sql) else (None, set())
        wanted = {name: files for name, files in (tables or {}).items() if _is_mentioned(sql, name)}
        lost = {} if left_out is None else left_out
        lost |= _find_lost(known, wanted) if wanted else {}
        for name, files in wanted.items():
            files[:] = [file for file in files if file not in lost]
            copies = _copy_journals(con, [file for file in files if file in unsealed], Path(scratch), lost)
            files[:] = [copies.get(file, file) for file in files if file not in unsealed or file in copies]
            lost |= _make_table_view(con, name, files, {copy: file for file, copy in copies.items()})
        _restrict_database(con, [file for files in wanted.values() for file in files])
        try:
            with _limit_time(con, limit_s):
                found = con.execute(sql)
                columns, answer = [str(column[0]) for column in found.description or ()], found.fetchmany(MOST_ROWS)
                if len(answer) == MOST_ROWS and found.fetchone() is not None:
                    then = "sum up in the query, or add LIMIT; `joulelab export` writes all readings of a run"
                    raise Refused(f"the answer has more than {MOST_ROWS:,} rows", next=then, code="refused.query-rows")
        except duckdb.InterruptException:
            why, then = f"a query may take {limit_s:g} s", "select fewer runs or columns, or allow more: --timeout 1h"
            raise Refused("the query takes too long", why=why, next=then, code="refused.query-time") from None
        except duckdb.OutOfMemoryException:
            why, then = f"a query may use {memory}", "select fewer runs, columns or groups"
            raise Refused("the query needs too much memory", why=why, next=then, code="refused.query-memory") from None
        except duckdb.Error as error:
            raise _explain_error(con, error, sql, _find_tables(known)[0] if tables is None else tables) from None
    return columns, answer


def _choose_memory() -> int:
    """Return the memory (bytes) that a statement may use."""
    if not hasattr(os, "sysconf"):  # Windows reads runs
        return MOST_MEMORY_B
    return min(MOST_MEMORY_B, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


@contextlib.contextmanager
def _limit_time(con: duckdb.DuckDBPyConnection, limit_s: float | None) -> Iterator[None]:
    """Interrupt a statement that takes too long: it ends with duckdb.InterruptException."""
    timer = threading.Timer(limit_s, con.interrupt) if limit_s is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def _list_result_rows(
    known: Sequence[Path], results: Results, views: Sequence[str], damaged: dict[str, str]
) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {view: [] for view in views}
    for path in known:
        found, name = results(path), path.name
        for view in rows:
            rows[view] += [{"run": name, **row} for row in found.get(view, ())]
        damaged.update((name, str(row.get("problem"))) for row in found.get("damaged", ()))
    return rows


def _list_run_rows(known: Sequence[Path], sql: str, results: Results | None) -> list[Row]:
    """Return the rows of the view `runs`; results are read only for the columns that the statement may show."""
    rows = {path: _make_run_row(path) for path in known}
    described: dict[Path, Row] = {}
    if results and _may_show_data(sql):
        described = _describe_data(known, results)
    elif results and re.search(rf"(?i)\b({'|'.join(END_COLUMNS)})\b", sql):
        # A run that was cut off has no record of its end: its result knows it from the last readings.
        cut_off = [path for path, row in rows.items() if row["state"] in (RunState.KILLED, RunState.LIVE)]
        described = _describe_data(cut_off, results)
    return [
        {**described.get(path, {}), **{k: v for k, v in row.items() if v is not None}} for path, row in rows.items()
    ]


def _may_show_data(sql: str) -> bool:
    """Return whether a statement may use columns of results: it names such a column, or selects all columns."""
    named_here = re.search(rf"(?i)\b({'|'.join(DATA_COLUMNS)})\b|\bcolumns\b|\brow\b|^\s*from\b|\(\s*from\b", sql)
    return bool(named_here) or "*" in re.sub(r"(?i)\bcount\s*\(\s*\*\s*\)", "", sql) or _lists_views(sql)


def _describe_data(known: Sequence[Path], results: Results) -> dict[Path, Row]:
    """Return the data that runs worked on, their figures of quality, and rows of the view `runs` from results."""
    found: dict[Path, Row] = {}
    for path in known:
        views = results(path)
        facts = {str(row.get("fact")): row.get("value") for row in views.get("facts", ())}
        names = [name.strip() for name in str(facts.get("quality") or "").split(",")]
        judged = ", ".join(f"{name} {facts[name]}" for name in names if name in facts)
        described = {"data": facts.get("data"), "quality": judged or facts.get("quality")}
        found[path] = {k: v for row in (described, *views.get("runs", ())) for k, v in row.items()}
    return found


def _check_select(con: duckdb.DuckDBPyConnection, sql: str) -> None:
    try:
        statements = con.extract_statements(sql)
    except duckdb.Error as error:
        raise ConfigError("the query is not valid SQL", why=_cut_lines(error), code="config.query-syntax") from None
    if len(statements) != 1:
        what, then = f"a query is one statement, this has {len(statements)}", "joulelab query 'SELECT ...'"
        raise ConfigError(what, next=then, code="config.query-statements")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = statements[0].type.name
        what, why = f"{kind} is not allowed in a query", "runs are never changed by queries"
        raise Refused(what, why=why, next="use SELECT", code="refused.query-changes")


def _restrict_database(con: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    allowed = ", ".join(quote_text(file) for file in files)
    con.execute(f"SET allowed_paths = [{allowed}]")
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")


def _make_run_row(path: Path) -> Row:
    try:
        meta, end = _read_documents(path)
        state = str(RunState.CLOSED if end else read_run_state(path, meta))
        started, ended = _make_timestamp(meta.get("started")), _make_timestamp(end.get("ended"))
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
        "started": started,
        "ended": ended,
        "duration_s": (end_ns - start_ns) / NS if start_ns is not None and end_ns is not None else None,
        "command": shlex.join(meta.get("command") or []),
        "username": meta.get("user"),
        "labels": {escape_surrogates(str(k)): escape_surrogates(str(v)) for k, v in (meta.get("labels") or {}).items()},
        "path": str(path),
    }


def _read_documents(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content of `run.json` and `end.json`; the second is empty if the run has not ended."""
    where = str(path)
    meta = upgrade_document("run", read_document(f"{where}/run.json"), where=where)
    there = os.path.lexists(f"{where}/end.json")
    return meta, upgrade_document("end", read_document(f"{where}/end.json"), where=where) if there else {}


def _make_timestamp(pair: Mapping[str, Any] | None) -> str | None:
    if not pair:
        return None
    if "utc_ns" not in pair:
        raise StoreError("run.json or end.json is damaged", why="a time has no utc_ns", code="store.damaged")
    return datetime.fromtimestamp(pair["utc_ns"] / NS, UTC).isoformat(sep=" ")[:26]


def _make_view(con: duckdb.DuckDBPyConnection, name: str, rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    extra = [key for key in dict.fromkeys(itertools.chain.from_iterable(rows)) if key not in columns]
    given = {key: [row.get(key) for row in rows] for key in (*columns, *extra)}
    types = {**columns, **{key: _choose_type(given[key]) for key in extra}}
    data = {f"c{k}": _make_column(given[key], kind) for k, (key, kind) in enumerate(types.items())}
    con.register("given", data)
    heads = _separate_names([escape_surrogates(key) for key in types])
    kinds = enumerate(zip(heads, types.values(), strict=True))
    cast = ", ".join(f"{_cast_column(f'c{k}', kind)} AS {quote_name(head)}" for k, (head, kind) in kinds)
    con.execute(f"CREATE TABLE {quote_name(name)} AS SELECT {cast} FROM given")  # noqa: S608 (quoted)
    con.unregister("given")


def _separate_names(names: Sequence[str]) -> list[str]:
    """Make column names unique even without regard to case, as the database needs."""
    seen: set[str] = set()
    found = []
    for name in names:
        head, k = name, 2
        while head.lower() in seen:
            head, k = f"{name}_{k}", k + 1
        seen.add(head.lower())
        found.append(head)
    return found


def _make_column(values: Sequence[Any], kind: str) -> npt.NDArray[Any]:
    """Return a column for the database: numbers unchanged, all other values as text that the database converts."""
    kinds = set(map(type, values)) - {type(None)}
    if kind in NATIVE and kinds and kinds <= NATIVE[kind][1] and _is_fitting(values, kind):
        missing = [value is None for value in values]
        return np.ma.array([0 if v is None else v for v in values], dtype=NATIVE[kind][0], mask=missing)
    return np.array([_make_text(value) for value in values], object)


def _is_fitting(values: Sequence[Any], kind: str) -> bool:
    return kind == "BOOLEAN" or all(value is None or abs(value) < LARGEST[kind] for value in values)


def _cast_column(column: str, kind: str) -> str:
    if kind in NATIVE:
        return f"TRY_CAST({column} AS {kind})"  # a value that is not a number, in a folder from elsewhere, becomes NULL
    return f"{column}::VARCHAR::JSON::{kind}" if kind.startswith("MAP") else f"{column}::VARCHAR::{kind}"


def _make_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return escape_surrogates(value)
    return json.dumps(value) if isinstance(value, dict | list | tuple | bool) else repr(value)


def _choose_type(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int} and all(value is None or abs(value) < 2**63 for value in values):
        return "BIGINT"
    return "DOUBLE" if kinds and kinds <= {int, float} else "VARCHAR"


def _find_tables(
    known: Sequence[Path], prepare: Callable[[Path], None] | None = None
) -> tuple[dict[str, list[Path]], set[Path]]:
    """Return the Parquet files of every view, and the files whose journals are not sealed yet."""
    tables: dict[str, list[Path]] = {}
    unsealed: set[Path] = set()
    for run in known:
        found = _list_files(run)
        if prepare is not None and any(file.endswith(".journal") for file in found):
            prepare(run)
            found = _list_files(run)
        journals = {_name_sealed(file) for file in found if file.endswith(".journal")}
        for file in sorted(journals.union(file for file in found if file.endswith(".parquet"))):
            tables.setdefault(_name_view(file), []).append(Path(file))
        unsealed.update(map(Path, journals))
    return tables, unsealed


def _name_sealed(journal: str) -> str:
    folder, _, name = journal.rpartition("/")
    return f"{folder}/{'.'.join(name.split('.')[:2])}.parquet"


def _name_view(file: str) -> str:
    return re.sub(r"\W", "_", file.rpartition("/")[2].removesuffix(".parquet"))


def _find_lost(known: Sequence[Path], views: Container[str]) -> dict[Path, str]:
    """Return files of views that are missing, or whose size differs from the manifest, with the defect."""
    lost: dict[Path, str] = {}
    for run in known:
        with contextlib.suppress(StoreError):
            records = (read_manifest(run) or {}).items()
            tables = {name: r for name, r in records if name.endswith(".parquet") and _name_view(name) in views}
            wrong = (c for c in check_files(run, tables, hashes=False) if c.status != "whole")
            lost |= {run / check.name: word_damage(run, check).what for check in wrong}
    return lost


def _copy_journals(
    con: duckdb.DuckDBPyConnection, files: Sequence[Path], scratch: Path, lost: dict[Path, str]
) -> dict[Path, Path]:
    """Copy tables that are not sealed to Parquet files in `scratch`; return them by the file that sealing would write.

    Tables that cannot be copied are added to `lost`, with the reason.
    """
    copies: dict[Path, Path] = {}
    for file in files:
        run, folder = file.parent.parent, scratch.joinpath(*file.parts[-3:-1])
        meter, name = file.name.split(".")[:2]
        try:
            table = load_table(file.parent, meter, name, con)
            problem = next((p.what for p in table.problems if p.lost), "")
            if read_run_state(run) is RunState.LIVE or problem or not table.segments:
                lost[file.with_suffix("")] = problem or "the run has not ended"
                continue
            folder.mkdir(parents=True, exist_ok=True)
            copies[file] = write_table(table, TemporaryFiles(folder), con).replace(folder / file.name)
        except (StoreError, OSError, duckdb.Error) as error:
            lost[file.with_suffix("")] = str(error).splitlines()[0]
    return copies


def _list_files(run: Path) -> list[str]:
    """Return the regular files in a run's host folders, without hidden ones; DuckDB would wait for a FIFO."""
    found = []
    with contextlib.suppress(OSError), os.scandir(run) as hosts:
        for host in hosts:
            if host.is_dir():
                with contextlib.suppress(OSError), os.scandir(host.path) as files:
                    found += [file.path for file in files if not file.name.startswith(".") and file.is_file()]
    return found


def _is_mentioned(sql: str, name: str) -> bool:
    # Opening the files of ten thousand runs takes seconds: only those that the statement can see.
    return bool(re.search(rf"(?i)\b{re.escape(name)}\b", sql)) or _lists_views(sql)


def _lists_views(sql: str) -> bool:
    return bool(re.search(r"(?i)\bshow\b|information_schema|duckdb_\w+\(|\bsummarize\b", sql))


def _may_name_samples(con: duckdb.DuckDBPyConnection, sql: str) -> bool:
    """Return whether a statement has a word that may name a view of samples: it contains `_` and is not a column."""
    columns = {str(row[0]).lower() for row in con.execute("SELECT column_name FROM duckdb_columns()").fetchall()}
    words = {word.lower() for word in re.findall(r"\w+", sql)}
    return _lists_views(sql) or any("_" in word for word in words - columns)


def _make_table_view(
    con: duckdb.DuckDBPyConnection, name: str, files: list[Path], originals: Mapping[Path, Path]
) -> dict[Path, str]:
    """Make the view of one table from `files`; return the files that are missing in it, with the reason.

    `originals` are the original files of copies.
    """
    whole, lost = files[:], dict[Path, str]()
    try:
        cut = _find_cut(con, whole, originals) if whole else {}
    except duckdb.Error:
        whole = [file for file in files if _is_readable(con, file)]
        lost = {originals.get(file, file): "it cannot be read" for file in files if file not in whole}
        cut = _find_cut(con, whole, originals) if whole else {}
    files[:] = [file for file in whole if file not in cut]
    lost |= {originals.get(file, file): what for file, what in cut.items()}
    if not files:
        return lost
    described = con.execute(f"DESCRIBE SELECT * FROM {_make_source(files)}").fetchall()  # noqa: S608 (quoted)
    own = [str(row[0]) for row in described if row[0] != "filename"]
    where = "parse_path(filename, 'both_slash')"
    columns = ", ".join([f"{where}[-3] AS run", f"{where}[-2] AS host", *map(quote_name, own)])
    con.execute(f"CREATE VIEW {quote_name(name)} AS SELECT {columns} FROM {_make_source(files)}")  # noqa: S608 (quoted)
    return lost


def _find_cut(con: duckdb.DuckDBPyConnection, files: Sequence[Path], originals: Mapping[Path, Path]) -> dict[Path, str]:
    """Return files whose journals were smaller when sealed than at the end of the run. Raises duckdb.Error."""
    listed = ", ".join(quote_text(file) for file in files)
    select = f"SELECT file_name, decode(value) FROM parquet_kv_metadata([{listed}]) WHERE decode(key) = $key"  # noqa: S608 (quoted)
    cut: dict[Path, str] = {}
    for file, text in con.execute(select, {"key": METADATA_KEY}).fetchall():
        original = originals.get(Path(file), Path(file))
        with contextlib.suppress(StoreError, ValueError, LookupError, TypeError, AttributeError):
            sizes = _read_documents(original.parent.parent)[1].get("files") or {}
            for segment in json.loads(text)["segments"]:
                name = f"{original.parent.name}/{original.stem}.{segment['segment']}.journal"
                if (segment.get("journal_bytes") or inf) < sizes.get(name, 0):
                    cut[Path(file)] = f"its journal was cut off after {segment['rows']} rows"
    return cut


def _make_source(files: Sequence[Path]) -> str:
    listed = ", ".join(quote_text(file) for file in files)
    return f"read_parquet([{listed}], union_by_name = true, filename = true)"


def _is_readable(con: duckdb.DuckDBPyConnection, file: Path) -> bool:
    try:
        con.execute(f"DESCRIBE SELECT * FROM {_make_source([file])}")  # noqa: S608 (quoted)
    except duckdb.Error:
        return False
    return True


def _explain_error(
    con: duckdb.DuckDBPyConnection, error: duckdb.Error, sql: str, tables: Mapping[str, Any]
) -> ConfigError:
    if isinstance(error, duckdb.PermissionException):
        what, why = "a query reads runs and no other files", _cut_lines(error)
        return Refused(what, why=why, next="use the views", code="refused.query-files")
    columns = "SELECT table_name, string_agg(column_name, ', ' ORDER BY column_index) FROM duckdb_columns() GROUP BY 1"
    base = {"runs": RUN_COLUMNS, **RESULT_COLUMNS}
    known = {name: ", ".join(there) for name, there in base.items()} | dict(con.execute(columns).fetchall())
    shown = {name: known.get(name) for name in ("runs", *RESULT_COLUMNS, *sorted(tables))}
    mentioned = {name for name in shown if re.search(rf"(?i)\b{re.escape(name)}\b", sql)}
    views = [
        f"{name}({cols})" if cols and (name in mentioned or not mentioned) else name for name, cols in shown.items()
    ]
    then = "there are " + ", ".join(views)
    return ConfigError("the query failed", why=_cut_lines(error), next=then, code="config.query-failed")


def _cut_lines(error: duckdb.Error) -> str:
    text = str(error).split("\n\nLINE")[0]
    return " ".join(line.strip() for line in text.splitlines() if line.strip())
