"""Files that people write: tables become dataclasses, and every mistake is found with its line and its remedy."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - pytest asks for it
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.core.toml_reading import (
    Mistakes,
    declare_key,
    find_line,
    find_lines,
    parse_toml,
    read_table,
    read_texts,
    read_time,
)
from joulelab.run.config.toml_writing import format_toml


def read_even(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError
    if value % 2:
        raise ConfigError(f"{value} is odd", next="take the next")
    return value


@dataclass(frozen=True)
class Part:
    name: str
    share: float = declare_key(1.0, "its share", above=0)
    at: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Box:
    low: int = 0
    high: int = 9

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError("low is above high", next="exchange them")


@dataclass(frozen=True)
class Shape:
    title: str | None = declare_key(None, "its title")
    count: int = declare_key(3, "how many", least=1)
    even: int = declare_key(2, "a number of pairs", read=read_even, advice="give a whole number")
    kind: Literal["air", "water"] = "air"
    hosts: tuple[str, ...] = declare_key((), "hosts", read=read_texts, advice="give a text, or a list of texts")
    is_on: bool = True
    numbers: dict[str, float] = field(default_factory=dict)
    box: Box = field(default_factory=Box)
    part: list[Part] = field(default_factory=list)
    named: dict[str, Part] = field(default_factory=dict)


def read(text: str, base: Shape | None = None) -> tuple[Shape | None, Mistakes]:
    mistakes = Mistakes("f.toml", text, Shape)
    return read_table(Shape, tomllib.loads(text), mistakes, base=base), mistakes


def test_tables_become_dataclasses() -> None:
    text = """
title = "x"
count = 4
even = 8
hosts = "a"
numbers = { a = 1 }
[box]
high = 12
[[part]]
name = "p"
at = [1, 2.5]
[named.q]
name = "r"
share = 2
"""
    found, mistakes = read(text)
    mistakes.check()
    assert found == Shape(
        "x", 4, 8, hosts=("a",), numbers={"a": 1.0}, box=Box(0, 12), part=[Part("p", at=(1.0, 2.5))],
        named={"q": Part("r", 2.0)},
    )  # fmt: skip
    changed, _ = read("count = 9\n[box]\nlow = 1", base=found)
    assert changed is not None
    assert (changed.title, changed.count, changed.box) == ("x", 9, Box(1, 12))


@every_row(
    ("text", "said", "code"),
    [
        ("cuont = 3", "1: unknown key 'cuont' in the file; did you mean 'count'? valid: title, count,", "unknown-key"),
        ("high = 3", "1: unknown key 'high' in the file; it belongs to [box]", "misplaced-key"),
        ("[box]\ncount = 3", "2: unknown key 'count' in [box]; it belongs to the top of the file", "misplaced-key"),
        ("[[part]]\nname = 'a'\nnmae = 1", "3: unknown key 'nmae' in [[part]] 1; did you mean 'name'?", "unknown-key"),
        ("\ncount = 'x'", "2: count is 'x'; give a whole number of at least 1", "wrong-value"),
        ("count = 0", "1: count is 0; give a whole number of at least 1", "wrong-value"),
        ("count = true", "1: count is true; give a whole number of at least 1", "wrong-value"),
        ("count = 2.0", "1: count is 2.0; give a whole number of at least 1", "wrong-value"),
        ("title = ''", "1: title is ''; give a text that is not empty", "wrong-value"),
        ("title = 3", "1: title is 3; give a text, in quotes", "wrong-value"),
        ("kind = 'watr'", "1: kind is 'watr'; did you mean 'water'? valid: air, water", "wrong-value"),
        ("kind = 3", "1: kind is 3; give one of air, water", "wrong-value"),
        ("is_on = 1", "1: is_on is 1; give true or false", "wrong-value"),
        ("even = 'x'", "1: even is 'x'; give a whole number", "wrong-value"),
        ("even = 3", "1: even: 3 is odd; take the next", ""),
        ("hosts = ['']", "1: hosts is ['']; give a text, or a list of texts", "wrong-value"),
        ("numbers = 3", "1: numbers is 3; write it as a table: [numbers]", "wrong-value"),
        ("[numbers]\na = 'x'", "2: a is 'x'; give a number", "wrong-value"),
        ("box = 3", "1: box is 3; write it as a table: [box]", "wrong-value"),
        ("[box]\nlow = 10", "1: low is above high; exchange them", ""),
        ("part = 3", "1: part is 3; write each as a table of its own: [[part]]", "wrong-value"),
        ("[[part]]\nshare = 1", "1: [[part]] 1 has no name; give a text, in quotes", "missing-key"),
        ("named = 3", "1: named is 3; write it as a table: [named]", "wrong-value"),
        ("[named]\na = 3", "2: a is 3; write it as a table: [named.a]", "wrong-value"),
        ("[named.a]\nname = 'a'\nshare = inf", "3: share is inf; give a number above 0", "wrong-value"),
        (f"[named.a]\nname = 'a'\nshare = 1{'0' * 400}", "3: share is 1000000000", "wrong-value"),
        ("[named.a]\nname = 'a'\nat = [1]", "3: at is [1]; give a list of 2 numbers", "wrong-value"),
        ("count = 1979-05-27", "1: count is datetime.date(1979, 5, 27); give a whole number", "wrong-value"),
    ],
)
def test_a_mistake_has_its_line_its_code_and_its_remedy(text: str, said: str, code: str) -> None:
    _, mistakes = read(text)
    (error,) = mistakes.errors
    assert str(error).startswith(f"f.toml:{said}")
    assert error.code == (f"config.{code}" if code else "config")


def test_all_mistakes_are_found_and_the_rest_is_read() -> None:
    found, mistakes = read(
        "even = 'x'\ncuont = 3\ncount = 0\ntitle = 'a'\n[box]\nlow = 's'\n[[part]]\n[named.a]\nname=1\n"
    )
    assert found == Shape("a")
    with pytest.raises(ConfigError) as refused:
        mistakes.check()
    assert [str(one).partition(": ")[0] for one in refused.value.mistakes] == [
        "f.toml:1", "f.toml:2", "f.toml:3", "f.toml:6", "f.toml:7", "f.toml:9",
    ]  # fmt: skip
    assert str(refused.value) == "\n".join(map(str, refused.value.mistakes))
    assert mistakes.has("box")
    assert mistakes.has("named", "a", "name")
    assert not mistakes.has("named", "b")


def test_a_mistake_is_one_line_whatever_stands_in_the_file() -> None:
    _, mistakes = read('"a\\n\\u001b[1m" = 1')
    assert str(mistakes.errors[0]).isprintable()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a = 1\nb = [", "f:2: not a TOML file (Invalid value); correct that line"),
        (b"a = 1\nb = '\xff'\n", "f:2: not a TOML file (it is not UTF-8); save it as UTF-8"),
        (b"a = " + b"[" * 5000, "f: not a TOML file (its lists or tables are nested too deeply); nest"),
        (b"a = " + b"9" * 5000, "f: not a TOML file (Exceeds the limit"),
    ],
)
def test_a_file_that_is_not_toml(data: bytes, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_toml(data, "f")
    assert str(refused.value).startswith(said)
    assert refused.value.code == "config.not-toml"


@pytest.mark.system
def test_a_configuration_without_mistakes_does_not_load_msgspec(tmp_path: Path) -> None:
    """A run would start later by the 13 ms that this takes."""
    file = tmp_path / "joulelab.toml"
    file.write_text('[run]\nperiod_s = 1\n[node]\nnode = ["a*"]\nrated_w = 7\n[meters.rapl]\nnode = "b"\ncord = true\n')
    code = (
        "import sys\nfrom pathlib import Path\nfrom joulelab.run.config.configuration import load_config\n"
        f"load_config({{'JOULELAB_ETC': '/no'}}, 'h', named=Path('{file}')).check()\nprint('msgspec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


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
    assert find_line(found, ("a", "b", "c", "inner")) == 14
    assert find_line(found, ("knobs", "cap", "values", 3)) == 17
    assert find_line(found, ("nowhere", "x")) is None
    assert find_line(found, ()) is None


KEYS = st.text(min_size=1, max_size=6)
VALUES = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.system  # pure, and slow
@settings(max_examples=25)
@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=4), max_size=4))
def test_lines_of_any_file(tables: dict[str, dict[str, Any]]) -> None:
    lines: list[str] = []
    expected = {}
    for name, values in tables.items():
        lines += ["# [x] = 1", f"[{format_toml(name)}]"]
        expected[name,] = len(lines)
        for name_, value in values.items():
            lines.append(f"{format_toml(name_)} = {format_toml(value)}")
            expected[name, name_] = len(lines)
    text = "\n".join(lines)
    assert tomllib.loads(text) == tables
    assert find_lines(text) == expected


def test_a_time_is_a_number_or_text() -> None:
    assert (read_time(90), read_time("2m")) == (90.0, 120.0)
    for value in (True, [90], None):
        with pytest.raises(ValueError, match=r"^$"):
            read_time(value)
