"""What other programs ask for: the dashboard (`joulelab dashboard`) and the exporter of a node (`joulelab agent`)."""
