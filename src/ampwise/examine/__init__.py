"""Which instruments answer which question about somebody's training, in which runs; makes them, and judges nothing."""
