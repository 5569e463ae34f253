"""Read what `plan cost` and `plan carbon` need of a plan file: nodes, sites, work."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulelab.config.problems import Problems, Table, read_toml
from joulelab.planner.account.sites import read_sites
from joulelab.planner.account.work import read_work
from joulelab.planner.nodes import read_nodes

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.planner.account.sites import Site
    from joulelab.planner.account.work import Work
    from joulelab.planner.nodes import NodeKind

KEYS = ("title", "rack", "nodes", "mix", "sites", "work", "schedule")


@dataclass(frozen=True, slots=True)
class AccountPlan:
    """Hold what a plan file says for accounts."""

    title: str = ""
    nodes: dict[str, NodeKind] = field(default_factory=dict)
    sites: tuple[Site, ...] = ()
    work: tuple[Work, ...] = ()


def read_account_plan(path: Path) -> AccountPlan:
    """Read a plan file. Raises ConfigError with every problem of it."""
    text, values = read_toml(path, "plan")
    problems = Problems(str(path), text)
    top = Table(values, (), problems)
    top.allow(KEYS)
    title, nodes = top.text("title") or "", read_nodes(top.table("nodes"))
    sites, work = read_sites(top.tables("sites")), read_work(top.tables("work"))
    problems.check()
    return AccountPlan(title, nodes, tuple(replace(site, folder=path.parent) for site in sites), tuple(work))
