"""What this machine can do: its devices, their formats, and which precision is best on them."""
