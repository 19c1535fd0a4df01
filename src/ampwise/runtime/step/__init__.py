"""One step of training: TrainStep, and what it needs by the way."""
