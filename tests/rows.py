"""Test all rows of a table in one case: a case of its own costs 2 ms, most rows far less."""

from __future__ import annotations

import functools
import inspect
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Test = Callable[..., None]


def every_row(
    names: str | tuple[str, ...], rows: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test for each row, as `pytest.mark.parametrize` does, in one case whose failure names all rows that fail.

    For tests whose rows leave nothing behind: each row has its own `tmp_path`; the other fixtures, the home and the
    working folder are those of all rows.
    """
    fields = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [dict(zip(fields, row if len(fields) > 1 else (row,), strict=True)) for row in rows]
    assert table, "a table without rows tests nothing"

    def decorate(function: Test) -> Test:
        @functools.wraps(function)
        def test(**fixtures: Any) -> None:
            failures = [text for number, row in enumerate(table) if (text := _try_row(function, number, row, fixtures))]
            assert not failures, f"{len(failures)} of {len(table)} rows fail\n" + "\n".join(failures)

        kept = [p for p in inspect.signature(function).parameters.values() if p.name not in fields]
        test.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
        return test

    return decorate


def _try_row(function: Test, number: int, row: dict[str, Any], fixtures: dict[str, Any]) -> str:
    if "tmp_path" in fixtures:
        fixtures = fixtures | {"tmp_path": fixtures["tmp_path"] / str(number)}
        fixtures["tmp_path"].mkdir()
    try:
        function(**row, **fixtures)
    except (Exception, pytest.fail.Exception) as error:
        places = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[1:]]
        return f"{row}: {type(error).__name__}: {error} ({' '.join(places)})"
    return ""
