"""Runs variants of one script and measures what each gained."""
