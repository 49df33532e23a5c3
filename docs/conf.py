"""Settings of the documentation site: `make docs` builds it into build/docs."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from lookfurther import __version__  # noqa: E402

project, author, release = "lookfurther", "The lookfurther developers", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
myst_heading_anchors = 3
# Pages link to files of the repository, such as notes, which are not part of the site.
suppress_warnings = ["myst.xref_missing"]
exclude_patterns = ["generate_settings.py"]
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
html_theme = "furo"
html_title = "lookfurther"
