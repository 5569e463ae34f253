"""Pages one can send to a colleague: of a run, of two runs, of a study. Each is one file that works offline."""
