"""Find how many nodes fit in a rack, by which rule, and at which risk."""
