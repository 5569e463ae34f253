"""Run slots as jobs of Slurm: their options and script, what is kept of them, and what became of them."""
