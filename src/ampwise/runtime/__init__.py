"""Autocast, loss scaling and the optimisation step: what puts a precision into effect."""

from ampwise.compat.versions import warn_of_untested
from ampwise.plan.operators import installed_torch_version

warn_of_untested(installed_torch_version())
