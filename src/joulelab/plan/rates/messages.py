"""The messages of `joulelab plan` about rates: from code to (status, text, next step)."""

MESSAGES: dict[str, tuple[str, str, str]] = {
    "rates.covers-differ": (
        "warning",
        "The intensities cover different emissions ({covers}): do not compare them.",
        "Name rows that are alike: table:DE:lifecycle.",
    ),
    "rates.some-forecasts": (
        "warning",
        "Some rates are forecasts, others are actual values.",
        "Compare rates of one kind.",
    ),
    "rates.gaps": (
        "warning",
        "The series has {gaps:gap}, {unknown_s:s} together.",
        "A plan that needs such a time is refused: fill the gaps in the file.",
    ),
    "rates.negative": (
        "note",
        "The price is negative for {negative_s:s}: consumers are paid for using energy then.",
        "",
    ),
    "rates.annual": (
        "note",
        "This is the mean of a year, the same at every hour.",
        "To choose when to run, use a series by the hour: joulelab plan rates fetch em:DE --to de.csv",
    ),
    "rates.no-uncertainty": ("note", "The source states no uncertainty, so intervals do not include one.", ""),
    "rates.remark": ("note", "{remark}", ""),
    "rates.charges": ("note", "Not in the price of a kWh: {charges}.", ""),
    "rates.not-asked": (
        "note",
        "The service was not called; a plan calls it for the times that it needs.",
        "Fetch a series: joulelab plan rates fetch {name} --to FILE.csv",
    ),
}
