"""Say what power caps do to a job: time and power, as measured, between what was measured, or by a model."""
