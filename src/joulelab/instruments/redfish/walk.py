"""Walk a Redfish service by its links: every address comes from the service, none is known beforehand."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import MeterError, ReadFailed, Unavailable
from joulelab.instruments.redfish import values
from joulelab.instruments.redfish.values import Field, Step

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = "/redfish/v1/"
MEMBERS = 4096  # of one collection; a service whose pages never end is refused here
# A search that does not end: of seven recorded services one is asked for 253 resources, another has 4.6 MB in all.
MOST_ANSWERS = 10_000
MOST_BYTES = 32 << 20
LONGEST_S = 900.0


@dataclass(frozen=True, slots=True)
class Resource:
    """Hold a resource and its address; `steps` lead to it in the answer of `page` if its collection holds it whole."""

    path: str
    body: dict[str, Any]
    page: str = ""
    steps: tuple[Step, ...] = ()

    @property
    def id(self) -> str:
        """Return the Id, or another name that the resource gives itself."""
        return str(self.body.get("Id") or self.body.get("Name") or self.path.rstrip("/").split("/")[-1])

    @property
    def name(self) -> str:
        """Return the Name, "" if there is none."""
        return values.read_text(self.body, "Name")

    def locate_power(self, *steps: Step, scale: float = 1.0, zero: bool = False) -> Field:
        """Return the place of a power; without `zero`, 0 W is a failed reading."""
        return Field(self.page or self.path, (*self.steps, *steps), scale, zero=zero, limits=values.WATTS)

    def locate_number(self, *steps: Step, scale: float = 1.0) -> Field:
        """Return the place of any other number."""
        return Field(self.page or self.path, (*self.steps, *steps), scale)


class Walker:
    """Ask for resources, each once, and follow their links."""

    def __init__(
        self,
        get: Callable[[str], Any],
        root: dict[str, Any],
        now: Callable[[], int] = monotonic_ns,
        count_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """Prepare; `get` returns the JSON at a path, `count_bytes` how much was received so far."""
        self._get, self._now, self._count_bytes = get, now, count_bytes
        self._seen: dict[str, dict[str, Any] | Unavailable] = {}
        self._asked = 0
        self.root = Resource(ROOT, root)
        self.begun_ns = now()
        self.limit_s: float | None = None  # since the beginning; nothing new is asked for afterwards

    def get_body(self, path: str) -> dict[str, Any]:
        """Return a resource. Raises Unavailable if there is none, ReadFailed, Denied."""
        if path not in self._seen:
            self._check_limits()
            try:
                found = self._get(path)
            except Unavailable as error:
                self._seen[path] = error
                raise
            if not isinstance(found, dict):
                raise ReadFailed("the BMC's answer is not a resource", why=path, code="read-failed.no-resource")
            is_error = found.keys() == {"error"}  # some services send an error with HTTP 200
            self._seen[path] = Unavailable("the BMC answers with an error", why=path) if is_error else found
        seen = self._seen[path]
        if isinstance(seen, Unavailable):
            raise seen
        return seen

    def _check_limits(self) -> None:
        """Raise ReadFailed if the search has taken too long, or has no end."""
        limit_s = LONGEST_S if self.limit_s is None else self.limit_s
        if self._now() - self.begun_ns > limit_s * NS:
            is_first = self.limit_s is not None
            raise ReadFailed(
                "not searched: the BMC answers too slowly",
                why=f"{limit_s:g} s were over{', and power comes first' if is_first else ''}",
                next="name all that you need in sources: then the search may take 15 min"
                if is_first
                else "check the address: is it a BMC?",
                code="read-failed.slow",
            )
        self._asked += 1
        if self._asked > MOST_ANSWERS or self._count_bytes() > MOST_BYTES:
            why = f"more than {MOST_ANSWERS} resources, or than {MOST_BYTES >> 20} MB"
            advice = "check the address: is it a BMC?"
            raise ReadFailed("the BMC has resources without end", why=why, next=advice, code="read-failed.endless")

    def read_field(self, field: Field) -> float:
        """Return the value of a field in SI. Raises MeterError."""
        return values.read_value(self.get_body(field.path), field)

    def read_again(self, *fields: Field) -> list[float]:
        """Return the values of fields, asked for anew. Raises MeterError."""
        for field in fields:
            self._seen.pop(field.path, None)
        return [self.read_field(field) for field in fields]

    def has_reading(self, field: Field) -> bool:
        """Return whether a field has a reading."""
        try:
            self.read_field(field)
        except (ReadFailed, Unavailable):
            return False
        return True

    def open_path(self, path: str | None) -> Resource | None:
        """Return the resource at an address, None if it is missing."""
        try:
            return None if path is None else Resource(path, self.get_body(path))
        except Unavailable:
            return None

    def follow_link(self, resource: Resource | None, *keys: str) -> Resource | None:
        """Return the resource that a link leads to, None if link or resource is missing."""
        return None if resource is None else self.open_path(find_link(resource.body, *keys))

    def list_members(self, collection: Resource | None, *, complete: bool = False) -> list[Resource]:
        """Return the members of a collection: by one answer if the service offers $expand.

        Members that do not answer are left out; with `complete` they raise Unavailable, because a sum or a number
        would be wrong without them.
        """
        if collection is None:
            return []
        rows = self._list_rows(collection.path)
        is_whole = any("@odata.type" in row for _, row in rows)
        expanded = None if is_whole else self._locate_expanded(collection.path)
        if expanded and len(rows) > 1:
            with contextlib.suppress(MeterError):  # promised in the root and not kept: each member is asked for
                for _, row in self._list_rows(expanded):
                    if "@odata.type" in row and (path := find_link(row)):
                        self._seen.setdefault(path, row)
        found: dict[str, Resource | None] = {}
        for page, row in rows:
            path = find_link(row)
            if path is not None and path not in found:
                inline = Resource(path, row, page, ("Members", ("@odata.id", path)))
                found[path] = inline if "@odata.type" in row else self.open_path(path)
        members = [resource for resource in found.values() if resource is not None]
        if complete and len(members) < len(rows):
            why = f"{len(rows) - len(members)} of {len(rows)} members of {collection.path} do not answer"
            raise Unavailable("a list of parts is not complete", why=why, code="unavailable.incomplete")
        return members

    def _list_rows(self, path: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the rows of all pages of a collection, each with the address of its page."""
        pages: set[str] = set()
        rows: list[tuple[str, dict[str, Any]]] = []
        while path not in pages:
            pages.add(path)
            body = self.get_body(path)
            rows += [(path, row) for row in values.list_rows(body, "Members")]
            onward = body.get("Members@odata.nextLink")
            if not isinstance(onward, str) or not onward.startswith("/"):
                break
            if len(rows) > MEMBERS:
                what = f"a collection has more than {MEMBERS} members"
                raise ReadFailed(what, why=onward, code="read-failed.endless")
            path = onward
        return rows

    def _locate_expanded(self, collection: str) -> str | None:
        """Return the address that gives a collection with its members in one answer, None if that is not offered."""
        features = self.root.body.get("ProtocolFeaturesSupported")
        expand = features.get("ExpandQuery") if isinstance(features, dict) else None
        if not isinstance(expand, dict) or expand.get("Levels") is not True:
            return None
        mark = "." if expand.get("NoLinks") is True else "*" if expand.get("ExpandAll") is True else ""
        return f"{collection}?$expand={mark}($levels=1)" if mark else None


def find_link(resource: Any, *keys: str) -> str | None:
    """Return the address behind a link, None if there is none."""
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
    """Return the addresses in a list of links (or of one), without a slash at their end; empty if there is none."""
    rows = resource.get(key) if isinstance(resource, dict) else None
    rows = [rows] if isinstance(rows, dict) else rows
    return [path.rstrip("/") for path in map(find_link, rows) if path is not None] if isinstance(rows, list) else []


def _is_address(path: Any) -> bool:
    return isinstance(path, str) and path.startswith("/") and "#" not in path
