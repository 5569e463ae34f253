"""Walk a Redfish service by its links: every id comes from the service, none is known beforehand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.core.text import suggest_name

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = "/redfish/v1/"
MEMBERS = 4096  # of one collection; a service whose pages never end is refused here
EXPANDED = 64  # sensors that may be asked for at once
# Chassis that are a part of the node: their power is never taken for the node's.
_PART_TYPES = ("Module", "Component", "Zone", "Card", "Cartridge", "Expansion", "IPBasedDrive")
_PART_IDS = re.compile(r"hgx|gpu|nvswitch|nvlink|rot_|fpga|processormodule|cpu_|pcie|riser|drive|bmc", re.IGNORECASE)
# Equipment beside nodes: read only where the configuration names it.
_EQUIPMENT_TYPES = ("StorageEnclosure", "PowerStrip", "Rack", "RackGroup", "Row", "Pod", "HeatExchanger")
_EQUIPMENT = re.compile(r"switch|router|power[ _-]?shelf|rectifier|\bpdu|\bcdu|jbod", re.IGNORECASE)
_NO_NODES = ("DPU", "OS", "Virtual", "VirtuallyPartitioned")


class Walker:
    """Ask for resources, each once, and follow their links."""

    def __init__(self, get: Callable[[str], Any], root: dict[str, Any]) -> None:
        self._get = get
        self._seen: dict[str, dict[str, Any] | Unavailable] = {}
        self.root = root
        self.begun_ns = monotonic_ns()
        self.limit_s: float | None = None  # since the beginning, after which nothing new is asked for

    def get(self, path: str) -> dict[str, Any]:
        """Return a resource. Raises Unavailable where there is none, ReadFailed, Denied."""
        if path not in self._seen:
            self._check_time()
            try:
                found = self._get(path)
            except Unavailable as error:
                self._seen[path] = error
                raise
            if not isinstance(found, dict):
                raise ReadFailed("the BMC's answer is no resource", why=path)
            if found.keys() == {"error"}:  # some services send this with HTTP 200
                self._seen[path] = Unavailable("the BMC answers with an error", why=path)
            else:
                self._seen[path] = found
        seen = self._seen[path]
        if isinstance(seen, Unavailable):
            raise seen
        return seen

    def forget(self, *paths: str) -> None:
        """Ask for these resources anew when they are wanted next."""
        for path in paths:
            self._seen.pop(path, None)

    def _check_time(self) -> None:
        if self.limit_s is not None and monotonic_ns() - self.begun_ns > self.limit_s * NS:
            raise ReadFailed(
                "not looked for: the BMC answers too slowly",
                why=f"{self.limit_s:g} s were over, and power comes first",
                next="list all that is wanted in sources: then it is looked for however long that takes",
            )

    def follow(self, resource: dict[str, Any] | None, *keys: str) -> dict[str, Any] | None:
        """Return the resource that a link leads to, None where link or resource is missing."""
        path = link(resource, *keys)
        if path is None:
            return None
        try:
            return self.get(path)
        except Unavailable:
            return None

    def members(self, collection: dict[str, Any] | None) -> list[str]:
        """Return the addresses of a collection's members, over all its pages."""
        found: list[str] = []
        pages: set[str] = set()
        while collection is not None:
            rows = collection.get("Members")
            found += [path for path in map(link, rows) if path is not None] if isinstance(rows, list) else []
            onward = collection.get("Members@odata.nextLink")
            if not isinstance(onward, str) or not onward.startswith("/") or onward in pages:
                break
            if len(found) > MEMBERS:
                raise ReadFailed(f"a collection has more than {MEMBERS} members", why=onward)
            pages.add(onward)
            collection = self.get(onward)
        return found

    def each(self, collection: dict[str, Any] | None) -> list[tuple[str, dict[str, Any]]]:
        """Return the members of a collection that are there, with their addresses."""
        found = []
        for path in self.members(collection):
            try:
                found.append((path, self.get(path)))
            except Unavailable:
                continue
        return found

    def expanded(self, collection: str, count: int) -> str | None:
        """Return the address that gives a collection with its members in one answer, None where that is not offered."""
        features = self.root.get("ProtocolFeaturesSupported")
        expand = features.get("ExpandQuery") if isinstance(features, dict) else None
        if not isinstance(expand, dict) or expand.get("Levels") is not True or count > EXPANDED:
            return None
        mark = "." if expand.get("NoLinks") is True else "*" if expand.get("ExpandAll") is True else ""
        return f"{collection}?$expand={mark}($levels=1)" if mark else None

    def _every_chassis(self, *, parts: bool) -> list[tuple[str, dict[str, Any]]]:
        """Return the chassis; without `parts` those that go by the name of a part are not even asked for."""
        listed = self.members(self.follow(self.root, "Chassis"))
        rows = [{"@odata.id": path} for path in listed if not _PART_IDS.search(_last(path))]
        chosen = rows if rows and not parts else [{"@odata.id": path} for path in listed]
        return self.each({"Members": chosen})

    def chassis(self, wanted: str | None, label: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return chassis that are a node, and all others. Raises Unavailable, ConfigError.

        A node's chassis belongs to exactly one computer system, by a link or by its Id, and is no part of a node.
        A service without links may have one system in one of its chassis.
        """
        every = self._every_chassis(parts=wanted is not None)
        if not every:
            raise Unavailable(
                "the service has no chassis", where=label, why="Redfish without Chassis", next="check the firmware"
            )
        if wanted is not None:
            named = [c for path, c in every if wanted in (c.get("Id"), c.get("Name"), _last(path))]
            if not named:
                ids = [str(c.get("Id")) for _, c in every]
                raise ConfigError(
                    f"there is no chassis {wanted!r}", where=f"meter {label}", next=suggest_name(wanted, ids)
                )
            return named, [c for _, c in every if c not in named]
        if all(is_part(c) for _, c in every):
            every = self._every_chassis(parts=True)
        systems = self.systems()
        owners = {path: _owners(path, body, systems) for path, body in every}
        whole = [path for path, body in every if not is_part(body) and not is_equipment(body)]
        nodes = [path for path in whole if len(owners[path]) == 1]
        if len(systems) == 1 and not any(owners[path] for path in whole):
            nodes = whole
        return [c for path, c in every if path in nodes], [c for path, c in every if path not in nodes]

    def systems(self) -> dict[str, dict[str, Any]]:
        """Return the computer systems that are nodes, by address: boards of GPUs and DPUs are systems too."""
        return {
            path: system
            for path, system in self.each(self.follow(self.root, "Systems"))
            if system.get("SystemType") not in _NO_NODES and not _PART_IDS.search(_last(path))
        }


def _last(path: str) -> str:
    return path.rstrip("/").split("/")[-1]


def link(resource: Any, *keys: str) -> str | None:
    """Return the address behind a link, None where there is none."""
    current = resource
    for key in keys:
        current = current.get(key) if isinstance(current, dict) else None
    path = current.get("@odata.id") if isinstance(current, dict) else None
    return path if isinstance(path, str) and path.startswith("/") and "#" not in path else None


def is_part(chassis: dict[str, Any]) -> bool:
    """Return whether a chassis is a part of a node (an HGX board, a GPU), not the node."""
    return chassis.get("ChassisType") in _PART_TYPES or bool(_PART_IDS.search(str(chassis.get("Id"))))


def is_present(resource: dict[str, Any]) -> bool:
    """Return whether a part is there: makers list empty bays too; Dell gives no Status at all."""
    status = resource.get("Status")
    return not (isinstance(status, dict) and status.get("State") in ("Absent", "UnavailableOffline"))


def is_equipment(chassis: dict[str, Any]) -> bool:
    """Return whether a chassis is equipment beside the nodes: a switch, a power shelf, a PDU."""
    names = [str(chassis.get(key) or "") for key in ("Id", "Name", "Model")]
    return chassis.get("ChassisType") in _EQUIPMENT_TYPES or any(map(_EQUIPMENT.search, names))


def is_in_service(resource: dict[str, Any]) -> bool:
    """Return whether a meter is switched on as far as it says: a disabled one may repeat an old number."""
    status = resource.get("Status")
    return not isinstance(status, dict) or status.get("State") in (None, "Enabled")


def links(resource: Any, key: str) -> list[str]:
    """Return the addresses in a list of links, without a slash at their end; empty where there is none."""
    rows = resource.get(key) if isinstance(resource, dict) else None
    return [path.rstrip("/") for path in map(link, rows) if path is not None] if isinstance(rows, list) else []


def _owners(path: str, chassis: dict[str, Any], systems: dict[str, dict[str, Any]]) -> set[str]:
    """Return the computer systems that a chassis belongs to."""
    own = links(chassis.get("Links"), "ComputerSystems")
    return {
        where
        for where, system in systems.items()
        if where.rstrip("/") in own
        or path.rstrip("/") in links(system.get("Links"), "Chassis")
        or (chassis.get("Id") is not None and chassis.get("Id") == system.get("Id"))
    }
