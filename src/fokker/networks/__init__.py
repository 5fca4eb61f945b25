r"""Networks that are energies."""

from .convolution import DTYPES, Conv2d, Linear, convolve
from .mlp import ACTIVATIONS, MLP, Fourier
from .unet import UNetDenoiser, UNetEnergy
from .wideresnet import WideResNet

__all__ = [
    "ACTIVATIONS",
    "DTYPES",
    "MLP",
    "Conv2d",
    "Fourier",
    "Linear",
    "UNetDenoiser",
    "UNetEnergy",
    "WideResNet",
    "convolve",
]
