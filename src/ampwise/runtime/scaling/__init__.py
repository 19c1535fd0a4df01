"""The loss scale, and the scaler that applies it."""
