"""Places the lines of plain torch.amp in somebody's script, by reading its source alone; no torch."""
