"""Carry one run from start to seal: recorder, idle, workload, signals, end; what `run` and `measure()` use."""
