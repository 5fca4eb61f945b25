r"""Studies of densities: composition, likelihoods in one pass, images out of distribution."""
