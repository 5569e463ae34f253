"""Read a plan file (TOML): the rack, kinds of nodes, jobs, sites, planned work, the queue of jobs.

One file is kept with a facility's documents; each command uses the tables that it needs, and checks all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import escape_unprintable, suggest_name
from joulelab.core.toml_reading import Mistakes, TableKey, read_value
from joulelab.plan.cost.sites import PlanSite, read_sites
from joulelab.plan.cost.work import Work, WorkTable, read_work
from joulelab.plan.plan_tables import NodeKind, TomlTable, read_nodes
from joulelab.plan.queue.site import QueueTable, read_schedule
from joulelab.plan.rack.job_mix import MixJob, read_mix
from joulelab.plan.rack.limits import Rack, read_rack
from joulelab.run.config.config_files import read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OLD_QUEUE = "schedule"  # the name of [queue] in older files
DEFAULT_NODE = "node"  # the name of a kind of node without a name
COMMAND_LINE = "the command line"


@dataclass(frozen=True)
class PlanTables:
    """Declare the tables of a plan file; a misplaced key is refused with the table that it belongs to."""

    title: str = ""
    rack: Rack | None = None
    nodes: dict[str, NodeKind] = field(default_factory=dict)
    mix: list[MixJob] = field(default_factory=list)
    sites: list[PlanSite] = field(default_factory=list)
    work: list[WorkTable] = field(default_factory=list)
    queue: QueueTable | None = None


KEYS = (*PlanTables.__dataclass_fields__, OLD_QUEUE)


@dataclass(frozen=True)
class PlanFile:
    """Hold a plan file; missing tables are empty or None. `values` is all of it as plain data.

    `folder` is that of the file: its paths are relative to it.
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
        """Return runs that the file names: as paths if they exist in its folder, else unchanged."""
        return [str(self.folder / word) if (self.folder / word).exists() else word for word in words]

    @property
    def kind(self) -> NodeKind:
        """Return the kind of node of the rack. Raises ConfigError if it is unknown, or one of several."""
        wanted = "" if self.rack is None else self.rack.node
        if wanted and wanted not in self.nodes:
            raise ConfigError(
                f"there is no [nodes.{wanted}]",
                where="[rack] node",
                next=suggest_name(wanted, [*self.nodes]) if self.nodes else f"add [nodes.{wanted}] to the file",
                code="config.unknown-node",
            )
        if not wanted and len(self.nodes) > 1:
            raise ConfigError(
                "the plan file has several kinds of node",
                where="[rack]",
                why=", ".join(self.nodes),
                next=f'choose one in [rack]: node = "{next(iter(self.nodes))}"',
                code="config.several-nodes",
            )
        return self.nodes[wanted] if wanted else next(iter(self.nodes.values()), NodeKind(DEFAULT_NODE))


def read_plan_file(
    path: Path | None,
    rack: Mapping[str, Any] | None = None,
    node: Mapping[str, Any] | None = None,
    *,
    need: str = "",
) -> PlanFile:
    """Read a plan file, if there is one; options in `rack` and `node` replace values of its tables.

    `need` is a table that must be in the file. Raises ConfigError with all mistakes.
    """
    text, values = ("", {}) if path is None else read_toml(path, "plan file")
    values = _escape_texts(values)
    mistakes = Mistakes(COMMAND_LINE if path is None else str(path), text, PlanTables)
    queue = OLD_QUEUE if OLD_QUEUE in values else "queue"
    if "queue" in values and OLD_QUEUE in values:
        mistakes.add((OLD_QUEUE,), "[schedule] is the old name of [queue]", next="move its keys to [queue]")
    if path is not None and need and (queue if need == "queue" else need) not in values:
        mistakes.add(
            (), f"the plan file has no [{need}]", next="add it, or name another file", code=f"config.no-{need}"
        )
    _replace_values(values, ("rack",), rack or {})
    _replace_values(values, ("nodes", _name_node(values)), node or {})
    for key in values:
        if key not in KEYS:
            mistakes.refuse_key((), key, KEYS)

    def get_table(name: str) -> TomlTable:
        return TomlTable(read_key(name, dict[str, Any]) or {}, (name,), mistakes)

    def list_tables(name: str) -> list[TomlTable]:
        listed = read_key(name, list[dict[str, Any]]) or []
        return [TomlTable(item, (name, number), mistakes) for number, item in enumerate(listed)]

    def read_key(name: str, hint: Any) -> Any:
        return read_value(TableKey(hint, doc=name), values[name], mistakes, (name,)) if name in values else None

    folder = Path() if path is None else path.parent
    found = PlanFile(
        title=read_key("title", str) or "",
        rack=read_rack(get_table("rack")) if "rack" in values or (need == "rack" and path is None) else None,
        nodes=read_nodes(get_table("nodes")),
        mix=tuple(read_mix(list_tables("mix"))),
        sites=tuple(replace(site, folder=folder) for site in read_sites(list_tables("sites"))),
        work=tuple(read_work(list_tables("work"))),
        queue=read_schedule(get_table(queue)) if queue in values else None,
        values=values,
        folder=folder,
    )
    mistakes.check()
    return found


def _escape_texts(value: Any) -> Any:
    """Return a copy without control characters, which could move the cursor: texts are shown in tables."""
    if isinstance(value, dict):
        return {escape_unprintable(key): _escape_texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_escape_texts(one) for one in value]
    return escape_unprintable(value) if isinstance(value, str) else value


def _name_node(values: Mapping[str, Any]) -> str:
    """Return the name of the kind of node that options of the command line are about."""
    rack, nodes = values.get("rack"), values.get("nodes")
    if isinstance(rack, dict) and isinstance(rack.get("node"), str):
        return str(rack["node"])
    return str(next(iter(nodes))) if isinstance(nodes, dict) and nodes else DEFAULT_NODE


def _replace_values(values: dict[str, Any], place: Sequence[str], given: Mapping[str, Any]) -> None:
    """Replace values of a table by those of the command line; a value that is no table is left to be refused."""
    if not given:
        return
    table: Any = values
    for name in place:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            return
    for key, value in given.items():
        if isinstance(value, dict):
            _replace_values(table, (key,), value)
        else:
            table[key] = value
