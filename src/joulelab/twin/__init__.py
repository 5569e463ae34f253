"""Simulate a node: a model, the truth file it compiles to, and servers that show it as real instruments would."""
