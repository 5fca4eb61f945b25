r"""Figures and parts of the pages that reports are made of."""

__all__: list[str] = []
