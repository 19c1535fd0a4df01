"""What a row is: one thing of torch or Python that can be intercepted, and why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attribute that may be replaced.

    Laws (tests are generated from the rows): after the last undo the original is there again, by identity;
    the replacement keeps the original's signature and pickles by its name, for a process without ampwise too;
    the obstacle's script (``tests/e2e/scripts/<obstacle>.py``) fails without the row and passes with it.
    """

    name: str
    owner: str
    """Import path of the module, then the class if any: ``torch.optim.optimizer:Optimizer``."""
    attribute: str
    why: str
    """The obstacle it removes, in a sentence."""
    obstacle: str | None = None
    """Stem of the script that shows the obstacle; None for a row that only observes."""
    in_workers: bool = False
    """Stays on in DataLoader workers."""
    outermost: bool = False
    """Interceptors see only a thread's outermost call; calls within it go straight to the original."""
    when_hidden: bool = False
    """Interceptors see ampwise's own calls too."""
    per_class: bool = False
    """Subclasses replace the attribute with their own: each class that has one is a target of this row."""
