"""What was measured, as plain versioned data: no torch, no judgement."""
