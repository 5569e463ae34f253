"""Run the command as a module: `python -m joulelab`."""

from joulelab.cli import main

main()
