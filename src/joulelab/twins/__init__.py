"""The old name of `joulelab.twin`, for one release: studies of users start `python -m joulelab.twins.job`."""
