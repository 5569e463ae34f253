from __future__ import annotations

from typing import Any

import pytest
from tests.codes import raises_code

from joulelab.store.upgrade import SCHEMA, STEPS, Document, upgrade_document


def rename(document: Document, data: dict[str, Any]) -> dict[str, Any]:
    return {("title" if k == "name" and document == "run" else k): v for k, v in data.items()}


def add(document: Document, data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "added": True}


def test_older_documents_go_through_every_step() -> None:
    old = {"schema": 1, "name": "x"}
    assert upgrade_document("run", old, where="r", steps={1: rename, 2: add}, schema=3) == {
        "schema": 3,
        "title": "x",
        "added": True,
    }
    assert upgrade_document("end", old, where="r", steps={1: rename, 2: add}, schema=3) == {
        "schema": 3,
        "name": "x",
        "added": True,
    }
    assert old == {"schema": 1, "name": "x"}
    assert upgrade_document("run", {"schema": 2, "title": "x"}, where="r", steps={1: rename, 2: add}, schema=3)["added"]


def test_the_chain_has_no_hole() -> None:
    assert sorted(STEPS) == list(range(1, SCHEMA))
    with raises_code("store.old-schema"):
        upgrade_document("run", {"schema": 1}, where="r", steps={2: add}, schema=3)


def test_newer_documents_are_refused() -> None:
    with raises_code("newer-schema"):
        upgrade_document("run", {"schema": 2}, where="r", steps={}, schema=1)


@pytest.mark.parametrize("version", [None, "1", 1.0, True])
def test_a_document_without_version_is_refused(version: object) -> None:
    with raises_code("store.no-schema"):
        upgrade_document("run", {"schema": version}, where="r")
