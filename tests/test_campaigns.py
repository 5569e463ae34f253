"""Hold campaigns.toml to the tree: it names every campaign, with tests of the same logic in the tiers that run more."""

from __future__ import annotations

import ast
import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TESTS = Path(__file__).parent
TABLE = tomllib.loads((TESTS / "campaigns.toml").read_text())
MARKS = {f"pytest.mark.{tier}": tier for tier in ("campaign", "system")}


def list_marks(node: ast.AST) -> set[str]:
    """Return the tiers whose marks are in a piece of code."""
    found = (n for n in ast.walk(node) if isinstance(n, ast.Attribute) and n.attr in MARKS.values())
    return {tier for n in found if (tier := MARKS.get(ast.unparse(n)))}


def reach_nodes(nodes: Iterable[ast.AST], named: dict[str, ast.AST], seen: set[str]) -> Iterator[ast.AST]:
    """Yield nodes, and all definitions of the file that they name: constants, functions and fixtures."""
    for node in nodes:
        yield node
        names = {
            n.id if isinstance(n, ast.Name) else n.arg for n in ast.walk(node) if isinstance(n, ast.Name | ast.arg)
        }
        new = names & named.keys() - seen
        seen |= new
        yield from reach_nodes([named[name] for name in sorted(new)], named, seen)


def is_all_marked(decorator: ast.expr) -> bool:
    """Return whether a list of parameters has no case without a mark of its own."""
    rows = decorator.args[1] if isinstance(decorator, ast.Call) and len(decorator.args) > 1 else None
    return isinstance(rows, ast.List) and all(
        isinstance(row, ast.Call) and any(ast.unparse(k.value) in MARKS for k in row.keywords) for row in rows.elts
    )


def list_tiers(test: ast.FunctionDef, above: set[str], named: dict[str, ast.AST]) -> set[str]:
    """Return the tiers of the cases of a test; `above` are the marks of its class and module."""
    plain = [d for d in test.decorator_list if isinstance(d, ast.Attribute) and list_marks(d)]
    others = [d for d in test.decorator_list if d not in plain]
    whole = above.union(*map(list_marks, plain))
    some = set[str]().union(*map(list_marks, reach_nodes([*others, test.args], named, set())))
    if "campaign" in whole:
        return {"campaign"}
    rest = set[str]() if any(map(is_all_marked, others)) else {"system" if whole else "quick"}
    return some | rest


@functools.cache
def read_tiers(file: str) -> dict[str, set[str]]:
    """Return the tiers of each test of a file, by the name that pytest shows."""
    tree = ast.parse((TESTS / file).read_text())
    named: dict[str, ast.AST] = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    named |= {t.id: n for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    module = list_marks(named["pytestmark"]) if "pytestmark" in named else set()
    places = [("", module, tree.body)]
    for node in (n for n in tree.body if isinstance(n, ast.ClassDef)):
        places.append((f"{node.name}::", module.union(*map(list_marks, node.decorator_list)), node.body))
    return {
        before + test.name: list_tiers(test, above, named)
        for before, above, body in places
        for test in body
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_")
    }


def test_the_table_names_every_campaign() -> None:
    files = [path for path in TESTS.rglob("test_*.py") if "mark.campaign" in path.read_text()]
    names = [path.relative_to(TESTS).as_posix() for path in files]
    found = {(file, test) for file in names for test, tiers in read_tiers(file).items() if "campaign" in tiers}
    assert found == {(file, test) for file, tests in TABLE.items() for test in tests}


def test_each_counterpart_is_in_its_tier() -> None:
    wrong = []
    for file, test, entry in ((file, test, entry) for file, tests in TABLE.items() for test, entry in tests.items()):
        if not entry or not (entry.keys() <= {"quick", "system"} or entry.keys() == {"why"}):
            wrong.append(f"{file}::{test} has none of: quick, system, why")
        for tier, name in ((t, name) for t, names in entry.items() if t != "why" for name in names):
            path, _, other = name.rpartition(".py::")
            if tier not in read_tiers(f"{path}.py" if path else file).get(other, ()):
                wrong.append(f"{file}::{test}: {name} is no {tier} test")
    assert wrong == []
