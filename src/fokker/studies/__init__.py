r"""Studies: one module for each table of the paper."""
