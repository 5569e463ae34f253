"""Describe the place where work runs: its carbon intensity, its price of electricity, its PUE."""
