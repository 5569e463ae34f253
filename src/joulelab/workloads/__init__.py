"""The models and data of the studies, and burn; `run/workload_registry.py` finds them by name."""


