"""Number formats as rows of data, and exact arithmetic over them; no torch."""
