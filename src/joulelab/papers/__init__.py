"""Reproduce the studies of three papers on twins of their nodes, and compare with what the papers print.

`NAME.py` computes numbers from the folder of a paper's study; `NAME_figures.toml` and `published.toml` hold the
published figures and their tolerances. `paper.py` reads both.
"""
