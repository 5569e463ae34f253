"""Find the best cap with few trials: by whole runs, or inside one run."""
