"""Models that the studies trained, in plain torch."""
