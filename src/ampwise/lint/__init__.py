"""Finds mixed-precision mistakes in source text: nothing is run, torch is not imported."""
