"""The table of what meters were tried on has every meter; `python -m tests.docs.tried` writes it."""

from __future__ import annotations

import re

from tests.docs.tried import PAGE, TABLE, write_table

NAME = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def test_the_table_of_the_page_has_every_meter():
    found = TABLE.search(PAGE.read_text())
    assert found is not None
    assert NAME.findall(found[0]) == NAME.findall(write_table())
