r"""Ranks: one training run on many devices, started by `torchrun`.

R processes, the ranks, hold the same weights. All randomness of step k comes from the pair (seed,
k), so every rank draws the same batch and the same noise, takes its rows
(`fokker.objectives.Share`) and computes the gradient of their mean. One all-reduce of one flat
tensor,

.. math:: (\partial_\theta L, \; L, \; \text{info}, \; \text{flags}) \to
    \tfrac{1}{R} \sum_r (\dots)_r ,

gives each rank the gradient of the whole batch, and each takes the same step of the optimizer and
of the average: what is a function of equal numbers is equal, and `agree` checks it. A batch and a
seed mean the same for any number of ranks, up to the rounding of that sum.

The objective's state (the particles of persistent contrastive divergence) is shared by rows like
the batch, and put together again when it is saved, so a run may be resumed with another number of
ranks.

**Judging and drawing** are shared out by the number of the image: rank r of R takes those from
:math:`\lfloor n r / R \rfloor` to :math:`\lfloor n (r + 1) / R \rfloor`, each of which has noise
of its own, and `collect` puts together in order what all have found. A function that is handed
`ranks` is called on every rank with the same arguments, and returns on every rank what one rank
would find, up to rounding. What is no mean over points (the grid of a 2-D set, the normalizer of a
table) rank 0 judges alone and tells the others as JSON; it alone writes and prints. What fails on
one rank fails on all.

.. code-block:: bash

    torchrun --nproc-per-node 8 -m fokker train generation --data cifar10 --device cuda --out
    runs/cifar10 torchrun --nproc-per-node 8 -m fokker sample runs/cifar10 -n 50000 --device cuda
    -o samples.npy torchrun --nproc-per-node 8 -m fokker evaluate runs/cifar10 --fid 50000 --device
    cuda

NCCL carries tensors on GPUs, Gloo those on CPUs.
"""

__all__ = ["ALONE", "Ranks", "first_rank", "join", "orphan"]

import json
import os
import torch
import torch.distributed as dist

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from typing import Any, TypeVar

from .step import Gradients
from ..objectives import Share, interleave

Found = TypeVar("Found")

PATIENCE = timedelta(hours=1)  # of ranks that wait for another
FAILURES = (ValueError, OSError, FloatingPointError)  # that the command line says in one line


@dataclass(frozen=True)
class Ranks:
    r"""Creates this process's place among the ranks.

    Arguments:
        rank: The number of this rank, from 0.
        size: The number of ranks.
        device: The device of this rank.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def first(self) -> bool:
        r"""Whether this rank is the one that writes."""
        return self.rank == 0

    @property
    def share(self) -> Share:
        r"""The share of a batch that this rank computes."""
        return Share(self.rank, self.size)

    def among(self, n: int) -> range:
        r"""Returns which of n samples this rank makes, in a row: those of all ranks are all of
        them.

        With one source of randomness a sample (`fokker.samplers.streams`) they are those of one
        rank.
        """
        bounds = [n * r // self.size for r in (self.rank, self.rank + 1)]
        return range(*bounds)

    def mean(self, out: Gradients, flags: Sequence[float] = ()) -> tuple[Gradients, Tensor]:
        r"""Returns the mean over ranks of a step, by one all-reduce, and the sum of flags.

        Arguments:
            out: The step of this rank's share.
            flags: Numbers of this rank to be summed.
        """
        told = out.loss.new_zeros(len(flags))
        for i, flag in enumerate(flags):
            told[i].fill_(flag)  # not copied to the device, which would wait for it
        if self.size == 1:
            return out, told
        parts = [*out.gradients.values(), out.loss, *out.info.values(), told * self.size]
        flat = torch.cat([p.detach().reshape(-1) for p in parts])
        dist.all_reduce(flat)
        flat /= self.size
        pieces = flat.split([p.numel() for p in parts])
        whole = [v.view(p.shape).to(p.dtype) for v, p in zip(pieces, parts, strict=True)]
        n = len(out.gradients)
        gradients = dict(zip(out.gradients, whole[:n], strict=True))
        info = dict(zip(out.info, whole[n + 1 : -1], strict=True))
        return Gradients(gradients, whole[n], out.state, info), whole[-1]

    def gather(self, x: Tensor) -> Tensor:
        r"""Returns rows of which each rank has a share, put together, on every rank."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous())
        return interleave(parts)

    def collect(self, x: Tensor) -> Tensor:
        r"""Returns rows of which each rank has some in a row, none perhaps, in the order of the
        ranks, on every rank. Beyond their number, shapes and dtypes are the same."""
        if self.size == 1:
            return x
        counts = [torch.zeros(1, dtype=torch.long, device=self.device) for _ in range(self.size)]
        dist.all_gather(counts, torch.full_like(counts[0], len(x)))
        longest = max(int(n) for n in counts)
        padded = torch.zeros(longest, *x.shape[1:], dtype=x.dtype, device=self.device)
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        whole = torch.cat([part[: int(n)] for part, n in zip(parts, counts, strict=True)])
        return whole.to(x.device)

    def tell(self, value: Any = None, source: int = 0) -> Any:
        r"""Returns what one rank says, in the types of JSON; the others' value is not asked
        for."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.rank == source else b""
        count = torch.tensor(len(text), device=self.device)
        dist.broadcast(count, source)
        data = torch.zeros(int(count), dtype=torch.uint8, device=self.device)
        if self.rank == source:
            data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(data, source)
        return json.loads(bytes(data.cpu().tolist()))

    def each(self, work: Callable[[], Found]) -> Found:
        r"""Returns what this rank finds. If any rank fails, all fail, with the words of the first.

        Arguments:
            work: What this rank does; nothing in it may wait for another rank.
        """
        if self.size == 1:
            return work()
        found: list[Found] = []
        failed: Exception | None = None
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001 - raised below, once the others know
            failed = error
        first = torch.tensor(self.size if failed is None else self.rank, device=self.device)
        dist.all_reduce(first, dist.ReduceOp.MIN)
        if (source := int(first)) < self.size:
            kinds = [kind.__name__ for kind in FAILURES if isinstance(failed, kind)]
            told = self.tell({"kinds": kinds, "text": str(failed)}, source)
            if failed is not None and source == self.rank:
                raise failed
            alike = (kind for kind in FAILURES if kind.__name__ in told["kinds"])
            raise next(alike, RuntimeError)(f"rank {source} failed: {told['text']}")
        return found[0]

    def once(self, work: Callable[[], Any]) -> Any:
        r"""Returns what rank 0 finds, on every rank, in the types of JSON. If it fails, all fail.

        Arguments:
            work: What rank 0 does; nothing in it may wait for another rank.
        """
        if self.size == 1:
            return work()
        return self.tell(self.each(work if self.first else lambda: None))

    def agree(self, tensors: Sequence[Tensor]) -> None:
        r"""Raises unless all ranks hold the same tensors, bit for bit."""
        if self.size == 1:
            return
        mark = torch.stack([mark_of(t.detach()) for t in tensors])
        low, high = mark.clone(), mark.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        if not torch.equal(low, high):
            raise RuntimeError(
                f"expected the same weights on all {self.size} ranks, got others: a device or a"
                " library of one of them differs"
            )

    def sum(self, x: Tensor) -> Tensor:
        r"""Returns the sum of a tensor over ranks, on every rank, with its dtype and device."""
        if self.size == 1:
            return x
        whole = x.to(self.device, copy=True)
        dist.all_reduce(whole)
        return whole.to(x.device)


def mark_of(x: Tensor) -> Tensor:
    r"""Returns a number that changes with any bit of a tensor, and with the order of its
    numbers."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = x.reshape(-1).view(kind).long()
    return (bits * (torch.arange(len(bits), device=x.device) % 65_521 + 1)).sum()


ALONE = Ranks()


def first_rank() -> bool:
    r"""Whether this process speaks and writes: alone, or the first of those that torchrun
    started."""
    return os.environ.get("RANK", "0") == "0"


def orphan() -> Callable[[], bool]:
    r"""Returns a function that returns whether the torchrun that started this process, if one did,
    has ended without it: then nobody would stop it, and the next torchrun starts another."""
    parent = os.getppid()
    started = "TORCHELASTIC_RUN_ID" in os.environ
    return lambda: started and os.getppid() != parent


@contextmanager
def join(device: str | torch.device = "cpu") -> Generator[Ranks, None, None]:
    r"""Joins the ranks that `torchrun` started, and leaves them again; alone if it started none.

    Arguments:
        device: The kind of device. On GPUs each rank takes that of its number on its machine.
    """
    asked = torch.device(device)
    if dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size(), asked)
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks(device=asked)
        return
    if asked.type == "cuda":
        asked = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(asked)
    backend = "nccl" if asked.type == "cuda" else "gloo"
    # torchrun keeps one store for all restarts, in which the addresses of dead ranks remain
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefixed = PrefixStore(f"fokker-{attempt}", store)
    dist.init_process_group(backend, None, PATIENCE, size, rank, prefixed)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), asked)
    finally:
        dist.destroy_process_group()
