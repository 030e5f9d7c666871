"""Sphinx configuration for the generated pages; `generator` runs Sphinx."""

import os
from importlib.resources import files

project = "moespec"
author = "The moespec developers"
version = release = os.environ["MOESPEC_VERSION"]
project_copyright = "The moespec developers, Apache-2.0"
extensions = ["myst_nb", "sphinx_design", "generator.mathml", "generator.heads"]
html_math_renderer = "mathml"
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = nb_execution_raise_on_error = nb_merge_streams = True
nb_execution_timeout = -1
nb_output_stderr = "remove"
nitpicky = True
html_theme = "furo"
html_title = f"moespec {version}"
html_baseurl = f"{os.environ['MOESPEC_SITE']}{version}/" if "MOESPEC_SITE" in os.environ else ""
html_static_path = ["_static", str(files("mathjax") / "static" / "mathjax" / "es5" / "mml-svg.js")]
html_extra_path = ["../CITATION.cff"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
templates_path: list[str] = []
pygments_style = "default"
