"""Run a notebook without a browser: `python -m joulelab.run.notebook FILE [NAME=VALUE...]`.

Each code cell is a phase `cell N` of the run that records it; the kernel's start and end and the time between cells
are phases as well, so that together they are the whole. Nothing is written unless `--out` names a file.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import keyword
import os
import re
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.text import read_seconds, suggest_name
from joulelab.run.workload_registry import read_pairs, refuse_missing_library

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.marks import MarkWriter

PARAMETERS_TAG = "parameters"
INJECTED_TAG = "injected-parameters"
SKIPPED_TAG = "skip-execution"
BETWEEN_CELLS = "between cells"
# Set for a kernel whose cells are marked by the process that runs it: the name of the notebook.
NOTEBOOK_VARIABLE = "JOULELAB_NOTEBOOK"
# Tags for tools are no titles.
_TOOL_TAGS = re.compile(r"(hide|remove)[-_].*|parameters|injected-parameters|raises-exception|skip-execution|scroll.*")
_INTEGER = re.compile(r"[+-]?(0|[1-9]\d*)")
_FLOAT = re.compile(r"[+-]?((\d+\.\d*|\.\d+)([eE][+-]?\d+)?|\d+[eE][+-]?\d+)")
# The magic of a measured cell.
_MAGIC_LINE = re.compile(r"\A%%joulelab\b.*\n?")
MOST_LETTERS = 60


class CellPhases:
    """Mark phases one after another: each begins where the one before ends, without a gap.

    With the label `notebook`, phases of other processes (the kernel's) inside it belong to it. The number of a cell is
    part of its name, so that two cells are never one kind of phase.
    """

    def __init__(self, writer: MarkWriter | None, notebook: str) -> None:
        self._writer, self._notebook = writer, notebook
        self._open: str | None = None

    def next(self, name: str, *, title: str = "", at_ns: int | None = None) -> None:
        """End the phase that is open, and begin another."""
        now = monotonic_ns() if at_ns is None else at_ns
        self.end(now)
        if self._writer is not None:
            labels = {"notebook": self._notebook} | ({"title": title} if title else {})
            self._open = self._writer.begin(name, None, labels, at_ns=now)

    def end(self, at_ns: int | None = None) -> None:
        """End the phase that is open."""
        if self._writer is not None and self._open is not None:
            self._writer.end(self._open, at_ns=at_ns)
        self._open = None


def get_source(cell: Mapping[str, Any]) -> str:
    """Return a cell's text, which files hold as one text or as lines."""
    text = cell.get("source", "")
    return text if isinstance(text, str) else "".join(text)


def get_tags(cell: Mapping[str, Any]) -> list[str]:
    """Return a cell's tags."""
    found = cell.get("metadata", {}).get("tags", [])
    return [str(tag) for tag in found] if isinstance(found, list) else []


def has_code(cell: Mapping[str, Any]) -> bool:
    """Return whether a code cell has anything to run."""
    return bool(get_source(cell).strip()) and SKIPPED_TAG not in get_tags(cell)


def number_cells(notebook: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the cells that are run, counted from 1 over all code cells."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [number for number, cell in enumerate(code, 1) if has_code(cell)]


def get_title(cell: Mapping[str, Any]) -> str:
    """Return the title of a cell: a tag, or the comment in its first line; empty without either."""
    for tag in get_tags(cell):
        if not _TOOL_TAGS.fullmatch(tag):
            return tag[:MOST_LETTERS]
    text = _MAGIC_LINE.sub("", get_source(cell).lstrip())
    first = text.strip().partition("\n")[0].strip()
    return first.lstrip("#% ").rstrip()[:MOST_LETTERS] if first.startswith("#") else ""


def get_language(notebook: Mapping[str, Any]) -> str:
    """Return the language of a notebook in small letters, python by default."""
    name = _get_metadata(notebook, "kernelspec", "language") or _get_metadata(notebook, "language_info", "name")
    return (name or "python").lower()


def get_kernel_name(notebook: Mapping[str, Any]) -> str:
    """Return the name of the kernel that a notebook needs, empty without one."""
    return _get_metadata(notebook, "kernelspec", "name")


def format_literal(text: str) -> str:
    """Return a value as Python code: numbers, true and false as such, everything else as text."""
    if _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text):
        return text
    return text.capitalize() if text in ("true", "false", "True", "False") else repr(text)


def format_parameters(parameters: Mapping[str, str]) -> str:
    """Return the text of the cell that sets parameters."""
    return "\n".join(["# Parameters", *(f"{name} = {format_literal(value)}" for name, value in parameters.items())])


def find_parameters_place(notebook: Mapping[str, Any]) -> int:
    """Return the index for the cell that sets parameters: after the one tagged `parameters`, else 0."""
    return next((k + 1 for k, cell in enumerate(notebook["cells"]) if _has_defaults(cell)), 0)


def check_parameters(notebook: Mapping[str, Any], names: Sequence[str], *, where: str) -> None:
    """Refuse parameters that the notebook cannot take. Raises ConfigError with the nearest name."""
    if not names:
        return
    if get_language(notebook) != "python":
        why = f"its language is {get_language(notebook)}"
        then = "parameters are for Python notebooks"
        raise ConfigError("it takes no parameters", where=where, why=why, next=then, code="config.no-parameters")
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            what = f"{name!r} is not the name of a variable"
            raise ConfigError(what, where=where, next="write it as NAME=VALUE", code="config.wrong-name")
    known = _list_defaults(notebook)
    for name in names:
        if known is not None and name not in known:
            why = "its cell tagged `parameters` does not set it"
            what, then = f"there is no parameter {name!r}", suggest_name(name, known)
            raise ConfigError(what, where=where, why=why, next=then, code="config.unknown-parameter")


def _get_metadata(notebook: Mapping[str, Any], table: str, key: str) -> str:
    found = notebook.get("metadata", {}).get(table)
    return str(found.get(key) or "") if isinstance(found, dict) else ""


def _has_defaults(cell: Mapping[str, Any]) -> bool:
    return cell.get("cell_type") == "code" and PARAMETERS_TAG in get_tags(cell)


def _list_defaults(notebook: Mapping[str, Any]) -> list[str] | None:
    """Return the names that the cell tagged `parameters` sets; None without such a cell, or if it cannot be parsed."""
    at = find_parameters_place(notebook)
    if not at:
        return None
    try:
        tree = ast.parse(get_source(notebook["cells"][at - 1]))
    except (SyntaxError, ValueError):
        return None  # such as a line for IPython
    nodes = (node for statement in tree.body for node in ast.walk(statement))
    return list(dict.fromkeys(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)))


OPTIONS = ("--pause", "--out", "--kernel")
# Kernels that stand for the Python that joulelab runs in.
OWN_KERNELS = ("", "python3", "python")
MOST_PAUSE_S = 86400.0
FAILED, WRONG = 1, 2


@dataclass(frozen=True, slots=True)
class NotebookRequest:
    """Hold a notebook to run, its parameters, the file for a copy with outputs, and the pause between cells.

    `kernel` names an installed kernel; empty stands for the one that the notebook names.
    """

    file: Path
    parameters: Mapping[str, str] = field(default_factory=dict)
    out: Path | None = None
    pause_s: float = 0.0
    kernel: str = ""


def make_notebook_command(request: NotebookRequest) -> list[str]:
    """Return the words that run a notebook. Raises ConfigError, MissingDependency before anything is started."""
    check_notebook(request)
    words = [sys.executable, "-m", "joulelab.run.notebook", str(request.file)]
    words += [f"--pause={request.pause_s:g}"] if request.pause_s else []
    words += [f"--kernel={request.kernel}"] if request.kernel else []
    words += [f"--out={request.out}"] if request.out is not None else []
    return [*words, *(f"{name}={value}" for name, value in request.parameters.items())]


def read_notebook_words(words: Sequence[str]) -> NotebookRequest:
    """Read the words FILE, NAME=VALUE, --pause TIME, --out FILE, --kernel NAME. Raises ConfigError."""
    if not words or words[0].startswith("--"):
        then = "name its file first, then NAME=VALUE for each parameter"
        raise ConfigError("no notebook is named", next=then, code="config.no-notebook")
    options: dict[str, str] = {}
    rest, left = [], list(words[1:])
    while left:
        word = left.pop(0)
        if not word.startswith("--"):
            rest.append(word)
            continue
        name, equals, value = word.partition("=")
        if name not in OPTIONS:
            what = f"there is no option {name!r} of a notebook"
            raise ConfigError(what, where=words[0], next=suggest_name(name, OPTIONS), code="config.unknown-option")
        if not equals and not left:
            raise ConfigError(
                f"{name} has no value", where=words[0], next=f"write {name}=VALUE", code="config.missing-value"
            )
        options[name] = value if equals else left.pop(0)
    return NotebookRequest(
        Path(words[0]),
        read_pairs(rest, where=words[0]),
        Path(options["--out"]) if options.get("--out") else None,
        _read_pause(options.get("--pause", "0"), where=words[0]),
        options.get("--kernel", ""),
    )


def check_notebook(request: NotebookRequest) -> None:
    """Refuse a notebook that cannot be run: its file, kernel or copy. Raises ConfigError, MissingDependency."""
    notebook = load_notebook(request.file)
    check_parameters(notebook, list(request.parameters), where=str(request.file))
    if request.out is not None:
        _check_out(request.out, request.file)
    require_library("nbclient", request.file)
    require_library("nbformat", request.file)
    if is_own_kernel(request, notebook):
        require_library("ipykernel", request.file)
    else:
        from joulelab.run.notebook_kernel import KernelFinder

        KernelFinder().choose(request, notebook)


def _check_out(out: Path, file: Path) -> None:
    """Refuse a copy that cannot be written, before the notebook has run. Raises ConfigError."""
    if out.resolve() == file.resolve():
        what = "the copy would replace the notebook"
        raise ConfigError(what, where="--out", next="name another file", code="config.replaces-notebook")
    try:
        why = "it is a folder" if out.is_dir() else None
        with tempfile.TemporaryFile(dir=out.parent):
            pass  # permissions are not enough: the file system may be read-only, or full
    except OSError as error:
        why = f"{out.parent}: {error.strerror}"
    if why:
        what = f"the copy cannot be written to {out}"
        raise ConfigError(what, where="--out", why=why, next="name another file", code="config.not-written")


def is_own_kernel(request: NotebookRequest, notebook: Mapping[str, Any]) -> bool:
    """Return whether the kernel to start is that of our own Python."""
    return (request.kernel or get_kernel_name(notebook)) in OWN_KERNELS and get_language(notebook) == "python"


def require_library(library: str, file: Path) -> None:
    """Refuse to go on without a library. Raises MissingDependency."""
    if importlib.util.find_spec(library) is None:
        refuse_missing_library(str(file), library)


def is_program(file: Path) -> bool:
    """Return whether a file is a program; on some file systems every file is executable, notebooks too."""
    try:
        with file.open("rb") as opened:
            return os.access(file, os.X_OK) and opened.read(4).startswith((b"#!", b"\x7fELF"))
    except OSError:
        return False


def load_notebook(file: Path) -> dict[str, Any]:
    """Return a notebook's file as plain data. Raises ConfigError for any other file."""
    try:
        notebook = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            "the notebook cannot be read", where=str(file), why=error.strerror or str(error), code="config.unreadable"
        ) from error
    except (ValueError, RecursionError) as error:
        raise _refuse_notebook(file, f"its text is not JSON: {error}") from error
    if not isinstance(notebook, dict) or not isinstance(notebook.get("nbformat"), int):
        raise _refuse_notebook(file, "it has no `nbformat`")
    if notebook["nbformat"] != 4:
        raise _refuse_notebook(file, f"its format is {notebook['nbformat']}, not 4", "save it with a newer Jupyter")
    listed = notebook.get("cells")
    if not isinstance(listed, list) or not all(_is_cell(cell) for cell in listed):
        raise _refuse_notebook(file, "it has no list of cells")
    if not isinstance(notebook.setdefault("metadata", {}), dict):
        raise _refuse_notebook(file, "its metadata is not a table")
    return notebook


def _is_cell(cell: Any) -> bool:
    if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
        return False
    if not isinstance(cell.get("metadata", {}), dict):
        return False
    text = cell.get("source", "")
    return isinstance(text, str) or (isinstance(text, list) and all(isinstance(line, str) for line in text))


def _refuse_notebook(
    file: Path, why: str, then: str = "name a Jupyter notebook, or run it as a command"
) -> ConfigError:
    return ConfigError("this is not a notebook", where=str(file), why=why, next=then, code="config.not-a-notebook")


def _read_pause(text: str, *, where: str) -> float:
    with contextlib.suppress(ConfigError):
        seconds = read_seconds(text)
        if seconds <= MOST_PAUSE_S:
            return seconds
    raise ConfigError(
        f"the pause is {text!r}", where=where, next="write it as 10, 10s, 500ms or 2m", code="config.wrong-value"
    )


def main(words: Sequence[str]) -> int:
    """Run a notebook; return 0, or 1 if a cell failed or its kernel died, 2 if it cannot be run at all."""
    began_ns = monotonic_ns()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is a kernel to end
    try:
        request = read_notebook_words(words)
        check_notebook(request)
        from joulelab.run.notebook_kernel import run_notebook

        ended = run_notebook(request, load_notebook(request.file), began_ns)
    except JoulelabError as error:
        print_message(str(error))
        return WRONG if isinstance(error, ConfigError) else FAILED
    if ended.signal is not None:
        _die_by_signal(ended.signal)
    return ended.exit_code


def print_message(text: str) -> None:
    """Print a line on standard error."""
    try:
        sys.stderr.write(f"joulelab: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # closed


def _die_by_signal(number: int) -> NoReturn:
    """End this process by a signal."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
