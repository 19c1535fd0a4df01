"""Where something happened, as a reader is told it."""

from ampwise._base.text import inert_line
from ampwise.records.site import Phase, Site


def module_words(module: str | None) -> str:
    """A module's path; what stands for it where it is the model itself, or none."""
    match module:
        case None:
            return "(outside)"
        case "":
            return "(model)"
        case _:
            return inert_line(module)


def op_words(op: str | None) -> str:
    """An operator without the name of its library."""
    return inert_line((op or "").removeprefix("aten."))


def site_words(site: Site | None) -> str:
    """The module, the operator, the pass and the line, as far as they are known: ``head · aten.mm · forward``."""
    if site is None:
        return ""
    module = site.module if site.module != "" else "the model"
    phase = site.phase.value if site.phase is not Phase.OTHER and (site.op or site.module) else None
    parts = (module, site.op, phase, site.where or None)
    return " · ".join(inert_line(part) for part in parts if part)
