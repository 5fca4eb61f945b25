r"""Standard output that nobody reads any more."""

__all__ = ["mute"]

import os
import sys


def mute() -> None:
    r"""Sends what is yet to be printed nowhere, once the reader of a pipe has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
