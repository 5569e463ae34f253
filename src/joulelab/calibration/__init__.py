"""Calibrate meters against a better one: `joulelab calibrate`, `joulelab calibrations`."""
