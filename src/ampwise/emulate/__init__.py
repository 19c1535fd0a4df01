"""Formats that the hardware lacks, as if it had them: tensors rounded to any format, and scripts run in it."""
