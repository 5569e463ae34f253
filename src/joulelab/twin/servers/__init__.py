"""Show a truth file through the real protocols, one file per protocol."""
