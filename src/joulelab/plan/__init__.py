"""Turn measurements into decisions: racks, cost, carbon, when and in which order to run."""
