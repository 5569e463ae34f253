"""Export the raw samples of a run as CSV, Parquet or JSON, with everything needed to read them.

Times are `utc` (ISO 8601, by the clock pairs of the host), `t_s` (seconds since the run started, when the reading
began) and `read_s` (how long the reading took). A channel that was not read is an empty cell or null.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, Literal

import duckdb
import numpy as np
import numpy.typing as npt

from joulelab.core.clock import NS, ClockPair
from joulelab.core.errors import Refused, StoreError
from joulelab.core.text import finite_or_none
from joulelab.store.run_folder import write_json_atomic
from joulelab.store.sample_tables import connect_database, load_table, quote_name, quote_text
from joulelab.store.seal import open_temporary_files, write_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from joulelab.store.run_reader import Run, TableInfo
    from joulelab.store.series import SampleSeries

Format = Literal["csv", "parquet", "json"]
# Two clock pairs a minute apart that differ by more than this saw a clock that was set, not one that drifts.
STEP_NS = 100_000_000


def export_run(run: Run, to: Format, out: Path) -> list[Path]:
    """Write a run's samples into the folder `out` and return the files: one per table and `metadata.json`, or one JSON.

    Raises Refused if a file exists already, StoreError if it cannot be written.
    """
    infos = run.tables()
    names = ["run.json"] if to == "json" else [*(f"{_name_file(info)}.{to}" for info in infos), "metadata.json"]
    targets = [out / name for name in names]
    for target in targets:
        if target.exists():
            what, then = f"{target.name} is there already", "give another folder"
            raise Refused(what, where=str(out), next=then, code="refused.exists")
    try:
        out.mkdir(parents=True, exist_ok=True)
        if to == "json":
            _write_json(run, infos, targets[0])
            return targets
        for info, target in zip(infos, targets, strict=False):
            (_write_csv if to == "csv" else _write_parquet)(run, info, target)
        write_json_atomic(targets[-1], describe_export(run, infos))
    except OSError as error:
        raise StoreError("cannot export", where=str(out), why=error.strerror, code="store.export") from error
    except duckdb.Error as error:
        raise StoreError("cannot export", where=str(out), why=str(error).splitlines()[0], code="store.export") from None
    return targets


def _name_file(info: TableInfo) -> str:
    return f"{info.host}.{info.meter}.{info.table}"


def describe_export(run: Run, infos: Sequence[TableInfo]) -> dict[str, Any]:
    """Return everything of a run except its samples, as plain data."""
    return {
        "run": run.meta,
        "end": run.end,
        "state": str(run.state),
        "clock_pairs": {host: [asdict(pair) for pair in run.clock_pairs(host)] for host in run.hosts},
        "tables": [
            {
                "host": i.host,
                "meter": i.meter,
                "table": i.table,
                "rows": i.rows,
                "streams": [s.to_json() for s in i.streams],
            }
            for i in infos
        ],
        "events": run.events(),
        "marks": run.marks(),
        "problems": [{"path": str(p.path), "what": p.what} for p in run.problems()],
    }


def to_utc_ns(pairs: Sequence[ClockPair], mono_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Turn monotonic into UTC nanoseconds: the offset is interpolated between pairs, and constant up to a clock step.

    Raises StoreError without a clock pair.
    """
    if not pairs:
        what, why = "no clock pair joins this host's time to UTC", "the recorder ended before its first one"
        raise StoreError(what, why=why, code="store.no-clock")
    at = np.array([p.mono_ns for p in pairs], np.int64)
    offset = np.array([p.utc_ns - p.mono_ns for p in pairs], np.int64)
    before = np.clip(np.searchsorted(at, mono_ns, side="right") - 1, 0, len(pairs) - 1)
    after = np.minimum(before + 1, len(pairs) - 1)
    change = offset[after] - offset[before]
    share = (mono_ns - at[before]) / np.maximum(at[after] - at[before], 1)
    drift = np.where(np.abs(change) > STEP_NS, 0, change) * np.clip(share, 0, 1)
    utc: npt.NDArray[np.int64] = mono_ns + offset[before] + np.rint(drift).astype(np.int64)
    return utc


def _list_times(run: Run, host: str, series: SampleSeries) -> dict[str, npt.NDArray[Any]]:
    started = run.meta["started"]
    begun = (run.end or {}).get("start_ns") or started["mono_ns"]
    pairs = run.clock_pairs()
    read_s = np.round((series.t1_ns - series.t0_ns) / NS, 9)
    if not pairs or host in run.unjoined():
        nothing = np.full(len(series), np.nan)
        return {"utc_ns": np.zeros(len(series), np.int64), "t_s": nothing, "read_s": read_s}
    utc_ns = to_utc_ns(pairs, series.t0_ns)
    return {"utc_ns": utc_ns, "t_s": np.round((series.t0_ns - begun) / NS, 9), "read_s": read_s}


def _write_csv(run: Run, info: TableInfo, target: Path) -> None:
    channels = list(dict.fromkeys(c.name for s in info.streams for c in s.channels))
    with open_temporary_files(target.parent) as temporary, connect_database() as con:
        whole, part = temporary.new(), temporary.new()
        with whole.open("wb") as file:
            for number, stream in enumerate(info.streams):
                series = run.series(info, stream.name)
                values = {f"v{k}": series.values[c] for k, c in enumerate(channels) if c in series.values}
                con.register("given", {**_list_times(run, info.host, series), "segment": series.segment, **values})
                picked = [
                    "CASE WHEN utc_ns > 0 THEN strftime(make_timestamp_ns(utc_ns), '%Y-%m-%dT%H:%M:%S.%fZ') END AS utc",
                    "nullif(t_s, 'nan'::DOUBLE) AS t_s",
                    "read_s",
                    f"{quote_text(stream.name)} AS stream",
                    f"{quote_text(stream.scope)} AS scope",
                    "segment",
                    *(f"{_format_cell(f'v{k}', values)} AS {quote_name(c)}" for k, c in enumerate(channels)),
                ]
                select = f"SELECT {', '.join(picked)} FROM given"  # noqa: S608 (quoted)
                con.execute(
                    f"COPY ({select}) TO {quote_text(part)} (FORMAT csv, HEADER {number == 0}, USE_TMP_FILE false)"
                )
                con.unregister("given")
                with part.open("rb") as source:
                    shutil.copyfileobj(source, file)
        whole.replace(target)


def _format_cell(column: str, values: dict[str, Any]) -> str:
    return f"nullif({column}, 'nan'::DOUBLE)" if column in values else "NULL"


def _write_parquet(run: Run, info: TableInfo, target: Path) -> None:
    with open_temporary_files(target.parent) as temporary, connect_database(memory_limit="2GB", threads=2) as con:
        table = load_table(run.path / info.host, info.meter, info.table, con)
        if table.parquet and not table.journals:
            copy = temporary.new()
            shutil.copyfile(table.parquet, copy)
        else:
            copy = write_table(table, temporary, con)
        copy.replace(target)


def _write_json(run: Run, infos: Sequence[TableInfo], target: Path) -> None:
    with open_temporary_files(target.parent) as temporary:
        path = temporary.new()
        with path.open("w", encoding="utf-8") as file:
            head = json.dumps(describe_export(run, infos), ensure_ascii=False)
            file.write(head[:-1] + ', "samples": [')
            first = True
            for info in infos:
                for stream in info.streams:
                    file.write("" if first else ",\n")
                    first = False
                    _write_stream(file, run, info, stream.name)
            file.write("]}\n")
        path.replace(target)


def _write_stream(file: IO[str], run: Run, info: TableInfo, stream: str) -> None:
    series = run.series(info, stream)
    times = _list_times(run, info.host, series)
    names = {"host": info.host, "meter": info.meter, "table": info.table, "stream": stream}
    file.write(json.dumps(names)[:-1])
    file.write(', "utc": ' + json.dumps(list(_format_time(times.pop("utc_ns")))))
    columns = {**times, "segment": series.segment, **{f"channels.{c}": v for c, v in series.values.items()}}
    for name, column in columns.items():
        plain = [finite_or_none(x) if isinstance(x, float) else x for x in column.tolist()]
        file.write(f", {json.dumps(name)}: {json.dumps(plain)}")
    file.write("}")


def _format_time(utc_ns: npt.NDArray[np.int64]) -> Iterator[str | None]:
    texts = np.datetime_as_string(utc_ns.astype("datetime64[ns]").astype("datetime64[us]"), timezone="UTC")
    yield from (str(text) if ns > 0 else None for text, ns in zip(texts, utc_ns.tolist(), strict=True))
