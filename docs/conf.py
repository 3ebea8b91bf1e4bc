"""How Sphinx makes the site of these pages; `scripts/site` runs it.

Every page is a file of this folder, but for the reference: `docs.reference` writes that anew from the package before
Sphinx reads a page. The site asks the network for nothing: fonts, styles and the search index lie beside the pages.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from pygments.lexers.special import TextLexer

import tpusim

project = "tpusim"
version = release = tpusim.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design", "docs.reference"]
exclude_patterns = ["**/.ipynb_checkpoints"]

html_theme = "furo"
html_title = f"tpusim {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
# Browsers give a page from a disk no other page to quote from.
html_show_search_summary = False
# Dashes of options stay as they are typed.
smartquotes = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

# Notebooks hold their outputs, which `scripts/notebooks` stores and tests hold against what cells print today.
nb_execution_mode = "off"

# Blocks without a language are commands, which are no Python.
highlight_language = "text"
# What stands in single backticks in docstrings is code.
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_use_ivar = True


def setup(sphinx: Any) -> None:
    """Blocks of languages that Pygments does not know are plain text: lists of rooms, and topologies."""
    sphinx.add_lexer("rooms", TextLexer)
    sphinx.add_lexer("csv", TextLexer)
