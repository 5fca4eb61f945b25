r"""Samples and normalizing constants, held against the truth."""

__all__ = []
