"""The models and data of the studies, and burn; run/workloads.py finds them by name."""
