"""Where the loop is at one moment, noted cheaply: names and files are spelled out when somebody asks."""

from typing import Any, NamedTuple

from ampwise.observe.frames import Line
from ampwise.observe.modules import ModuleName
from ampwise.records.site import Phase, Site


class Spot(NamedTuple):
    """What a ``Site`` is made of; a model's name may still change after it was noted."""

    phase: Phase
    module: ModuleName | None = None
    op: Any = None
    """The operator itself, or its name."""
    line: Line | None = None

    @property
    def site(self) -> Site:
        """The place in words."""
        return Site(
            phase=self.phase,
            module=None if self.module is None else self.module.path,
            op=None if self.op is None else str(self.op),
            file=None if self.line is None else self.line.shown_file,
            line=None if self.line is None else self.line.line,
        )
