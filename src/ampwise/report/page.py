"""Makes one HTML file that needs nothing else of a template and its figures: no network, no other file."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ampwise._base.text import inert
from ampwise._base.version import __version__
from ampwise.report.charts import Figure

GENERATOR: Final = "ampwise report"
"""Stands in the page's head, so that a report can be told from somebody's own page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure with its heading and what a reader should know of it."""

    name: str
    title: str
    caption: str
    figure: Figure | None


def render_page(template: str, *, figures: Mapping[str, Figure], **values: Any) -> str:
    """The page that ``template`` makes of ``values``.

    Every text that a user or a script chose is escaped and stripped of control characters; the page's policy
    forbids the network and any script but its own two, by their hashes.

    Args:
        template: A file of ``report/templates`` that extends the page they share.
        figures: What plotly draws, by the name under which the template places it.
        values: What the template asks for.
    """
    scripts = (_newlines(get_plotlyjs()), _newlines(_template("report.js")))
    return (
        _environment()
        .get_template(template)
        .render(
            **values,
            figures=figures,
            policy=_policy(scripts),
            plotly=Markup(scripts[0]),  # noqa: S704  # plotly's own file
            script=Markup(scripts[1]),  # noqa: S704  # our own file
            style=Markup(_template("report.css")),  # noqa: S704  # our own file
            generator=f"{GENERATOR} {__version__}",
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ampwise.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "sort_keys": False}
    return environment


def _finalize(value: Any) -> Any:
    """Every plain string is made inert, then escaped; what is marked safe is ours."""
    return inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _template(name: str) -> str:
    return (resources.files("ampwise.report") / "templates" / name).read_text("utf-8")


def _newlines(script: str) -> str:
    """As a browser reads them, for the hash is over what it reads."""
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _policy(scripts: tuple[str, ...]) -> str:
    """The content security policy: nothing from anywhere, and only these scripts."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
