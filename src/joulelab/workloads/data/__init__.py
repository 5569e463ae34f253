"""Data that the studies trained on: the published files, real substitutes, and stand-ins that say so."""
