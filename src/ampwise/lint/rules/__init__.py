"""The rules, one file each: ``mp101_grad_use_before_unscale.py`` holds ``RULE``."""
