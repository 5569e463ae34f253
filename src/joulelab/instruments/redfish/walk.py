"""Walk a Redfish service by its links: every address comes from the service, none is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import MeterError, ReadFailed, Unavailable
from joulelab.instruments.redfish import values
from joulelab.instruments.redfish.values import Field, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = "/redfish/v1/"
MEMBERS = 4096  # of one collection; a service whose pages never end is refused here


@dataclass(frozen=True, slots=True)
class Resource:
    """Hold a resource and its address; `steps` lead to it in the answer of `ask`, where only its collection has it."""

    path: str
    body: dict[str, Any]
    ask: str
    steps: tuple[Step, ...] = ()

    @property
    def id(self) -> str:
        """Return the Id, or another name that the resource gives itself."""
        return str(self.body.get("Id") or self.body.get("Name") or self.path.rstrip("/").split("/")[-1])

    @property
    def name(self) -> str:
        """Return the Name, "" if there is none."""
        return values.read_text(self.body, "Name")

    def locate_power(self, *steps: Step, scale: float = 1.0) -> Field:
        """Return the place of a power that is not 0 as long as it is metered."""
        return Field(self.ask, (*self.steps, *steps), scale, zero=False, limits=values.WATTS)

    def locate(self, *steps: Step, scale: float = 1.0) -> Field:
        """Return the place of any other number."""
        return Field(self.ask, (*self.steps, *steps), scale)


class Walker:
    """Ask for resources, each once, and follow their links."""

    def __init__(self, get: Callable[[str], Any], root: dict[str, Any], now: Callable[[], int] = monotonic_ns) -> None:
        self._get, self._now = get, now
        self._seen: dict[str, dict[str, Any] | Unavailable] = {}
        self.root = Resource(ROOT, root, ROOT)
        self.begun_ns = now()
        self.limit_s: float | None = None  # since the beginning; nothing new is asked for afterwards

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
            # Some services send an error with HTTP 200.
            is_error = found.keys() == {"error"}
            self._seen[path] = Unavailable("the BMC answers with an error", why=path) if is_error else found
        seen = self._seen[path]
        if isinstance(seen, Unavailable):
            raise seen
        return seen

    def _check_time(self) -> None:
        if self.limit_s is not None and self._now() - self.begun_ns > self.limit_s * NS:
            raise ReadFailed(
                "not looked for: the BMC answers too slowly",
                why=f"{self.limit_s:g} s were over, and power comes first",
                next="list all that is wanted in sources: then it is looked for however long that takes",
                code="read-failed.slow",
            )

    def forget(self, *fields: Field) -> None:
        """Ask for the resources of these fields anew when they are wanted next."""
        for field in fields:
            self._seen.pop(field.path, None)

    def read(self, field: Field) -> float:
        """Return the value of a field in SI. Raises MeterError."""
        return values.read_value(self.get(field.path), field)

    def is_read(self, field: Field) -> bool:
        """Return whether a field has a reading."""
        try:
            self.read(field)
        except (ReadFailed, Unavailable):
            return False
        return True

    def open(self, path: str | None) -> Resource | None:
        """Return the resource at an address, None where it is missing."""
        try:
            return None if path is None else Resource(path, self.get(path), path)
        except Unavailable:
            return None

    def follow(self, resource: Resource | None, *keys: str) -> Resource | None:
        """Return the resource that a link leads to, None where link or resource is missing."""
        return None if resource is None else self.open(find_link(resource.body, *keys))

    def list_members(self, collection: Resource | None) -> list[Resource]:
        """Return the members of a collection that are there: by one answer where the service offers $expand."""
        if collection is None:
            return []
        pages = list(self._walk_pages(collection.path))
        expanded = self.locate_expanded(collection.path)
        if expanded and sum(len(rows) for _, rows in pages) > 1 and not any(map(_is_whole, pages[0][1])):
            try:
                for _, rows in self._walk_pages(expanded):
                    whole = {path: row for row in rows if _is_whole(row) and (path := find_link(row))}
                    self._seen |= {path: row for path, row in whole.items() if path not in self._seen}
            except MeterError:
                pass  # promised in the root and not kept: each member is asked for
        found: dict[str, Resource | None] = {}
        for page, rows in pages:
            for row in rows:
                path = find_link(row)
                if path is None or path in found:
                    continue
                inline = Resource(path, row, page, ("Members", ("@odata.id", path)))
                found[path] = inline if _is_whole(row) else self.open(path)
        return [resource for resource in found.values() if resource is not None]

    def _walk_pages(self, path: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        pages: set[str] = set()
        count = 0
        while path not in pages:
            pages.add(path)
            body = self.get(path)
            rows = values.list_rows(body, "Members")
            yield path, rows
            count += len(rows)
            onward = body.get("Members@odata.nextLink")
            if not isinstance(onward, str) or not onward.startswith("/"):
                return
            if count > MEMBERS:
                raise ReadFailed(f"a collection has more than {MEMBERS} members", why=onward)
            path = onward

    def locate_expanded(self, collection: str) -> str | None:
        """Return the address that gives a collection with its members in one answer, None where that is not offered."""
        features = self.root.body.get("ProtocolFeaturesSupported")
        expand = features.get("ExpandQuery") if isinstance(features, dict) else None
        if not isinstance(expand, dict) or expand.get("Levels") is not True:
            return None
        mark = "." if expand.get("NoLinks") is True else "*" if expand.get("ExpandAll") is True else ""
        return f"{collection}?$expand={mark}($levels=1)" if mark else None


def find_link(resource: Any, *keys: str) -> str | None:
    """Return the address behind a link, None where there is none."""
    current = resource
    for key in keys:
        current = current.get(key) if isinstance(current, dict) else None
    path = current.get("@odata.id") if isinstance(current, dict) else None
    return path if _is_address(path) else None


def find_source(excerpt: Any) -> str | None:
    """Return the address of the sensor that an excerpt (PowerWatts and others) is taken from."""
    path = excerpt.get("DataSourceUri") if isinstance(excerpt, dict) else None
    return path if _is_address(path) else None


def list_links(resource: Any, key: str) -> list[str]:
    """Return the addresses in a list of links (or of one), without a slash at their end; empty where there is none."""
    rows = resource.get(key) if isinstance(resource, dict) else None
    rows = [rows] if isinstance(rows, dict) else rows
    return [path.rstrip("/") for path in map(find_link, rows) if path is not None] if isinstance(rows, list) else []


def _is_address(path: Any) -> bool:
    return isinstance(path, str) and path.startswith("/") and "#" not in path


def _is_whole(row: dict[str, Any]) -> bool:
    return "@odata.type" in row
