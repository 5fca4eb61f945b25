r"""What the collection of doctests leaves out: modules whose libraries are not installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("blackjax") else ["sampling/jax_samplers.py"]
