import sys
from pathlib import Path

from sphinx.application import Sphinx

from ampwise import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "ampwise"
author = "the ampwise developers"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
exclude_patterns = ["_build", "readme"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1180px", "body_max_width": "920px"}  # 80 columns of a terminal fit
myst_heading_anchors = 3
myst_enable_extensions = ["tasklist"]


def setup(app: Sphinx) -> None:
    """The pages of rules, the READMEs and the pictures are written from what they share before any page is read."""
    from format_pictures import write_pictures
    from readme_pages import write_readmes
    from reference_page import write_reference
    from rule_pages import write_rule_pages

    app.connect("builder-inited", lambda _: write_rule_pages(HERE / "rules"))
    app.connect("builder-inited", lambda _: write_readmes(HERE.parent))
    app.connect("builder-inited", lambda _: write_pictures(HERE / "learn/pictures"))
    app.connect("builder-inited", lambda _: write_reference(HERE / "reference.md"))
