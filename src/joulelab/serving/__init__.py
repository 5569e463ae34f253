"""Measure the energy of inference servers: per token, per request, under load."""
