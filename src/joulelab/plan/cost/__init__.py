"""Say what runs and planned work use, cost and emit, at one site or at several."""
