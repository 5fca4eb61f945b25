r"""The documentation: `make docs`. Nothing is fetched, every cell runs, a warning is an error.

Formulas become MathML, which browsers draw themselves: pages need no script, read well offline,
and a formula with a mistake stops the build. The pages of the API are made from the modules: of a
package, the docstrings of its parts (the maths), then the names it offers.
"""

import fokker
import importlib
import os
import pkgutil
import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from pathlib import Path
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging
from types import ModuleType

HERE = Path(__file__).parent

project, author, copyright = "fokker", "The fokker developers", "The fokker developers"
release = version = fokker.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

# pages with cells are run, and kept until their cells change
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build/cells")
nb_execution_timeout = 120
nb_execution_raise_on_error = nb_execution_show_tb = True
nb_merge_streams = True
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("FOKKER_CACHE", str(HERE / "_build/cache"))

# docstrings
default_role = "py:obj"
napoleon_google_docstring, napoleon_numpy_docstring = True, False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False  # said once, at the base
autodoc_preserve_defaults = True
autosummary_generate = False
add_module_names = False
python_maximum_signature_line_length = 88

LIBRARIES = (
    r"(torch|numpy|np|io|asyncio|pathlib|collections|contextlib|multiprocessing|typing|matplotlib"
    r"|abc|types|tyro)\b.*"
)
# names of other libraries, and words in single backquotes that are no names of ours
nitpick_ignore_regex = [
    ("py:obj", r".*"),
    ("py:class", LIBRARIES),
    ("py:class", r"(Tensor|Path|Figure|optional|fokker\..*|[A-Z]\w*)"),
    ("py:(exc|func|meth|attr|data)", r".*"),
]

html_theme = "furo"
html_title = f"fokker {release}"
html_static_path = ["_static"]
html_css_files = ["fokker.css"]
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = False

log = logging.getLogger(__name__)
BRACKETS = {"(": "l", "[": "l", r"\{": "l", ")": "r", "]": "r", r"\}": "r"}


def mathml(node: nodes.Element, block: bool) -> str:
    r"""Returns a formula in MathML. What docutils spells otherwise is respelled."""
    tex = re.sub(r"\\dots\b", r"\\ldots", node.astext())
    sized = r"\\(big|Big)\s*(\\?[\[\](){}])"
    tex = re.sub(sized, lambda m: f"\\{m[1]}{BRACKETS[m[2]]}{m[2]}", tex)
    tex = re.sub(r"\\(log|det)\b\s*(?![\s(\[_^]|\\[bB]ig)", r"\\\1\\, ", tex)
    try:
        return tex2mathml(tex, as_block=block)
    except MathError as error:
        log.warning("%s in %s", error, tex, location=node)
        return ""


def inline(self, node: nodes.math) -> None:  # noqa: ANN001
    self.body.append(mathml(node, block=False))
    raise nodes.SkipNode


def display(self, node: nodes.math_block) -> None:  # noqa: ANN001
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(mathml(node, block=True) + "</div>")
    raise nodes.SkipNode


def page(module: ModuleType) -> str:
    r"""Returns the page of a module; of a package, its parts and then the names it offers."""
    name = module.__name__
    out = [name, "=" * len(name), ""]
    offered = set(getattr(module, "__all__", ()))
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        part = importlib.import_module(f"{name}.{found.name}")
        own = [member for member in part.__all__ if member not in offered]
        title = f"{name}.{found.name}"
        out += [title, "-" * len(title), "", f".. automodule:: {title}"]
        out += [f"   :members: {', '.join(own)}" if own else "   :no-members:"]
        out += ["   :no-index:", ""] if found.name in offered else [""]  # a name of the package
    if hasattr(module, "__path__"):
        title = f"All of {name}"
        out += [title, "-" * len(title), ""]
    return "\n".join([*out, f".. automodule:: {name}", "   :members:", ""])


def write_pages(app: Sphinx) -> None:
    r"""Writes a page a module, leaving alone those that have not changed."""
    folder = HERE / "api/generated"
    folder.mkdir(parents=True, exist_ok=True)
    pages = {}
    for found in pkgutil.iter_modules(fokker.__path__):
        if found.name != "__main__":  # which runs
            module = importlib.import_module(f"fokker.{found.name}")
            if not module.__doc__:
                raise ExtensionError(f"expected a docstring in {module.__name__}, got none")
            pages[folder / f"{found.name}.rst"] = page(module)
    for path in set(folder.glob("*.rst")) - set(pages):
        path.unlink()
    for path, text in pages.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def skip(app: Sphinx, what: str, name: str, obj: object, skipped: bool, options: object) -> bool:
    r"""Leaves out the fields of named tuples, which are in the signature, and the methods by which
    scikit-learn routes metadata."""
    text = getattr(obj, "__doc__", None) or ""
    return skipped or text.startswith("Alias for field number") or "metadata_routing" in text


kept: dict[str, list[str]] = {}


def keep(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    r"""Keeps the docstring of an attribute from napoleon, which takes what stands before a colon
    in it for a type."""
    if what in {"attribute", "property", "data"}:
        kept[name] = list(lines)


def restore(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    if name in kept:
        lines[:] = kept.pop(name)


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-docstring", keep, priority=400)  # before napoleon, and after
    app.connect("autodoc-process-docstring", restore, priority=600)
