"""Finds a plan for a script: what has to stay in fp32, what may be computed in a lower format, and why."""
