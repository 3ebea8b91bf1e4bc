"""How Sphinx makes the site of these pages; `scripts/site` runs it.

Every page is a file of this folder, but for the reference: `docs.reference` writes that anew from the package before
Sphinx reads a page. The site asks the network for nothing: fonts, styles and the search index lie beside the pages.
"""

from __future__ import annotations

import json
import re
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
# Browsers give a page from a disk no other page to quote from: what is found has its line from `_TEXTS`.
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


_TEXTS, _LINES = "search_texts.js", "search_lines.js"
"""Scripts of the search page: the texts of all pages; and what shows a line of each page that was found."""


_RULES = re.compile(r"-{4,} ?")
"""Rules below the heads of tables, which say nothing."""


def _add_lines(sphinx: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Let the search page load its scripts."""
    if name == "search":
        for script in (_TEXTS, _LINES):
            sphinx.add_js_file(script, loading_method="defer")


def _write_texts(sphinx: Any, error: Exception | None) -> None:
    """Write the text of every page, in a line each."""
    if error is None and sphinx.builder.format == "html":
        texts = {
            name: " ".join(sphinx.env.get_doctree(name).astext().split()) for name in sorted(sphinx.env.found_docs)
        }
        told = f"const TEXTS = {json.dumps(texts, ensure_ascii=False)};\n"
        (Path(sphinx.outdir) / "_static" / _TEXTS).write_text(told, encoding="utf-8")


def setup(sphinx: Any) -> None:
    """Blocks of languages that Pygments does not know are plain text: lists of rooms, and topologies."""
    sphinx.add_lexer("rooms", TextLexer)
    sphinx.add_lexer("csv", TextLexer)
    sphinx.connect("html-page-context", _add_lines)
    sphinx.connect("build-finished", _write_texts)
