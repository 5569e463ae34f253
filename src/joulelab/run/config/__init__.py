"""Read `joulelab.toml`: which meters there are beside the usual ones, what they feed, where their secrets are."""
