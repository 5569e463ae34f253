"""Train a model, measured: ranks, phases, limits, work and quality, the same for every workload."""
