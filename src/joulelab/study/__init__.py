"""Run studies: a matrix of cells, its slots on disk, executors that run them, and the search for the best cap."""
