r"""Jobs on images with a given energy: denoise and generate."""
