"""Runs somebody's script: injects, observes, stops, isolates."""
