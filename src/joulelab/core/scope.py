"""Name scopes (the parts of a machine that a reading covers), and find the scope that contains another."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Families in the order in which people read them, from the chip to the wall.
FAMILIES = (
    "gpu",
    "cpu",
    "core",
    "uncore",
    "dram",
    "accel",
    "module",
    "psys",
    "psu.dc",
    "node.dc",
    "psu",
    "outlet",
    "node.ac",
    "rack",
    "job",
)

# The scope that contains those of a family, if their stream does not declare another.
CONTAINER = {
    "gpu": "node.dc",
    "cpu": "node.dc",
    "dram": "node.dc",
    "accel": "node.dc",
    "module": "node.dc",
    "psys": "node.dc",
    "node.dc": "node.ac",
    "psu.dc": "node.dc",
    "psu": "node.ac",
    "outlet": "node.ac",
    "node.ac": "rack",
}

# Cords of a node: each is a part, their sum is the node.
CORDS = ("psu", "psu.dc", "outlet")


def find_family(scope: str) -> str:
    """Return the family of a scope: `gpu` for `gpu:3`, `node.ac` for itself."""
    return scope.split("/", 1)[0].split(":", 1)[0]


def rank_scope(scope: str) -> tuple[int, str, list[int], str]:
    """Return a sort key: family first, then number."""
    name = find_family(scope)
    rank = FAMILIES.index(name) if name in FAMILIES else len(FAMILIES)
    digits = [int(p) if p.isdecimal() else 0 for p in scope.replace("/", ":").split(":")[1:]]
    return rank, name, digits, scope


def find_parent(scope: str, declared: str | None) -> str | None:
    """Return the scope that contains this one: the declared one, the part before a slash, or that of its family."""
    if declared is not None:
        return declared
    name = find_family(scope)
    if name in ("core", "uncore"):  # parts of the package of the same number
        return f"cpu{scope.removeprefix(name)}"
    return scope.rsplit("/", 1)[0] if "/" in scope else CONTAINER.get(name)


def find_roots(scopes: Iterable[str], parents: Mapping[str, str | None]) -> list[str]:
    """Return the scopes that no other given scope contains, so that their sum counts nothing twice.

    A family without a number contains its numbered members: `cpu` is all of `cpu:0` and `cpu:1`. If scopes are declared
    to contain each other, the first one is returned.
    """
    present = sorted(set(scopes), key=rank_scope)
    above = {s: list_ancestors(s, parents) for s in present}
    for scope, chain in above.items():
        chain += [name.partition(":")[0] for name in (scope, *chain) if ":" in name]
    return [s for s in present if all(s in above[a] and rank_scope(s) < rank_scope(a) for a in above[s] if a in above)]


def list_ancestors(scope: str, parents: Mapping[str, str | None]) -> list[str]:
    """Return the chain of containing scopes, nearest first; a declared loop ends the chain."""
    chain: list[str] = []
    current = parents.get(scope)
    while current is not None and current not in chain and current != scope:
        chain.append(current)
        current = parents.get(current)
    return chain


def find_unlike_scopes(a: Iterable[str], b: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the scopes only in a and those only in b, of families of which they do not have equally many.

    Both are empty if the sums of a and of b cover the same kinds of parts. A scope of several hosts is given once for
    each. `gpu:0` and `gpu:1` are alike: the numbers are those of the driver.
    """
    first, second = Counter(a), Counter(b)
    counts = [Counter(find_family(scope) for scope in given.elements()) for given in (first, second)]
    unlike = {name for name in {**counts[0], **counts[1]} if counts[0][name] != counts[1][name]}
    lacking, new = (
        tuple(sorted((s for s in left if find_family(s) in unlike), key=rank_scope))
        for left in (first - second, second - first)
    )
    return lacking, new
