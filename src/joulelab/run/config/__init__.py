"""Read and write `joulelab.toml`: meters beside the usual ones, their scopes and secrets, defaults of a run."""
