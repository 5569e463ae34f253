"""Look into a notebook, put parameters into it, and mark its cells. A notebook is the plain data of its file."""

from __future__ import annotations

import ast
import keyword
import re
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.marks import MarkWriter

PARAMETERS_TAG = "parameters"
INJECTED_TAG = "injected-parameters"
SKIPPED_TAG = "skip-execution"
BETWEEN_CELLS = "between cells"
# Set for a kernel whose cells are marked by whoever runs it: the name that they are marked with.
NOTEBOOK_VARIABLE = "JOULELAB_NOTEBOOK"
# Tags that tell tools what to do with a cell are no titles.
_TOOL_TAGS = re.compile(r"(hide|remove)[-_].*|parameters|injected-parameters|raises-exception|skip-execution|scroll.*")
_INTEGER = re.compile(r"[+-]?(0|[1-9]\d*)")
_FLOAT = re.compile(r"[+-]?((\d+\.\d*|\.\d+)([eE][+-]?\d+)?|\d+[eE][+-]?\d+)")
# The magic of a measured cell.
_MAGIC_LINE = re.compile(r"\A%%joulelab\b.*\n?")
MOST_LETTERS = 60


class CellPhases:
    """Mark phases one after another: each begins where the one before ends, so that nothing lies between them.

    The label `notebook` tells that phases of other processes (the kernel's) that lie inside belong into it. A cell's
    number is a part of its name, so that no two cells are taken for one kind of phase.
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
    """Return what a cell is called: by a tag, or by a comment in its first line; empty where it has neither."""
    for tag in get_tags(cell):
        if not _TOOL_TAGS.fullmatch(tag):
            return tag[:MOST_LETTERS]
    text = _MAGIC_LINE.sub("", get_source(cell).lstrip())
    first = text.strip().partition("\n")[0].strip()
    return first.lstrip("#% ").rstrip()[:MOST_LETTERS] if first.startswith("#") else ""


def get_language(notebook: Mapping[str, Any]) -> str:
    """Return the language of a notebook in small letters, python where it does not tell."""
    told = _get_metadata(notebook, "kernelspec", "language") or _get_metadata(notebook, "language_info", "name")
    return (told or "python").lower()


def get_kernel_name(notebook: Mapping[str, Any]) -> str:
    """Return the name of the kernel that a notebook asks for, empty where it does not."""
    return _get_metadata(notebook, "kernelspec", "name")


def format_literal(text: str) -> str:
    """Return a value as Python writes it: numbers, true and false as such, everything else as text."""
    if _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text):
        return text
    return text.capitalize() if text in ("true", "false", "True", "False") else repr(text)


def format_parameters(parameters: Mapping[str, str]) -> str:
    """Return the text of the cell that sets parameters."""
    return "\n".join(["# Parameters", *(f"{name} = {format_literal(value)}" for name, value in parameters.items())])


def find_parameters_place(notebook: Mapping[str, Any]) -> int:
    """Return where the cell that sets parameters belongs: after the one tagged `parameters`, or first of all."""
    return next((k + 1 for k, cell in enumerate(notebook["cells"]) if _has_defaults(cell)), 0)


def check_parameters(notebook: Mapping[str, Any], names: Sequence[str], *, where: str) -> None:
    """Refuse parameters that the notebook cannot take. Raises ConfigError with the nearest name."""
    if not names:
        return
    if get_language(notebook) != "python":
        why = f"it is in {get_language(notebook)}"
        raise ConfigError("it takes no parameters", where=where, why=why, next="parameters are for Python notebooks")
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ConfigError(f"{name!r} is no name of a variable", where=where, next="write it as NAME=VALUE")
    known = _list_defaults(notebook)
    for name in names:
        if known is not None and name not in known:
            why = "its cell tagged `parameters` does not set it"
            raise ConfigError(f"there is no parameter {name!r}", where=where, why=why, next=suggest_name(name, known))


def _get_metadata(notebook: Mapping[str, Any], table: str, key: str) -> str:
    found = notebook.get("metadata", {}).get(table)
    return str(found.get(key) or "") if isinstance(found, dict) else ""


def _has_defaults(cell: Mapping[str, Any]) -> bool:
    return cell.get("cell_type") == "code" and PARAMETERS_TAG in get_tags(cell)


def _list_defaults(notebook: Mapping[str, Any]) -> list[str] | None:
    """Return the names that the cell tagged `parameters` sets; None where there is none or it cannot be told."""
    at = find_parameters_place(notebook)
    if not at:
        return None
    try:
        tree = ast.parse(get_source(notebook["cells"][at - 1]))
    except (SyntaxError, ValueError):
        return None  # a line for IPython, say
    nodes = (node for statement in tree.body for node in ast.walk(statement))
    return list(dict.fromkeys(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)))
