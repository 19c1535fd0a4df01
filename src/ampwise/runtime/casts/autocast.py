"""torch's own ``autocast``.

The very same class, not a wrapper: ``torch.compile`` recognises autocast by identity, and whoever imports ours
must get what torch's documentation says, its operator lists included.
"""

from torch import autocast

__all__ = ["autocast"]
