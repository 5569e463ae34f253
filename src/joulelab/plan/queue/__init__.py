"""Run a stream of jobs on a site with a power budget, in virtual time."""
