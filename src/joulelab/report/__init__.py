"""Turn results into what people read: tables, numbers with their intervals, comparisons, caches of results."""
