"""Hold the words of joulelab: Spec, Stream, scopes, errors, clocks, marks. Standard library only."""
