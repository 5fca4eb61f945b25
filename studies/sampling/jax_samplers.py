r"""The samplers of blackjax for the study of rivals, and its targets in JAX.

- `nuts`: the No-U-Turn sampler, each chain with Stan's window adaptation of its step and mass,
  200 transitions long, then blocks of 25 transitions until the evaluations are spent;
- `smc`: adaptive tempered SMC from the base with MALA moves, ten a rung, an effective share of
  0.9, its step size as given.
"""

__all__ = ["RUNS", "energy_of"]

# pyright: reportMissingImports=false
import blackjax
import functools
import jax
import jax.numpy as jnp
import math
import numpy as np
import torch

from collections.abc import Callable
from studies.sampling.targets import STD, Rounds
from typing import Any

WARMUP, BLOCK = 200, 25
Array = Any


def energy_of(given: Any) -> Callable[[Array], Array]:
    r"""Returns the energy of a problem in JAX, of one point, checked against the one in torch."""
    known, name = given.target, given.target.name
    if isinstance(known.energy, Rounds):
        means = jnp.asarray(known.energy.means.numpy())
        logs = jnp.asarray(known.energy.log_weights.numpy())
        energy = lambda x: -jax.nn.logsumexp(logs - ((x - means) ** 2).sum(1) / (2 * STD**2))
    elif name == "funnel":

        def energy(x: Array) -> Array:
            inner = (x[1:] ** 2).sum() * jnp.exp(-x[0]) / 2 + (len(x) - 1) / 2 * x[0]
            return x[0] ** 2 / 18 + inner

    elif name.startswith("many-well"):

        def energy(x: Array) -> Array:
            a, b = x[0::2], x[1::2]
            return (a**4 - 6 * a**2 - a / 2 + b**2 / 2).sum()

    else:  # a Gaussian: its precision from the torch energy, which is a quadratic form
        hessian = torch.func.hessian(lambda x: known.energy(x[None])[0])
        precision = jnp.asarray(hessian(torch.zeros(known.dimension)).numpy())
        energy = lambda x: x @ precision @ x / 2
    x = given.base.sample(16, torch.Generator().manual_seed(0))
    seen, expected = jax.vmap(energy)(jnp.asarray(x.numpy())), known.energy(x).numpy()
    if not np.allclose(seen, expected, rtol=1e-3, atol=1e-2):
        raise ValueError(f"expected the energy of {name} in JAX as in torch, got {seen}")
    return energy


@functools.cache
def nuts(given: Any, diagonal: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    r"""Returns the compiled warmup and block of NUTS on a problem."""
    energy = energy_of(given)
    log_density = lambda x: -energy(x)
    adaptation = blackjax.window_adaptation(
        blackjax.nuts, log_density, is_mass_matrix_diagonal=diagonal
    )

    def warmup(key: Array, x: Array) -> Any:
        (state, parameters), info = adaptation.run(key, x, WARMUP)
        return state, parameters, info.info.num_integration_steps.sum()

    def block(key: Array, state: Any, parameters: Any) -> Any:
        kernel = blackjax.nuts(log_density, **parameters)

        def step(state: Any, key: Array) -> Any:
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps)

        state, (x, leaps) = jax.lax.scan(step, state, jax.random.split(key, BLOCK))
        return state, x, leaps.sum()

    return jax.jit(jax.vmap(warmup)), jax.jit(jax.vmap(block))


def run_nuts(
    given: Any, start: np.ndarray, seed: int, step: float, budget: int, diagonal: bool = True
) -> tuple[np.ndarray, int]:
    r"""Returns the samples of NUTS and the evaluations they took."""
    warmup, block = nuts(given, diagonal)
    key = jax.random.key(seed)
    key, first = jax.random.split(key)
    state, parameters, leaps = warmup(jax.random.split(first, len(start)), jnp.asarray(start))
    total, kept = int(leaps.sum()), []
    while total < budget or not kept:
        key, following = jax.random.split(key)
        state, x, leaps = block(jax.random.split(following, len(start)), state, parameters)
        total += int(leaps.sum())
        kept.append(np.asarray(x))
    return np.concatenate(kept, axis=1), total


@functools.cache
def tempered(given: Any, step: float) -> tuple[Any, Callable[..., Any]]:
    r"""Returns adaptive tempered SMC on a problem, and its compiled step."""
    energy = energy_of(given)
    mean = jnp.asarray(given.base.means[0].numpy())
    variance = float(given.base.covariances[0, 0, 0])
    dim = len(mean)

    def prior(x: Array) -> Array:
        away = ((x - mean) ** 2).sum() / variance
        return -(away + dim * math.log(2 * math.pi * variance)) / 2

    parameters = {"step_size": jnp.asarray([step * variance])}
    kernel = blackjax.mala.build_kernel()
    smc = blackjax.adaptive_tempered_smc(
        prior, lambda x: -energy(x) - prior(x), kernel, blackjax.mala.init,
        parameters, blackjax.smc.resampling.systematic, 0.9, num_mcmc_steps=10,
    )  # fmt: skip
    return smc, jax.jit(smc.step)


def run_smc(
    given: Any, start: np.ndarray, seed: int, step: float, budget: int
) -> tuple[np.ndarray, int]:
    r"""Returns the particles of adaptive tempered SMC and the evaluations they took: a pilot run
    of 512 says how many rungs there are, hence how many particles the evaluations last for."""
    total, n, particles = 0, 512, np.empty((0, start.shape[1]), np.float32)
    smc, advance = tempered(given, step)
    for key in jax.random.split(jax.random.key(seed), 2):
        x = given.base.sample(n, torch.Generator().manual_seed(seed + n)).numpy()
        state, rungs = smc.init(jnp.asarray(x)), 0
        while float(state.tempering_param) < 1:
            key, following = jax.random.split(key)
            state, _ = advance(following, state)
            rungs += 1
            if rungs > 400:
                raise ValueError(f"expected 400 rungs at most, got more at step size {step}")
        total += 12 * rungs * n
        particles = np.asarray(state.particles)
        # a power of two, so that few shapes are compiled
        n = 2 ** max(9, int(math.log2(max(budget - total, 1) / (12 * rungs))))
    return particles, total


RUNS: dict[str, Callable[..., tuple[np.ndarray, int]]] = {
    "nuts": run_nuts,
    "nuts-dense": functools.partial(run_nuts, diagonal=False),
    "smc": run_smc,
}
