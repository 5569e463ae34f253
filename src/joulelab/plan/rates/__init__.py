"""Say what a kWh costs and emits, and when: constants, tables, series, tariffs, services."""
