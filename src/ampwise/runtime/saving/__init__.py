"""Checkpoints: written whole or not at all, loaded without running code."""
