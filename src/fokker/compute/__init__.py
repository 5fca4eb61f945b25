r"""Compute: the training step as one graph, compiled or captured; optimizers; many devices."""
