"""Charts: what lies where (`model`), and how it is drawn in a page (`svg`)."""
