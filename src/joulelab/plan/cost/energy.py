"""Old name of a module: use `joulelab.plan.cost.job_energy`. To be deleted when others have switched."""

from joulelab.plan.cost.job_energy import find_side as side_of

__all__ = ["side_of"]
