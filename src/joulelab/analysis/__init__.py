"""Turn stored series into energies with their uncertainty: pure functions, no sockets, no processes."""
