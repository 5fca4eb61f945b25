r"""Runs: configuration, training, checkpoints and the run folder."""

__all__: list[str] = []
