"""The models and data of the studies, and burn; `run/workloads.py` finds them by name."""

from joulelab.run.workload_registry import refuse_missing_library, require_libraries

__all__ = ["missing", "require"]
