"""An optimizer's gradients: found, checked for inf and NaN, measured."""
