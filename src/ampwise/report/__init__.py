"""Renders a recording for a person or a machine; reads, never measures."""
