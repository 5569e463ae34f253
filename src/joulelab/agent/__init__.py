"""Export a node's meters to Prometheus: `joulelab agent`. See README.md here."""
