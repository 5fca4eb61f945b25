r"""Studies: what the library is measured by. They live beside the package, not in it, and need a
clone."""
