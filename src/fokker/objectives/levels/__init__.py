r"""Divergences between noise levels, for images and for energies of every level.

`LevelDCD` is a law of levels, a weight and a form, the estimator of the divergence between a point
y of one level and a point z of the next. A form is a value of its own, in a file of its own with
its maths; write `levels.Path(0.05)`, as its name is that of a file elsewhere. With cost counted in
forward passes (a plain step, value and parameter gradient, is 3):

============  =================================================================  ======  ========
form          gradient                                                           passes  double
                                                                                         backward
============  =================================================================  ======  ========
`Limit`       :math:`\delta \to 0`, denoising score matching                     6       yes
`Central`     the same by a central difference along the miss                    8       no
`Bridge`      finite step, its two points driven by the same noise               8       no
`Path`        finite step, the bracket between the points, by Stein              12      yes
`Hutchinson`  finite step as in the paper, :math:`v^\top \nabla^2 E(z) \, v`     15      yes
============  =================================================================  ======  ========

`Bridge` with M weighted draws takes 2 + 6 M passes and tends to the exact divergence;
`Hutchinson` with a step of zero, its limit, takes 12.

**The finite step without its noise is denoising score matching.** Given x and z the point y is a
Gaussian bridge with mean :math:`z - \delta u` and variance :math:`\beta = \delta \sigma^2 /
\sigma_z^2`, so

.. math::
    \tfrac{1}{\delta} \, \mathbb{E} \big[ E(y) - E(z) \mid x, z \big]
    = -u \cdot \nabla E(z) + \tfrac{1}{2} \Delta E(z) + O(\delta) :

the Laplacian cancels that of the bracket :math:`\tfrac{1}{2} [\|\nabla E(z)\|^2 - \Delta E(z)]`
in the same row, and what is left is :math:`\tfrac{1}{2} \|\nabla E(z) - u\|^2` up to a constant.
**Ties** (`TimeScore`, `Classification`) are terms that any form can have beside it: they give the
energies of all levels one constant.

A form differs from the limit in variance, memory and the order of its derivatives, and by the
error of a finite step.
"""

from dataclasses import fields, replace

from .bridge import Bridge
from .central import Central
from .divergence import WEIGHTS, LevelDCD, weigh
from .form import Form, Pair, Terms
from .hutchinson import Hutchinson
from .limit import Limit
from .noisy import Denoising, Noisy
from .path import Path
from .ties import TIES, Classification, Tie, TimeScore
from ...checks import unknown

__all__ = [
    "FORMS",
    "TIES",
    "WEIGHTS",
    "Bridge",
    "Central",
    "Classification",
    "Denoising",
    "Form",
    "Hutchinson",
    "LevelDCD",
    "Limit",
    "Noisy",
    "Pair",
    "Path",
    "Terms",
    "Tie",
    "TimeScore",
    "form_of",
    "weigh",
    "with_step",
]

FORMS: dict[str, type[Form]] = {
    "limit": Limit,
    "central": Central,
    "bridge": Bridge,
    "path": Path,
    "hutchinson": Hutchinson,
}


def with_step(form: Form, step: float) -> Form:
    r"""Returns a form with another step; raises if it has none."""
    if "step" not in {field.name for field in fields(form)}:
        raise ValueError(f"expected no step for {form}, a limit, got {step}")
    return replace(form, step=step)  # pyright: ignore[reportCallIssue]


def form_of(name: str, step: float | None = None) -> Form:
    r"""Returns a form by its name.

    Arguments:
        name: A name in `FORMS`.
        step: The share r of the step; that of the form if not given.

    Example:
        >>> form_of("bridge", 0.05)
        Bridge(step=0.05, draws=1, shift=0.25)
    """
    if name not in FORMS:
        raise unknown(name, list(FORMS), "a form", "--form")
    return FORMS[name]() if step is None else with_step(FORMS[name](), step)
