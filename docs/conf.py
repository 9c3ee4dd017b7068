"""Settings of the documentation's site: `make docs` builds it into docs/_build."""

project = "dpmcl"
author = "The dpmcl authors"
copyright = author
html_title = "dpmcl"
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
templates_path: list[str] = []

myst_heading_anchors = 3
myst_fence_as_directive: list[str] = []

add_module_names = False
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
