"""The models and data of the studies, and burn; `run/workloads.py` finds them by name."""

from joulelab.run.workloads import missing, require

__all__ = ["missing", "require"]
