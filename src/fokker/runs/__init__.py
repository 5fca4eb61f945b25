r"""Runs: configuration, training, checkpoints and the run folder."""
