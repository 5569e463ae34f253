"""Speak to instruments: the only place that imports client libraries, when first used. SI units leave it."""
