"""Make pages to send to a colleague: of a run, of several runs, of a study. Each is one file that works offline."""
