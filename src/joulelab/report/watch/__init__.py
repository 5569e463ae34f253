"""The live view of a run: what is read from its folder, and the screen that shows it."""
