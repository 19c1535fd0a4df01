"""Autocast, loss scaling and the optimisation step: what puts a precision into effect."""
