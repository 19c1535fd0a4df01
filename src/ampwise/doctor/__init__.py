"""Reads a recording and says what is wrong with the training, and what to do; measures nothing, knows no torch."""
