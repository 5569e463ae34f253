"""Scopes: what contains what, and sums that count nothing twice."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core.scope import find_family, find_parent, find_roots, find_unlike_scopes, list_ancestors, rank_scope


@every_row(
    ("scope", "name"),
    [("gpu:3", "gpu"), ("gpu:0/mig:1", "gpu"), ("node.ac", "node.ac"), ("cpu:1/die:0", "cpu"), ("cpu", "cpu")],
)
def test_family_is_the_word_before_the_number(scope, name):
    assert find_family(scope) == name


@every_row(
    ("scope", "declared", "container"),
    [
        ("gpu:0", None, "node.dc"),
        ("cpu:1", "psys", "psys"),
        ("gpu:0/mig:1", None, "gpu:0"),
        ("cpu:0/die:1", "psys", "psys"),
        ("core:1", None, "cpu:1"),
        ("uncore:0", None, "cpu:0"),
        ("core:0/die:1", None, "cpu:0/die:1"),
        ("node.dc", None, "node.ac"),
        ("node.ac", None, "rack"),
        ("rack", None, None),
    ],
)
def test_the_declared_container_comes_first_then_the_one_of_the_family(scope, declared, container):
    assert find_parent(scope, declared) == container


def test_people_read_scopes_from_the_chip_to_the_wall():
    scopes = ["rack", "node.ac", "gpu:10", "gpu:2", "psys", "dram:0", "cpu:0", "gpu:2/mig:1", "fan:0", "node.dc"]
    expected = ["gpu:2", "gpu:2/mig:1", "gpu:10", "cpu:0", "dram:0", "psys", "node.dc", "node.ac", "rack", "fan:0"]
    for seed in range(5):
        shuffled = random.Random(seed).sample(scopes, len(scopes))
        assert sorted(shuffled, key=rank_scope) == expected


def test_the_order_tells_apart_what_has_no_number():
    assert rank_scope("gpu:0/mig:a") < rank_scope("gpu:0/mig:b")
    assert rank_scope("outlet:²") > rank_scope("outlet:")  # a digit for isdigit(), but no number


RAPL = {
    "psys": "node.dc",
    "cpu:0": "psys",
    "dram:0": "psys",
    "core:0": "cpu:0",
    "node.dc": "node.ac",
    "gpu:0": "node.dc",
}


@every_row(
    ("measured", "counted"),
    [
        (["cpu:0", "core:0"], ["cpu:0"]),
        (["psys", "cpu:0", "dram:0", "core:0"], ["psys"]),
        (["cpu:0", "dram:0", "gpu:0"], ["gpu:0", "cpu:0", "dram:0"]),
        (["core:0", "gpu:0"], ["gpu:0", "core:0"]),
        (["node.ac", "gpu:0", "core:0"], ["node.ac"]),
        (["node.dc", "node.ac", "cpu:0"], ["node.ac"]),
        ([], []),
    ],
)
def test_what_another_contains_is_not_counted(measured, counted):
    assert find_roots(measured, RAPL) == counted


def test_a_family_without_a_number_contains_its_members_and_a_module_its_devices():
    parents = {"gpu:0": "module:0", "cpu:0": "module:0", "module:0": "node.dc"}
    keys = ["n/cpu:0", "n/cpu:1/die:0", "n/cpu", "m/cpu:0", "n/gpu:0"]
    assert find_roots(keys, {}) == ["m/cpu:0", "n/cpu", "n/gpu:0"]
    assert find_roots(["gpu:0", "cpu:0", "module:0"], parents) == ["module:0"]
    assert find_roots(["gpu:0", "cpu:0", "node.dc"], parents) == ["node.dc"]
    assert find_parent("module:0", None) == find_parent("accel:1", None) == "node.dc"


def test_of_scopes_that_contain_each_other_one_counts():
    loop = {"cpu:0": "psys", "psys": "cpu:0", "core:0": "cpu:0"}
    assert find_roots(["psys", "cpu:0", "core:0"], loop) == ["cpu:0"]
    assert find_roots(["core:0", "psys"], loop) == ["psys"]
    assert find_roots(["cpu:0"], {"cpu:0": "cpu:0"}) == ["cpu:0"]
    assert list_ancestors("core:0", loop) == ["cpu:0", "psys"]


@st.composite
def forests(draw):
    """Draw any declaration of containers, loops and unmeasured ones among them, and which scopes are measured."""
    names = [f"{f}:{i}" for f in ("gpu", "cpu", "core", "dram") for i in range(3)] + ["psys", "node.dc", "node.ac"]
    parents = {n: draw(st.sampled_from([*names, None])) for n in names}
    return draw(st.sets(st.sampled_from(names))), parents


@given(forests())
def test_nothing_is_counted_twice_and_nothing_is_left_out(forest):
    measured, parents = forest
    top = find_roots(measured, parents)
    assert len(set(top)) == len(top)
    for scope in top:
        assert not set(list_ancestors(scope, parents)) & set(top), "a counted scope lies in another counted scope"
    for scope in measured:
        covered = {scope, *list_ancestors(scope, parents)} & set(top)
        # In a loop the chain of one member may end before the counted one; then the counted one lies in it.
        covered |= {t for t in top if scope in list_ancestors(t, parents)}
        assert covered, f"{scope} is measured and no counted scope holds it"
    assert find_roots(sorted(measured), parents) == find_roots(sorted(measured, reverse=True), parents)


@every_row(
    ("a", "b", "only_a", "only_b"),
    [
        (["gpu:0", "cpu:0"], ["cpu:0", "gpu:0"], (), ()),
        (["gpu:0"], ["gpu:3"], (), ()),  # the numbers are those of the driver
        (["gpu:1", "gpu:0", "cpu:0"], ["gpu:0", "cpu:0"], ("gpu:1",), ()),
        (["gpu:0", "cpu:0"], ["node.ac"], ("gpu:0", "cpu:0"), ("node.ac",)),
        (["node.ac", "node.ac"], ["node.ac"], ("node.ac",), ()),  # of two hosts
    ],
)
def test_sums_are_alike_if_they_have_equally_many_scopes_of_each_family(a, b, only_a, only_b):
    assert find_unlike_scopes(a, b) == (only_a, only_b)
