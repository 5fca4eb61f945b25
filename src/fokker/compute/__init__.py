r"""Compute: the training step as one graph, compiled or captured; optimizers; many devices."""

__all__: list[str] = []
