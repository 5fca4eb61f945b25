r"""Figures and parts of the pages that reports are made of."""
