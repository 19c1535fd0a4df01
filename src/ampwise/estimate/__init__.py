"""How much GPU memory a training step takes, predicted where there is no GPU."""
