"""Print plans: tables, pictures, statements."""
