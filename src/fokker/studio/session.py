r"""Sessions: one open page, its requests, and the workers that answer them.

A page has one or two sides, each with a worker of its own, so that a comparison trains on two
cores. Whatever a page sends, it gets an answer or one line that says what was expected, and the
session goes on. All that a session makes lies in a temporary folder, which goes with it; `export`
copies a run to where the server keeps runs.
"""

__all__ = ["Session"]

import asyncio
import contextlib
import multiprocessing
import shutil
import tempfile

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from .export import export
from .request import SIDES, integer, only, parse, read
from .worker import work
from ..files import beside, write_text
from ..runs.config import Config, TableData
from ..runs.toml import kind_of

SPAWN = multiprocessing.get_context("spawn")  # torch has threads, which a fork would break
PLACE = Path(tempfile.gettempdir()) / "fokker-studio"  # of the folders of sessions
WAITING = 64  # requests to a worker
GRACE = 2.0  # seconds for a worker to end
Send = Callable[[Any], Awaitable[None]]


@dataclass
class Side:
    r"""A worker and the run it does, or did last."""

    process: BaseProcess
    connection: Connection
    reader: ThreadPoolExecutor
    writer: ThreadPoolExecutor  # a pipe that is full waits here, not the server
    waiting: int = 0  # requests that the worker has not taken yet
    listening: asyncio.Task[None] | None = None
    config: Config | None = None
    folder: Path | None = None
    state: str = "idle"  # training, done, stopped, diverged or failed
    step: int = 0

    def ask(self, *request: Any) -> None:
        r"""Sends a request to the worker, which may be busy; raises if too many wait."""
        if self.waiting >= WAITING:
            raise ValueError(f"expected at most {WAITING} requests at once, got more: wait a bit")
        self.waiting += 1
        sent = asyncio.get_running_loop().run_in_executor(self.writer, self.send, request)
        sent.add_done_callback(self.sent)

    def send(self, request: tuple[Any, ...]) -> None:
        with contextlib.suppress(OSError):  # the worker has ended, which its reader tells
            self.connection.send(request)

    def sent(self, future: asyncio.Future[None]) -> None:
        self.waiting -= 1


class Session:
    r"""Creates the session of a page.

    Arguments:
        send_json: Sends an object to the page.
        send_bytes: Sends bytes to the page.
        runs: The folder to export to.
    """

    def __init__(self, send_json: Send, send_bytes: Send, runs: Path) -> None:
        self.send_json, self.send_bytes, self.runs = send_json, send_bytes, runs
        self.sides: dict[int, Side] = {}
        self.job = 0
        self.resources = contextlib.ExitStack()
        self.folder = self.resources.enter_context(beside(PLACE, folder=True))
        self.folder.chmod(0o700)

    def side(self, i: int) -> Side:
        r"""Returns a side, with a live worker."""
        if i not in self.sides:
            here, there = SPAWN.Pipe()
            process = SPAWN.Process(target=work, args=(there, i), daemon=True)
            process.start()
            there.close()
            self.sides[i] = Side(process, here, ThreadPoolExecutor(1), ThreadPoolExecutor(1))
            self.sides[i].listening = asyncio.create_task(self.listen(i, self.sides[i]))
        return self.sides[i]

    async def listen(self, i: int, side: Side) -> None:
        r"""Passes on what a worker says, until it ends."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                verb, what = await loop.run_in_executor(side.reader, side.connection.recv)
            except (EOFError, OSError):
                self.sides.pop(i, None)
                side.process.join()
                side.reader.shutdown(wait=False)
                side.writer.shutdown(wait=False)
                message = f"the worker ended unexpectedly, with code {side.process.exitcode}"
                await self.send_json({"op": "error", "side": i, "over": True, "message": message})
                return
            if verb == "frame":
                await self.send_bytes(what)
                continue
            if verb == "done":
                side.state, side.step = what["state"], what["step"]
            await self.send_json({"op": verb, **what})

    async def handle(self, text: str) -> None:
        r"""Answers a message of the page."""
        try:
            request = read(text)
            verbs = {
                "look": self.look,
                "train": self.train,
                "stop": self.stop,
                "ack": self.ack,
                "evolve": self.animate,
                "meet": self.animate,
                "export": self.export,
            }
            if request["op"] not in verbs:
                got = repr(request["op"])[:80]
                raise ValueError(f"expected op to be one of {', '.join(verbs)}, got {got}")
            await verbs[request["op"]](request)
        except (ValueError, OSError) as error:
            await self.send_json({"op": "error", "message": str(error)})

    async def look(self, request: dict[str, Any]) -> None:
        only(request, "data")
        config = parse({"op": "train", "objectives": [{"kind": "sm"}], **request}).configs[0]
        self.side(0).ask("look", config)

    async def train(self, request: dict[str, Any]) -> None:
        job = parse(request)
        if any(side.state == "training" for side in self.sides.values()):
            raise ValueError("expected a session at rest, got one that trains: press stop first")
        self.job += 1
        root = self.folder
        data = None
        if job.points is not None:
            path = root / f"points-{self.job}.csv"
            lines = [f"{x:.6g},{y:.6g}" for x, y in job.points]
            write_text(path, "\n".join(["x,y", *lines]) + "\n")
            data = TableData(str(path))
        for i, config in enumerate(job.configs):
            side = self.side(i)
            chosen = config if data is None else replace(config, data=data)
            folder = root / f"run-{self.job}-{i}"
            old = side.folder
            side.ask("train", self.job, chosen, folder)
            side.config, side.folder, side.state, side.step = chosen, folder, "training", 0
            if old is not None:
                await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)

    async def stop(self, request: dict[str, Any]) -> None:
        only(request)
        for side in self.sides.values():
            side.ask("stop")

    def asked(self, request: dict[str, Any]) -> Side:
        r"""Returns the side that a request names."""
        i = integer(request, "side", 0, SIDES - 1)
        if i not in self.sides or self.sides[i].config is None:
            raise ValueError(f"expected a side that has been trained, got side {i}, which has not")
        return self.sides[i]

    async def ack(self, request: dict[str, Any]) -> None:
        only(request, "side")
        self.asked(request).ask("ack")

    async def animate(self, request: dict[str, Any]) -> None:
        only(request, "side", "step")
        step = integer(request, "step", 0, 10**9)
        self.asked(request).ask(request["op"], self.job, step)

    async def export(self, request: dict[str, Any]) -> None:
        only(request, "side")
        side = self.asked(request)
        if side.state not in {"done", "stopped"} or not (side.config and side.folder):
            raise ValueError(
                f"expected a run that is done or stopped, got one that is {side.state}"
            )
        name = (
            f"studio-{side.config.data.title}-{kind_of(side.config.objective)}-{side.config.seed}"
        )
        made = await asyncio.to_thread(export, side.folder, self.runs, name, side.step)
        answer = {
            "op": "exported",
            "side": request["side"],
            "path": str(made[0]),
            "script": made[1],
        }
        await self.send_json(answer)

    def close(self) -> None:
        r"""Ends the workers and removes what they made. Nothing in it waits for the event loop,
        which may be about to end itself."""
        sides, self.sides = list(self.sides.values()), {}
        for side in sides:
            if side.listening is not None:
                side.listening.cancel()
            side.process.terminate()  # which also ends the wait of its reader
        for side in sides:
            side.process.join(GRACE)
            side.process.kill()
            side.process.join()
            side.reader.shutdown()
            side.writer.shutdown()
            side.connection.close()
        self.resources.close()
