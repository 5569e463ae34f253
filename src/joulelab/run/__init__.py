"""Run and record a workload, from start to seal; begin to read in `run_command.py`."""
