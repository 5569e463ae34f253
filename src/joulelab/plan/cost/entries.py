"""Old name of a module: use `joulelab.plan.cost.sites`. To be deleted when others have switched."""

from joulelab.plan.cost.sites import read_pue as pue_of

SIDES = {
    "dc": "measured behind the supplies: their losses are not included",
    "parts": "only parts of the nodes were measured: the rest of them is not included",
    "unknown": "on which side of the supplies some was accounted is not known: losses may not be included",
}

__all__ = ["SIDES", "pue_of"]
