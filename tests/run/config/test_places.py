from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from joulelab.run.config.places import find_lines, line_of
from joulelab.run.config.write import toml

TEXT = '''# name = "not this"
name = "x"
list = [
  1,  # [no.table]
  2,
]
text = """
[not.a.table]
key = 1
"""
raw = \'\'\'
other = 1\'\'\'
"quoted key" = 1
a.b.c = { inner = 1 }

[knobs]
cap = 1 # = [
[workloads."my train".knobs]
x = "}]"
[[skip]]
node = "a"
  [[ skip ]]  # second
node = "b"
[skip.more]
z = 1
[ nodes . gpu ]
gpus = [[1], [2]]
last = 1'''


def test_every_table_and_key_has_its_line() -> None:
    tomllib.loads(TEXT)
    found = find_lines(TEXT)
    for place, line in (
        (("name",), 2),
        (("list",), 3),
        (("text",), 7),
        (("raw",), 11),
        (("quoted key",), 13),
        (("a", "b", "c"), 14),
        (("a",), 14),
        (("knobs",), 16),
        (("knobs", "cap"), 17),
        (("workloads",), 18),
        (("workloads", "my train", "knobs", "x"), 19),
        (("skip",), 20),
        (("skip", 0, "node"), 21),
        (("skip", 1), 22),
        (("skip", 1, "node"), 23),
        (("skip", 1, "more", "z"), 25),
        (("nodes", "gpu"), 26),
        (("nodes", "gpu", "gpus"), 27),
        (("nodes", "gpu", "last"), 28),
    ):
        assert found[place] == line, place
    assert ("other",) not in found
    assert ("not",) not in found
    assert ("no",) not in found


def test_what_stands_inside_of_a_line_has_that_line() -> None:
    found = find_lines(TEXT)
    assert line_of(found, ("a", "b", "c", "inner")) == 14
    assert line_of(found, ("knobs", "cap", "values", 3)) == 17
    assert line_of(found, ("nowhere", "x")) is None
    assert line_of(found, ()) is None


KEYS = st.text(min_size=1, max_size=6)
VALUES = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=25)
@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=4), max_size=4))
def test_lines_of_any_file(tables: dict[str, dict[str, Any]]) -> None:
    lines: list[str] = []
    expected = {}
    for name, values in tables.items():
        lines += ["# [x] = 1", f"[{toml(name)}]"]
        expected[name,] = len(lines)
        for key, value in values.items():
            lines.append(f"{toml(key)} = {toml(value)}")
            expected[name, key] = len(lines)
    text = "\n".join(lines)
    assert tomllib.loads(text) == tables
    assert find_lines(text) == expected
