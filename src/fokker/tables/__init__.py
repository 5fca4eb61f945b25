r"""Tables: densities and anomalies of real data, with the interface of scikit-learn.

`EnergyDensity` is the density of a table, `EnergyOutlier` finds its odd rows and says why they are
odd. Both train on any finite table in seconds. They need scikit-learn:
``pip install "fokker[tables]"``.
"""

try:
    import sklearn  # noqa: F401
except ImportError:
    raise ImportError(
        'expected scikit-learn for fokker.tables: pip install "fokker[tables]"'
    ) from None

from .density import EnergyDensity
from .outlier import EnergyOutlier, Explanation

__all__ = ["EnergyDensity", "EnergyOutlier", "Explanation"]
