r"""Workers: a process that trains one energy and draws it while it does.

Training is `fokker.fit` in a thread of its own, with nothing changed about it: after each step it
leaves a copy of the averaged weights in a slot, if that is empty, and goes on. The main thread
takes the copy, draws it and sends the frame. **Frames are dropped, never queued**: there is one
slot, and a frame is drawn only while the page has acknowledged all but `AHEAD` of those before.

A worker is told what to do over a pipe, by pairs of a verb and its arguments, and answers with

=============  ===========================================================
`frame`        bytes for the page (`fokker.studio.view`)
`done`         the run is over: its folder, its step and its judgement
`error`        one line
=============  ===========================================================
"""

__all__ = ["work"]

import math
import os
import re
import resource
import signal
import sys
import threading
import time
import torch

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from torch import Tensor
from typing import Any

from .view import View
from ..checks import TOO_MUCH
from ..files import first_line
from ..runs.config import Config
from ..runs.training import Interrupted, fit

AHEAD = 3  # frames on their way
KEPT, STORE = 120, 2**28  # weights of earlier steps, and bytes of them
MEMORY = 3 * 2**29  # bytes that a worker may take
TRACED = 3  # steps after which the step is traced for good; a trace must not be disturbed

Weights = dict[str, Tensor]
FAULTS = (ValueError, OSError, FloatingPointError, MemoryError, RuntimeError)


def in_words(error: Exception) -> str:
    r"""Returns what a page is told of a fault."""
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in TOO_MUCH)
    ):
        return (
            f"expected settings that fit into {MEMORY / 2**30:.1f} GiB, got more: try a smaller"
            " batch, width, or number of layers or points"
        )
    return first_line(error)


def bound_memory() -> None:
    r"""Bounds what this process may take beyond what it has now: a page may ask for any settings
    within its bounds, and some of them together are large."""
    if sys.platform != "linux":
        return
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = 1024 * int(found[1]) + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))


class Training(threading.Thread):
    r"""A run of `fokker.fit` in a thread, which leaves its weights in a slot."""

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(daemon=True)
        self.config, self.folder = config, folder
        self.slot: tuple[int, Weights] | None = None
        self.losses: list[tuple[int, float]] = []
        self.lock = threading.Lock()  # of the losses
        self.stopping, self.traced = threading.Event(), threading.Event()
        self.step = 0
        # what is said of the run once the thread has ended: anything unforeseen is on the terminal
        unforeseen = "training ended in an unforeseen way; the terminal of the server says more"
        self.outcome: dict[str, Any] = {"state": "failed", "step": 0, "message": unforeseen}
        self.begun = time.perf_counter()

    def run(self) -> None:
        try:
            run = fit(self.config, self.folder, watch=self.watch)
            self.outcome = {"state": "done", "step": run.step, "judged": run.judged}
        except Interrupted as stop:
            self.outcome = {"state": "stopped", "step": stop.step, "judged": {}}
        except FloatingPointError as error:
            self.outcome = {"state": "diverged", "step": self.step, "message": str(error)}
        except (MemoryError, ValueError, OSError, RuntimeError) as error:
            message = in_words(error)
            self.outcome = {"state": "failed", "step": self.step, "message": message}
        finally:
            self.traced.set()

    def watch(self, step: int, loss: Tensor, average: Weights) -> bool:
        self.step = step
        number = float(loss)
        if math.isfinite(number):
            with self.lock:
                self.losses.append((step, number))
        last = step == self.config.optimization.steps
        if step >= TRACED:
            self.traced.set()
            if self.slot is None or last:
                self.slot = (step, {name: w.clone() for name, w in average.items()})
        # a loss that is not finite ends the run, which says so, at this very step
        return self.stopping.is_set() or not math.isfinite(number)


class Worker:
    r"""Creates a worker at one end of a pipe.

    Arguments:
        connection: The end of the pipe.
        side: The side of the page it draws for.
    """

    def __init__(self, connection: Connection, side: int) -> None:
        self.connection, self.side = connection, side
        self.training: Training | None = None
        self.view: View | None = None
        self.kept: dict[int, Weights] = {}
        self.ahead = 0

    def loop(self) -> None:
        r"""Serves until the other end closes."""
        verbs: dict[str, Callable[..., None]] = {
            "look": self.look_at,
            "train": self.train,
            "stop": self.stop,
            "ack": self.ack,
            "evolve": lambda job, step: self.animate("evolve", job, step),
            "meet": lambda job, step: self.animate("meet", job, step),
        }
        while True:
            idle = self.training is None
            while self.connection.poll(None if idle else 0.002):
                try:
                    verb, *arguments = self.connection.recv()
                except EOFError:
                    return
                try:
                    verbs[verb](*arguments)
                except FAULTS as error:
                    self.say("error", message=in_words(error))
                idle = self.training is None
            self.watch()

    def say(self, verb: str, **what: Any) -> None:
        self.connection.send((verb, {"side": self.side, **what}))

    def look_at(self, config: Config) -> None:
        r"""Sends the picture of a data set, before anything is trained on it."""
        self.connection.send(("frame", View(config).start({"op": "look", "side": self.side})))

    def train(self, job: int, config: Config, folder: Path) -> None:
        r"""Starts to train, after the first frame is drawn."""
        self.job, self.ahead = job, 0
        try:
            self.view = View(config)
            self.energy = config.build(self.view.shape).requires_grad_(False)
            steps = config.optimization.steps
            about = {"op": "start", "side": self.side, "job": job, "steps": steps}
            self.connection.send(("frame", self.view.start(about)))
            self.kept = {0: {k: v.clone() for k, v in self.energy.state_dict().items()}}
            self.draw(0, self.kept[0], [], 0.0)
        except FAULTS as error:
            self.say("done", job=job, state="failed", step=0, message=in_words(error))
            return
        self.training = Training(config, folder)
        self.training.start()

    def stop(self) -> None:
        if self.training is not None:
            self.training.stopping.set()

    def ack(self) -> None:
        self.ahead = max(0, self.ahead - 1)

    def watch(self) -> None:
        r"""Draws what training has left in the slot, and says when it is over."""
        training = self.training
        if training is None:
            return
        over = not training.is_alive()
        if training.slot is not None and (self.ahead < AHEAD or over):
            step, weights = training.slot
            with training.lock:
                losses, training.losses = training.losses, []
            training.slot = None
            try:
                self.draw(step, weights, losses, time.perf_counter() - training.begun)
            except FAULTS as error:
                training.stopping.set()
                self.say("error", message=f"stopped at step {step}: {in_words(error)}")
        if over:
            self.training = None
            self.say("done", job=self.job, **training.outcome)

    def draw(
        self, step: int, weights: Weights, losses: list[tuple[int, float]], seconds: float
    ) -> None:
        assert self.view is not None
        self.energy.load_state_dict(weights)
        header = {
            "op": "frame",
            "side": self.side,
            "job": self.job,
            "step": step,
            "first_loss": losses[0][0] if losses else step,
            "seconds": round(seconds, 3),
        }
        frame = self.view.frame(self.energy, header, [loss for _, loss in losses])
        self.keep(step, weights)
        self.ahead += 1
        self.connection.send(("frame", frame))

    def keep(self, step: int, weights: Weights) -> None:
        r"""Keeps weights for later. Of too many, the one goes whose neighbors are closest."""
        self.kept[step] = weights
        size = sum(w.nbytes for w in weights.values())
        if len(self.kept) > max(2, min(KEPT, STORE // max(1, size))):
            steps = sorted(self.kept)
            gone = min(range(1, len(steps) - 1), key=lambda i: steps[i + 1] - steps[i - 1])
            del self.kept[steps[gone]]

    def animate(self, what: str, job: int, step: int) -> None:
        r"""Sends an animation of the energy at the kept step nearest to a given one."""
        if self.view is None or not self.kept or job != self.job:
            raise ValueError("expected a run that has begun, got none: press train first")
        if self.training is not None:
            self.training.traced.wait()
        nearest = min(self.kept, key=lambda k: abs(k - step))
        self.energy.load_state_dict(self.kept[nearest])
        make = self.view.evolve if what == "evolve" else self.view.meet
        header = {"op": what, "side": self.side, "job": job, "step": nearest}
        self.connection.send(("frame", make(self.energy, header)))


def work(connection: Connection, side: int) -> None:
    r"""Runs a worker in a process of its own, with one thread for each product of matrices."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which closes the pipe
    os.nice(5)  # the server answers first
    torch.set_num_threads(1)
    bound_memory()
    sys.setswitchinterval(5e-4)  # so that neither of the two threads waits long for the other
    try:
        Worker(connection, side).loop()
    except (BrokenPipeError, ConnectionResetError):  # the page was closed meanwhile
        return
