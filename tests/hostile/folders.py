"""Make run folders as a careless copy, a full disk or an enemy may leave them, each kind by its name.

`KINDS` holds them all; `call` runs one command over a store in this process and judges what it did. Both work with
every joulelab since 0.1.0, so that `python -m tests.hostile.table` can compare two of them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from click.testing import CliRunner

from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.store.journal import JournalWriter, make_journal_path, pack_row
from joulelab.store.run_folder import create_run, end_run
from joulelab.store.seal import seal_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NS = 10**9
START_NS, SECONDS, PERIOD_S = 5 * NS, 60, 0.2
BOOT = "11111111-2222-3333-4444-555555555555"
# Larger than any pid of Linux, in this boot: dead.
NOBODY = {"pid": 2**22 + 1, "start_ticks": 1, "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
COMMANDS = ("show", "ls", "query", "verify", "dashboard")
# What a command may make of a folder: the right figure, none because files are damaged, or a refusal that says why.
Expected = Literal["whole", "damaged", "refused"]


@dataclass(frozen=True)
class Kind:
    """Name a kind of folder; `change` turns a whole run into it. `verify` is what `joulelab verify` is to find.

    `sealed`: whether the run is sealed before. `reader`: only somebody else than root meets it.
    """

    name: str
    change: Callable[[Path], None]
    expected: Expected = "damaged"
    verify: str = "damaged"
    sealed: bool = True
    reader: bool = False


@dataclass(frozen=True)
class Outcome:
    """Hold what a command did with a bad folder beside a good one: its verdict, a few words, the CPU time (s).

    `verdict`: whole, damaged, refused, wrong (a figure that nobody doubts), lost (of the good run), crash.
    """

    verdict: str
    words: str
    seconds: float


def make_run(runs: Path, *, sealed: bool = True, watts: float = 300.0, **meta: Any) -> Path:
    """Make a run of a minute: two GPUs at so many W, a package at 100 W, two phases, some work; closed."""
    started = {"mono_ns": START_NS, "utc_ns": 1_700_000_000 * NS, "width_ns": 400, "kernel_error_ns": None}
    started["boot_id"] = BOOT  # type: ignore[assignment]
    given = {"host": "node1", "command": ["python", "train.py"], "owner": NOBODY, "started": started, **meta}
    run = create_run(runs, given, sync=False)
    accuracy = Accuracy("assumed", gain=0.05)
    energy = Spec("energy_j", "energy", "J", "counter", 0.1, accuracy=accuracy)
    gpus = [Stream(f"gpu{k}", "fast", f"gpu:{k}", PERIOD_S, (energy,), device=f"GPU-{k}") for k in (0, 1)]
    package = [Stream("package-0", "fast", "cpu:0", PERIOD_S, (energy,))]
    _write_rows(run, "nvml", gpus, watts)
    _write_rows(run, "rapl", package, 100.0)
    opened = [{"event": "meter", "meter": m, "status": "open", "streams": n} for m, n in (("nvml", 2), ("rapl", 1))]
    _write_lines(run / "node1" / "events.0.jsonl", [*opened, {"event": "stop", "reason": "asked"}])
    _write_lines(run / "node1" / "events.run.jsonl", [{"event": "recorder-started", "segment": 0}])
    middle, end = START_NS + SECONDS // 2 * NS, START_NS + SECONDS * NS
    phases = [("a", START_NS, middle), ("b", middle, end)]
    lines = [line for name, *times in phases for line in phase_lines(name, *times)]
    work = {"t": end, "mark": "work", "from": START_NS, "phase": None, "amounts": {"samples": 640.0}, "count": 1}
    _write_lines(run / "node1" / "marks" / "7-7.jsonl", [*lines, {**work, "at": [end], "rank": 0}])
    ended = {**started, "mono_ns": end, "utc_ns": started["utc_ns"] + SECONDS * NS}
    times = {"start_ns": START_NS, "end_ns": end, "ended": ended}
    end_run(run, {"outcome": "exit", "exit_code": 0, **times}, sync=False)
    if sealed:
        seal_run(run)
    return run


def phase_lines(name: str, start: int, end: int, **more: Any) -> list[dict[str, Any]]:
    """Return the marks of one phase."""
    own = {"n": None, "labels": None, "parent": None, "thread": 7, "rank": 0, **more}
    identity = f"7-{name}"
    return [
        {"t": start, "mark": "begin", "id": identity, "name": name, **own},
        {"t": end, "mark": "end", "id": identity},
    ]


def _write_rows(run: Path, meter: str, streams: list[Stream], watts: float) -> None:
    fields: Any = {"meter": meter, "table": "fast", "segment": 0, "host": "node1", "boot_id": BOOT}
    with JournalWriter(make_journal_path(run / "node1", meter, "fast", 0), fields, streams) as journal:
        count = round((SECONDS + 4) / PERIOD_S)
        times = [START_NS + round((k * PERIOD_S - 2) * NS) for k in range(count)]
        rows = ((s, t, t + 1000, [watts * (t - times[0]) / NS]) for t in times for s in range(len(streams)))
        journal.append_rows(b"".join(pack_row(journal.row, *row) for row in rows))


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps({"t": START_NS, **line}) + "\n" for line in lines))


FILES = {
    "run.json": "run.json",
    "end.json": "end.json",
    "results.json": "results.json",
    "manifest.json": "manifest.json",
    "Parquet": "node1/nvml.fast.parquet",
    "journal": "node1/nvml.fast.0.journal",
    "events": "node1/events.0.jsonl",
    "marks": "node1/marks/7-7.jsonl",
}


def _link_out(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/etc/passwd")


def _put_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _put_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _put_socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):
        made.bind(path.name)  # a path may be too long for a socket's name


def _put_device(path: Path) -> None:
    path.unlink(missing_ok=True)
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)


def _change(path: Path) -> None:
    """Change a file so that it can still be read: other numbers, the same size and time."""
    found, data = path.stat(), path.read_bytes()
    if path.suffix == ".parquet":
        other = make_run(path.parents[2] / ".other", watts=200.0)
        data = (other / "node1" / path.name).read_bytes()
    elif path.suffix == ".journal":
        data = data[:-8] + b"\0\0\0\0\0\0\x59\x41"  # the last count of energy: 6.6 MJ
    else:
        swaps = ((b"65000000000", b"35000000000"), (b'"exit"', b'"lost"'), (b"train.py", b"sleep.py"), (b"640", b"940"))
        for old, new in (*swaps, (b'"nvml"', b'"name"'), (b"sha256", b"sha255")):
            data = data.replace(old, new)
    path.write_bytes(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def _deny(path: Path) -> None:
    path.chmod(0)


PLANTED: dict[str, Callable[[Path], None]] = {
    "a link out": _link_out,
    "a FIFO": _put_fifo,
    "a folder": _put_folder,
    "cut off": _cut,
    "emptied": _empty,
    "deleted": _delete,
    "changed": _change,
}


def _at(name: str, act: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda run: act(run / name)


def _edit(file: str, **values: Any) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        data = json.loads((run / file).read_text())
        (run / file).write_text(json.dumps({**data, **values}))
        (run / "manifest.json").unlink(missing_ok=True)  # as if it had been recorded so

    return change


def _edit_text(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new, 1))
        (run / "manifest.json").unlink(missing_ok=True)

    return change


def _add_lines(name: str, *lines: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        with (run / name).open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    return change


def _nest(levels: int) -> str:
    return "[" * levels + "]" * levels


def _write_text(name: str, text: str) -> Callable[[Path], None]:
    return lambda run: (run / name).write_text(text) and None


def _mark_phases(count: int) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        step = SECONDS * NS // count
        spans = ((f"p{k}", START_NS + k * step, START_NS + (k + 1) * step) for k in range(count))
        with (run / "node1" / "marks" / "8-8.jsonl").open("w") as file:
            file.writelines(json.dumps(line) + "\n" for span in spans for line in phase_lines(*span))

    return change


def _plant_temporary_names(run: Path) -> None:
    """Plant links at names that a process would use if its names could be guessed; the victim is `precious`."""
    victim = run.parent / "precious"
    victim.write_text("precious")
    folders = (run, run / "node1")
    pids = range(os.getpid() - 2, os.getpid() + 40)
    names = [f".{file}.{pid}" for pid in pids for file in ("rows.json", "results.json", "head.json", "manifest.json")]
    for folder in folders:
        for name in (".seal.lock", *names, *(f"{n}.tmp" for n in names), *(f".seal-{pid}" for pid in pids)):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(victim)


def _rename_host(run: Path) -> None:
    (run / "node1").rename(run / "node1\x1b[2J\n")


def _list_kinds() -> Iterable[Kind]:
    refused = {"run.json", "end.json"}
    for label, name in FILES.items():
        for words, act in PLANTED.items():
            expected: Expected = "refused" if label in refused else "damaged"
            verify = "damaged"
            if label == "run.json" and words == "deleted":
                continue  # then it is no run
            if words == "changed" or (label == "end.json" and words == "deleted"):
                expected = "damaged"
            if label == "results.json":
                expected, verify = "whole", "whole"
            elif label == "manifest.json" and words == "deleted":
                expected, verify = "whole", "not verifiable"
            elif label == "journal" and words == "changed":
                continue  # nothing knows its content before it is sealed
            sealed = label != "journal"
            yield Kind(f"{label}: {words}", _at(name, act), expected, verify, sealed)
    for label in ("run.json", "Parquet", "marks"):
        expected = "refused" if label == "run.json" else "damaged"
        yield Kind(f"{label}: a socket", _at(FILES[label], _put_socket), expected)
        yield Kind(f"{label}: a device", _at(FILES[label], _put_device), expected)
        yield Kind(f"{label}: not readable", _at(FILES[label], _deny), expected, reader=True)
    unknown = "not verifiable"
    yield Kind("run.json: nested 100,000 deep", _write_text("run.json", _nest(100_000)), "refused")
    deep = _edit_text("run.json", '"labels": {}', f'"labels": {{"a": {_nest(500)}}}')
    yield Kind("run.json: labels nested 500 deep", deep, "refused", "damaged")
    yield Kind("results.json: nested 100,000 deep", _write_text("results.json", _nest(100_000)), "whole", "whole")
    yield Kind("marks: a line nested 100,000 deep", _add_lines(FILES["marks"], '{"t": 1, "a": ' + _nest(100_000) + "}"))
    huge = "9" * 4000
    yield Kind("run.json: a time of 4,000 digits", _edit_text("run.json", "5000000000", huge), "refused", "damaged")
    yield Kind("end.json: a time of 25 digits", _edit_text("end.json", "65000000000", "9" * 25), "refused", "damaged")
    yield Kind("end.json: NaN for a time", _edit_text("end.json", "65000000000", "NaN"), "refused", "damaged")
    line = '{"t": %s, "mark": "work", "from": 1, "phase": null, "amounts": {"samples": 1}, "count": 1, "rank": 0}'
    yield Kind("marks: a time of 25 digits", _add_lines(FILES["marks"], line % ("9" * 25)))
    yield Kind(
        "marks: an amount of 400 digits",
        _add_lines(FILES["marks"], line.replace(": 1}", f": {'9' * 400}}}") % 1),
        "whole",
        "whole",
    )
    for name, value in (
        ("host", 7),
        ("command", "python train.py"),
        ("labels", []),
        ("started", "today"),
        ("owner", []),
    ):
        yield Kind(f"run.json: {name} of the wrong type", _edit("run.json", **{name: value}), "refused", "damaged")
    for name, value in (("exit_code", "0"), ("start_ns", 1.5), ("ended", 3)):
        yield Kind(f"end.json: {name} of the wrong type", _edit("end.json", **{name: value}), "refused", "damaged")
    yield Kind("end.json: files of the wrong type", _edit("end.json", files=[1]), "refused", "damaged")
    yield Kind("results.json: wrong types", _write_text("results.json", '{"schema": 1, "result": 3}'), "whole", "whole")
    yield Kind(
        "events: wrong types",
        _add_lines(FILES["events"], '{"t": 1, "event": "idle", "from": "x", "to": []}'),
        "refused",
        "whole",
    )
    yield Kind(
        "marks: wrong types",
        _add_lines(FILES["marks"], '{"t": 1, "mark": "begin", "id": [], "name": {}, "labels": 3}'),
        "whole",
        "whole",
    )
    yield Kind("marks: 200,000 phases that were added", _mark_phases(200_000))
    yield Kind(
        "name and label with control characters",
        _edit("run.json", name="\x1b[2J\x1b]0;x\x07\n", labels={"\x1b[1m": "\x00"}),
        "whole",
        unknown,
    )
    control = json.dumps({"t": START_NS, "mark": "begin", "id": "9", "name": "\x1b[2J\n", "n": None})
    yield Kind("phase with control characters", _add_lines(FILES["marks"], control), "whole", "whole")
    yield Kind("host folder with control characters", _rename_host)
    yield Kind("temporary names: links to a victim", _plant_temporary_names, "whole", "whole")
    yield Kind("temporary names: links to a victim, not sealed", _plant_temporary_names, "whole", "", sealed=False)


KINDS = {kind.name: kind for kind in _list_kinds()}


def make_whole(folder: Path, *, sealed: bool) -> tuple[Path, Path]:
    """Make a store of two whole runs in a folder, analysed where they are sealed; return both."""
    good, bad = make_run(folder, name="good"), make_run(folder, name="bad", sealed=sealed)
    _invoke("show", str(good), "--json", runs=folder)
    if sealed:
        _invoke("show", str(bad), "--json", runs=folder)
    return good, bad


def make_store(runs: Path, kind: Kind, whole: tuple[Path, Path] | None = None) -> tuple[Path, Path]:
    """Make a store of a good run and one of a kind, from a copy of `whole` ones; return both.

    Raises OSError where the kind cannot be made.
    """
    if whole is None:
        good, bad = make_whole(runs, sealed=kind.sealed)
    else:
        good, bad = (Path(shutil.copytree(each, runs / each.name)) for each in whole)
    if "results.json" not in kind.name:  # the results of before would be right
        for name in ("results.json", "head.json", "rows.json"):
            (bad / name).unlink(missing_ok=True)
    kind.change(bad)
    return good, bad


def tell_expected(kind: Kind, command: str) -> str:
    """Return the verdict that a command is to have of a kind."""
    if command == "verify":
        return kind.verify
    if command == "query":
        return "whole" if kind.expected == "whole" else "damaged"
    # The dashboard follows no link that leads out of the store.
    return "refused" if command == "dashboard" and "a link out" in kind.name else kind.expected


def _invoke(*words: str, runs: Path) -> Any:
    commands = importlib.import_module("joulelab.cli.group").commands
    return CliRunner().invoke(commands, list(words), env={"JOULELAB_RUNS": str(runs), "COLUMNS": "200"})


def call(command: str, runs: Path, good: Path, bad: Path) -> Outcome:
    """Run a command over a store and judge what it did with the bad run, and with the good one beside it."""
    begin = time.process_time()  # of this process: others may keep the machine busy
    judge = {"show": _show, "ls": _ls, "query": _query, "verify": _verify, "dashboard": _look}[command]
    try:
        verdict, words = judge(runs, good, bad)
    except Exception as error:
        verdict, words = "crash", f"{type(error).__name__}: {error}"
    victim = runs / "precious"
    if victim.exists() and victim.read_text() != "precious":
        verdict, words = "wrong", f"overwrote another file; {words}"
    return Outcome(verdict, " ".join(words.split())[:100], time.process_time() - begin)


ENERGY_J = (2 * 300 + 100) * SECONDS


def _is_right(energy: float | None) -> bool:
    return energy is not None and abs(energy - ENERGY_J) < 0.01 * ENERGY_J


def _judge_energy(energy: float | None, problem: str | None) -> tuple[str, str]:
    if problem and energy is None:
        return "damaged", problem
    if _is_right(energy):
        return ("damaged", problem) if problem else ("whole", "the right figure")
    return ("damaged", problem) if problem else ("wrong", f"{energy} J, and no failed check")


def _failed(result: Any) -> tuple[str, str] | None:
    """Return the verdict of a command that did not end well, None for one that did."""
    error = result.exception
    if error is None or (isinstance(error, SystemExit) and error.code in (0, None)):
        return None
    if type(error).__module__.startswith("joulelab") or isinstance(error, SystemExit):
        return "refused", str(error)
    return "crash", f"{type(error).__name__}: {error}"


def _show(runs: Path, good: Path, bad: Path) -> tuple[str, str]:
    text = _invoke("show", str(bad), runs=runs)
    if failed := _failed(text):
        return failed
    if any(c in text.stdout for c in "\x1b\x07"):
        return "wrong", "control characters on the terminal"
    found = _invoke("show", str(bad), "--json", runs=runs)
    if failed := _failed(found):
        return failed
    data = json.loads(found.stdout)
    problem = next((c["message"] for c in data["checks"] if c["status"] == "failed"), None)
    energy = (data["energy"] or {}).get("value")
    if not problem and data["work"].get("samples") not in (640.0, 641.0):
        return "wrong", f"work {data['work']}, and no failed check"
    if energy is None and not problem:
        return "wrong", "no figure, and no failed check"
    return _judge_energy(energy, problem)


def _ls(runs: Path, good: Path, bad: Path) -> tuple[str, str]:
    text = _invoke("ls", runs=runs)
    found = _invoke("ls", "--json", runs=runs)
    if failed := _failed(text) or _failed(found):
        return "lost", failed[1]
    rows = {row["run"]: row for row in json.loads(found.stdout)}
    if not _is_right(((rows.get(good.name) or {}).get("energy") or {}).get("value")):
        return "lost", "the good run"
    if bad.name not in rows:
        return "wrong", "the run is not listed"
    if any(c in text.stdout for c in "\x1b\x07"):
        return "wrong", "control characters on the terminal"
    row = rows[bad.name]
    verdict, words = _judge_energy((row.get("energy") or {}).get("value"), row["problem"])
    return ("refused" if verdict == "damaged" and "start_utc" not in row else verdict), words


def _query(runs: Path, good: Path, bad: Path) -> tuple[str, str]:
    sql = "SELECT run, sum(energy_j) FILTER (counted) AS j FROM runs LEFT JOIN energies USING (run) GROUP BY run"
    found = _invoke("query", sql, "--json", runs=runs)
    if failed := _failed(found):
        return "lost", failed[1]
    rows = {row["run"]: row["j"] for row in json.loads(found.stdout)}
    if not _is_right(rows.get(good.name)):
        return "lost", "the good run"
    warned = next((line for line in found.stderr.splitlines() if bad.name in line), None)
    return _judge_energy(rows.get(bad.name), warned and warned.partition(": ")[2])


def _verify(runs: Path, good: Path, bad: Path) -> tuple[str, str]:
    found = _invoke("verify", str(bad), "--json", runs=runs)
    error = found.exception
    if error is not None and not isinstance(error, SystemExit):
        return _failed(found) or ("crash", "")
    if found.exit_code == 2:
        return "none", "there is no such command"
    (data,) = json.loads(found.stdout)
    assert found.exit_code == (1 if data["status"] == "damaged" else 0)
    _failed(_invoke("verify", str(bad), str(good), runs=runs))
    return data["status"], "; ".join(data["problems"])


def _look(runs: Path, good: Path, bad: Path) -> tuple[str, str]:
    module = importlib.import_module("joulelab.dashboard.index")
    now = [0.0]
    index = module.Index(runs, None, clock=lambda: now[0])
    for _ in range(5):
        index.look()
        while index.work():
            now[0] += 1
        now[0] += 60.0
    entries = {entry.id: entry for entry in index._snapshot.entries}
    energies = {name: entry.energy and entry.energy.value for name, entry in entries.items()}
    if not _is_right(energies[good.name]):
        return "lost", "the good run"
    if bad.name not in entries:
        return "wrong", "the run is not listed"
    entry = entries[bad.name]
    verdict, words = _judge_energy(energies[bad.name], entry.problem or None)
    return ("refused" if verdict == "damaged" and entry.duration_s is None else verdict), words
