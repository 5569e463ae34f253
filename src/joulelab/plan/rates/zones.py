"""Old name of a module: use `joulelab.plan.rates.time_zones`. To be deleted when `plan queue` has switched."""

from joulelab.plan.rates.time_zones import convert_to_utc as utc_of
from joulelab.plan.rates.time_zones import find_time_zone as zone_of

__all__ = ["utc_of", "zone_of"]
