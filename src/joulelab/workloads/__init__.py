"""The models and data of the studies, and burn; `run/workload_registry.py` finds them by name.

Workloads of outside packages use these names.
"""

from joulelab.run.workload_registry import read_number as number
from joulelab.run.workload_registry import read_whole_number as whole
from joulelab.run.workload_registry import refuse_missing_library as missing
from joulelab.run.workload_registry import require_libraries as require

__all__ = ["missing", "number", "require", "whole"]
