r"""Tables: densities and anomalies of real data.

`EnergyDensity` is the density of a table, `EnergyOutlier` finds its odd rows and says why they are
odd. Both train on any finite table in seconds and have the interface of scikit-learn, which they
need: ``pip install "fokker[tables]"``. `fokker train table` trains the same energies without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .density import EnergyDensity
    from .outlier import EnergyOutlier, Explanation

__all__ = ["EnergyDensity", "EnergyOutlier", "Explanation"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ImportError(
            'expected scikit-learn for fokker.tables: pip install "fokker[tables]"'
        ) from None
    from . import density, outlier

    return getattr(density if name == "EnergyDensity" else outlier, name)
