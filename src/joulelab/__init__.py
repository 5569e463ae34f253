"""Measure what an AI workload costs in energy, from the GPU to the wall, and say how far to trust the figure."""
