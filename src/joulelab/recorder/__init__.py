"""Sample all meters in a process of its own: `python -m joulelab.recorder`, plan on stdin, status on stdout."""
