"""Compute energy, money and carbon of runs and planned work, at one site or several."""
