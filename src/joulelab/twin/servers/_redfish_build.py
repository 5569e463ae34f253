"""Collect the resources of a Redfish service, and the collections and the root that link them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.twin.servers._redfish_shown import Shown

Json = dict[str, Any]
ROOT = "/redfish/v1"
SESSIONS = f"{ROOT}/SessionService/Sessions"
FANS = 6


def ref(path: str) -> Json:
    """Return a link."""
    return {"@odata.id": path}


class Builder:
    """Collect resources and the collections that list them."""

    def __init__(self, shown: Shown, *, expand: bool) -> None:
        self.shown = shown
        self.tree: dict[str, Callable[[], Json]] = {}
        self.lists: dict[str, list[str]] = {f"{ROOT}/Chassis": [], f"{ROOT}/Systems": [], f"{ROOT}/Managers": []}
        self._expand = expand

    def add(self, path: str, body: Callable[[], Json], *, kind: str, listed: bool = False) -> str:
        """Add a resource; `listed` puts it into the collection above it."""
        name = path.rsplit("/", 1)[1]
        self.tree[path] = lambda: {"@odata.id": path, "@odata.type": kind, "Id": name, "Name": name} | body()
        if listed:
            self.lists.setdefault(path.rsplit("/", 1)[0], []).append(path)
        return path

    def finish(self) -> None:
        """Add the collections and the root."""
        for path, members in self.lists.items():
            rows = [ref(member) for member in members]
            self.tree[path] = lambda path=path, rows=rows: {  # type: ignore[misc]
                "@odata.id": path,
                "Name": "Collection",
                "Members": rows,
                "Members@odata.count": len(rows),
            }
        features = {"ExpandQuery": {"Levels": True, "NoLinks": True, "ExpandAll": True, "MaxLevels": 2}}
        self.tree[ROOT] = lambda: (
            {
                "@odata.id": f"{ROOT}/",
                "RedfishVersion": "1.18.0",
                "Chassis": ref(f"{ROOT}/Chassis"),
                "Systems": ref(f"{ROOT}/Systems"),
                "SessionService": ref(f"{ROOT}/SessionService"),
                "Links": {"Sessions": ref(SESSIONS)},
            }
            | ({"ProtocolFeaturesSupported": features} if self._expand else {})
        )

    def sensor(
        self, chassis: str, name: str, kind: str, unit: str, point: str, read: Callable[[], Any], **more: str
    ) -> str:
        """Add a sensor to a chassis."""
        return self.add(
            f"{chassis}/Sensors/{name}",
            lambda: (
                {
                    "Reading": read(),
                    "ReadingType": kind,
                    "ReadingUnits": unit,
                    "ReadingTime": self.shown.time(point),
                    "SensingInterval": self.shown.interval(),
                    "Implementation": "PhysicalSensor",
                    "Status": {"State": "Enabled", "Health": "OK"},
                }
                | more
            ),
            kind="#Sensor.v1_8_0.Sensor",
            listed=True,
        )
