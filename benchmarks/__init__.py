"""Measure cost and accuracy of joulelab; every figure of speed is a ratio to something else in the same run."""
