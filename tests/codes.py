"""Expect codes of errors, and list those in the source: programs of others know them, so none is renamed unnoticed."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import joulelab
from joulelab.core import errors, setting
from joulelab.core.errors import JoulelabError

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(joulelab.__file__).parent


def list_error_classes() -> dict[str, str]:
    """Return the codes of the classes of errors in core, by the names of the classes."""
    found = [*vars(errors).values(), setting.OutOfBounds]
    return {c.__name__: c.code for c in found if isinstance(c, type) and issubclass(c, JoulelabError)}


def list_error_codes(package: str) -> set[str]:
    """Return the codes that errors are given in a package; each begins with the code of its class."""
    classes = list_error_classes()
    found: set[str] = set()
    for call, name in _find_calls(package, "code="):
        for given in (k.value for k in call.keywords if k.arg == "code" and name in classes):
            codes = _find_strings(given) - {""}
            assert all(code.startswith(f"{classes[name]}.") for code in codes), (name, codes)
            found |= codes
    return found


def list_given_codes(package: str, called: str, place: int = 0) -> set[str]:
    """Return the strings that are given to a function or class of a name, at a place or as `code`."""
    calls = [call for call, name in _find_calls(package, f"{called}(") if name == called]
    given = [call.args[place] for call in calls if len(call.args) > place]
    given += [k.value for call in calls for k in call.keywords if k.arg == "code"]
    return {text for node in given for text in _find_strings(node) if re.fullmatch(r"[a-z-]*[a-z](\.[a-z-]+)?", text)}


def list_strings(package: str) -> set[str]:
    """Return all strings in the source of a package."""
    return {text for tree in read_trees(package) for text in _find_strings(tree)}


@functools.cache
def read_trees(package: str) -> list[ast.Module]:
    """Return the syntax trees of the modules of a package."""
    return [_read_tree(path) for path in sorted((SOURCE / package).rglob("*.py"))]


@functools.cache
def _read_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _find_calls(package: str, text: str) -> list[tuple[ast.Call, str]]:
    """Return the calls in those modules of a package that have a text: to walk through all of them takes a second."""
    paths = [path for path in sorted((SOURCE / package).rglob("*.py")) if text in path.read_text()]
    nodes = (node for path in paths for node in ast.walk(_read_tree(path)))
    return [(n, n.func.id) for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]


def _find_strings(tree: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


@contextlib.contextmanager
def raises_code(code: str) -> Iterator[pytest.ExceptionInfo[JoulelabError]]:
    """Expect an error with this code."""
    with pytest.raises(JoulelabError) as caught:
        yield caught
    assert caught.value.code == code, caught.value
