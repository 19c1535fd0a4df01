"""What ranks agree on, and what they send each other."""
