"""Turns what happens inside somebody's training loop into events that instruments and the runtime share."""
