"""What is computed in which format, as data; no torch."""
