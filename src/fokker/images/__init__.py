r"""Jobs on images with a given energy: denoise and generate."""

__all__: list[str] = []
