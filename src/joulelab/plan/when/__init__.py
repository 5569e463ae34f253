"""Say when to run one job, when to pause it and at which cap, at least carbon or cost."""
