"""Read a plan file (TOML): the rack, kinds of nodes, jobs, sites, planned work, the stream of jobs.

One file is kept with a facility's documents; each command takes from it what it needs, and all of it is checked by all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import escape_unprintable, suggest_name
from joulelab.plan.cost.sites import read_sites
from joulelab.plan.cost.work import read_work
from joulelab.plan.plan_tables import Mistakes, NodeKind, TomlTable, read_nodes, read_toml
from joulelab.plan.queue.site import read_schedule
from joulelab.plan.rack.job_mix import read_mix
from joulelab.plan.rack.limits import read_rack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.plan.cost.sites import PlanSite
    from joulelab.plan.cost.work import Work
    from joulelab.plan.queue.site import QueueTable
    from joulelab.plan.rack.job_mix import MixJob
    from joulelab.plan.rack.limits import Rack

OLD_QUEUE = "schedule"  # the name of [queue] in older files
KEYS = ("title", "rack", "nodes", "mix", "sites", "work", "queue", OLD_QUEUE)
NODE = "node"  # what a kind of node is called that has no name
TYPED = "the command line"


@dataclass(frozen=True)
class PlanFile:
    """Hold a plan file. What it does not say is empty or None; `values` is all of it as plain data.

    `folder` is the one of the file: paths in it are from there.
    """

    title: str = ""
    rack: Rack | None = None
    nodes: Mapping[str, NodeKind] = field(default_factory=dict)
    mix: tuple[MixJob, ...] = ()
    sites: tuple[PlanSite, ...] = ()
    work: tuple[Work, ...] = ()
    queue: QueueTable | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()

    def near(self, words: Sequence[str]) -> list[str]:
        """Return runs as the file names them: by a path from its folder where there is one, else as they are."""
        return [str(self.folder / word) if (self.folder / word).exists() else word for word in words]

    @property
    def kind(self) -> NodeKind:
        """Return the kind of node that the rack is planned with. Raises ConfigError where that is not clear."""
        wanted = "" if self.rack is None else self.rack.node
        if wanted:
            if wanted not in self.nodes:
                then = suggest_name(wanted, [*self.nodes])
                raise ConfigError(f"there is no [nodes.{wanted}]", where="[rack] node", next=then)
            return self.nodes[wanted]
        if len(self.nodes) > 1:
            then = f'add node = "{next(iter(self.nodes))}" to it'
            why = ", ".join(self.nodes)
            raise ConfigError("the plan has several kinds of node", where="[rack]", why=why, next=then)
        return next(iter(self.nodes.values()), NodeKind(NODE))


def read_plan_file(
    path: Path | None,
    rack: Mapping[str, Any] | None = None,
    node: Mapping[str, Any] | None = None,
    *,
    need: str = "",
) -> PlanFile:
    """Read a plan file, if there is one; `rack` goes over its [rack], `node` over its kind of node.

    `need` is a table that has to be in the file. Raises ConfigError with all that is wrong.
    """
    text, values = ("", {}) if path is None else read_toml(path, "plan file")
    values = _printable(values)
    problems = Mistakes(TYPED if path is None else str(path), text)
    queue = OLD_QUEUE if OLD_QUEUE in values else "queue"
    if "queue" in values and OLD_QUEUE in values:
        problems.add((OLD_QUEUE,), "[queue] and [schedule] are the same table", next="keep [queue]")
    if path is not None and need and (queue if need == "queue" else need) not in values:
        problems.add((), f"the plan file has no [{need}]", next="add it, or name another file")
    _over(values, ("rack",), rack or {})
    _over(values, ("nodes", _named(values)), node or {})
    top = TomlTable(values, (), problems)
    top.allow(KEYS)
    folder = Path() if path is None else path.parent
    found = PlanFile(
        title=top.text("title") or "",
        rack=read_rack(top.table("rack")) if "rack" in values or (need == "rack" and path is None) else None,
        nodes=read_nodes(top.table("nodes")),
        mix=tuple(read_mix(top.tables("mix"))),
        sites=tuple(replace(site, folder=folder) for site in read_sites(top.tables("sites"))),
        work=tuple(read_work(top.tables("work"))),
        queue=read_schedule(top.table(queue)) if queue in values else None,
        values=values,
        folder=folder,
    )
    problems.check()
    return found


def _printable(value: Any) -> Any:
    """Return a copy of what a file says in which no text moves a cursor or sets a colour: it is shown in tables."""
    if isinstance(value, dict):
        return {escape_unprintable(key): _printable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_printable(one) for one in value]
    return escape_unprintable(value) if isinstance(value, str) else value


def _named(values: Mapping[str, Any]) -> str:
    """Return the name of the kind of node that the command line speaks of."""
    rack, nodes = values.get("rack"), values.get("nodes")
    if isinstance(rack, dict) and isinstance(rack.get("node"), str):
        return str(rack["node"])
    return str(next(iter(nodes))) if isinstance(nodes, dict) and nodes else NODE


def _over(values: dict[str, Any], at: Sequence[str], given: Mapping[str, Any]) -> None:
    """Put what is given over what a file says; what cannot be a table is left for the reader to refuse."""
    if not given:
        return
    table: Any = values
    for name in at:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            return
    for key, value in given.items():
        if isinstance(value, dict):
            _over(table, (key,), value)
        else:
            table[key] = value
