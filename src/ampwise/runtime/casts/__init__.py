"""Formats put on a model: autocast, plans, operators' rules, small updates kept."""
