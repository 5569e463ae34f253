"""Build `libnvidia-ml.so.1` from our own C files, once per source and compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import JoulelabError, MissingDependency
from joulelab.twin.truth_file import make_c_header

if TYPE_CHECKING:
    from collections.abc import Mapping

LIBRARY = "libnvidia-ml.so.1"
SOURCES = Path(__file__).with_name("csrc")
_FLAGS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-Wextra",
    f"-Wl,-soname,{LIBRARY}",
)


def find_compiler(environment: Mapping[str, str] | None = None) -> str:
    """Return the path of a C compiler. Raises MissingDependency."""
    environment = os.environ if environment is None else environment
    for name in filter(None, (environment.get("CC"), "cc", "gcc", "clang")):
        if found := shutil.which(name, path=environment.get("PATH")):
            return found
    raise MissingDependency(
        "cannot build the NVML library of the twin",
        where="twin",
        why="no C compiler: none of $CC, cc, gcc, clang is on PATH",
        next="install one (`apt install gcc libc6-dev`, `dnf install gcc`, `conda install gcc_linux-64`) and try again",
    )


def cache_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of built libraries, by the XDG rules."""
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_CACHE_HOME") or ""
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "joulelab" / "twins"


def build_library(cache: Path | None = None, cc: str | None = None) -> Path:
    """Return the library, built if needed. Raises MissingDependency, JoulelabError.

    No compiler is needed if the cache has a library of these sources.
    """
    files = sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")])
    digest = hashlib.sha256(
        "\0".join([make_c_header(), *_FLAGS, *(f.read_text() for f in files)]).encode()
    ).hexdigest()[:16]
    built = (cache or cache_directory()) / f"{os.uname().machine}-{digest}" / LIBRARY
    if not built.exists():
        _compile_library(built, cc or find_compiler(), [str(f) for f in files if f.suffix == ".c"])
    return built


def _compile_library(target: Path, cc: str, files: list[str]) -> None:
    """Build next to the target and rename, so that two builders do not collide."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        (Path(scratch) / "layout.h").write_text(make_c_header())
        made = Path(scratch) / LIBRARY
        command = [cc, *_FLAGS, f"-I{scratch}", f"-I{SOURCES}", "-o", str(made), *files, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise JoulelabError(
                "the C compiler failed on the NVML library",
                where="twin",
                why=(done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[0],
                next="install the C library's headers (`apt install libc6-dev`), or set CC to another compiler",
            )
        made.replace(target)
