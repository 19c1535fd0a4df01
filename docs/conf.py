from ampwise import __version__

project = "ampwise"
author = "the ampwise developers"
release = __version__
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
myst_heading_anchors = 3
