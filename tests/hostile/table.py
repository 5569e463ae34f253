"""Print what each command does with each kind of hostile folder: `python -m tests.hostile.table > table.md`.

Each cell is made in a process of its own with a time limit, as somebody else than root where only he meets it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.hostile.folders import COMMANDS, KINDS, Kind, call, make_store

LIMIT_S = 180.0
SOMEBODY = 65534


def judge(kind: Kind, command: str, *, list_modules: bool = False) -> dict[str, object]:
    """Run one command over a store of one kind in a child; return its verdict, words, time (s) and memory (MB)."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    folder.chmod(0o755)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        _act(folder, kind, command, write, list_modules=list_modules)
    os.close(write)
    try:
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            done, _, used = os.wait4(child, os.WNOHANG)
            if done:
                with open(read, "rb", closefd=False) as file:
                    answer = file.read()
                found = json.loads(answer) if answer else {"verdict": "crash", "words": "it died"}
                return {**found, "mb": used.ru_maxrss // 1024}
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
        os.wait4(child, 0)
        return {"verdict": "hangs", "words": "", "seconds": LIMIT_S, "mb": 0}
    finally:
        os.close(read)
        shutil.rmtree(folder, ignore_errors=True)


def _act(folder: Path, kind: Kind, command: str, write: int, *, list_modules: bool) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    try:
        if kind.reader and not os.geteuid():
            os.chown(folder, SOMEBODY, SOMEBODY)
            os.setgid(SOMEBODY)
            os.setuid(SOMEBODY)
        good, bad = make_store(folder / "runs", kind)
        found = call(command, folder / "runs", good, bad)
        said: dict[str, object] = {"verdict": found.verdict, "words": found.words, "seconds": found.seconds}
    except FileNotFoundError as error:
        said = {"verdict": "none", "words": f"there is no {Path(error.filename or '').name}", "seconds": 0.0}
    except BaseException as error:
        said = {"verdict": "crash", "words": repr(error), "seconds": 0.0}
    if list_modules:
        said["modules"] = [name for name in sys.modules if "joulelab" in name or "." not in name]
    os.write(write, json.dumps(said).encode())
    os._exit(0)


def _load_modules() -> None:
    """Load all that the commands need: somebody else may not be allowed to read Python's own files."""
    kind = Kind("whole", lambda _: None, "whole", "whole")
    found = [judge(kind, command, list_modules=True) for command in COMMANDS]
    for name in dict.fromkeys(name for each in found for name in each["modules"]):  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def main() -> None:
    _load_modules()
    print("| kind | " + " | ".join(COMMANDS) + " |")
    print("|---|" + "---|" * len(COMMANDS))
    bad = 0
    for name, kind in KINDS.items():
        if len(sys.argv) > 1 and not any(word in name for word in sys.argv[1:]):
            continue
        cells = []
        for command in COMMANDS:
            found = judge(kind, command)
            bad += found["verdict"] in ("crash", "hangs", "wrong", "lost")
            slow = f" {found['seconds']:.0f} s, {found['mb']} MB" if float(str(found["seconds"])) > 2 else ""
            words = f": {found['words']}" if found["verdict"] in ("crash", "wrong", "lost", "none") else ""
            verdict = (
                f"**{found['verdict']}**"
                if found["verdict"] in ("crash", "hangs", "wrong", "lost")
                else found["verdict"]
            )
            cells.append(f"{verdict}{words}{slow}".replace("|", "/"))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(
        f"\n{len(KINDS)} kinds; {bad} cells in bold: crashed, hung, lost other runs, or gave a wrong figure in silence"
    )


if __name__ == "__main__":
    main()
