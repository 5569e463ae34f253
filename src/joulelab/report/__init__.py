"""Turn results into tables, charts, messages and pages. Nothing here prints, measures or stores."""
