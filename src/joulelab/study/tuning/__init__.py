"""Find the best cap, locked clock, or pair of both with few trials: by whole runs, or inside one run."""
