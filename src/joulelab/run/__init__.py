"""Run and record a workload, from start to end; begin to read in `run_command.py`."""
