"""Set caps, and put back what was found."""
