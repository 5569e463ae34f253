"""What other programs ask for: the dashboard (`joulelab serve`) and the exporter of a node (`joulelab agent`)."""
