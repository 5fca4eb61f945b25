r"""The commands of `fokker`, one class each: its fields are the options, and `run` does it."""
