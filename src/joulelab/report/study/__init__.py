"""Studies as people read them: which columns and words, tables, curves and maps, as text and for papers."""
