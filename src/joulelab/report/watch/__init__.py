"""The live view of a run: a model that follows its folder, and the screen that shows it."""
