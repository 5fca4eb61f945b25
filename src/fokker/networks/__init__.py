r"""Networks that are energies."""

from .mlp import ACTIVATIONS, MLP, Fourier

__all__ = ["ACTIVATIONS", "MLP", "Fourier"]
