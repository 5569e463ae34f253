"""Hold prices and carbon intensities over time: constants, annual means, series, tariffs, Electricity Maps."""
