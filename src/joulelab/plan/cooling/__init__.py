"""The effect of another inlet temperature or cooling on the power of a node."""
