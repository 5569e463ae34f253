"""Burn: matrix products on CPUs or GPUs whose results are checked, alone or beside stress-ng on the host."""
