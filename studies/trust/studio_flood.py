r"""A flood of the studio: does the page still answer?

The studio is started with few file descriptors. Connections that ask for half a page and never
finish are held open by the hundred, and an open page sends thousands of messages as fast as it
can: requests that cost a worker time, messages that are none, and trainings that are stopped at
once. Meanwhile the page is fetched twice a second, with a fresh connection each time. A fault is a
fetch that fails or takes longer than a second, a server that has ended, or a log of more than
100 kB.

    python studies/trust/studio_flood.py --out results/trust.json
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
import websockets

from pathlib import Path
from studies.trust import record

DESCRIPTORS = 256  # of the server
ALLOWED = 1.0  # seconds for a page
LOG = 100_000  # bytes
SMALL = {"network": {"width": 8, "layers": 2}, "optimization": {"steps": 20_000, "batch": 8}}
MESSAGES = (
    json.dumps({"op": "look", "data": "moons"}),
    json.dumps({"op": "train", "data": "moons", "objectives": [{"kind": "sm"}], **SMALL}),
    json.dumps({"op": "stop"}),
    json.dumps({"op": "evolve", "side": 0, "step": 1}),
    json.dumps({"op": "meet", "side": 0, "step": 1}),
    json.dumps({"op": "ack", "side": 0}),
    json.dumps({"op": "export", "side": 0}),
    "no JSON",
    "[" * 10_000,
    json.dumps({"op": "x" * 100_000}),
)


async def fetch(port: int, cookie: str) -> float:
    r"""Returns the seconds until the page has come over a connection of its own."""
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200") or b"studio" not in answer:
        raise ConnectionError(f"expected the page, got {answer[:80]!r}")
    return time.perf_counter() - begin


async def half_open(port: int, count: int) -> None:
    r"""Opens connections and never finishes what they ask for."""
    held = []
    for i in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x" if i % 2 else b"")
        held.append(writer)
        await asyncio.sleep(0.002)
    await asyncio.sleep(3)
    for writer in held:
        writer.close()


async def messages(port: int, cookie: str, count: int) -> int:
    r"""Sends messages as fast as it can; returns the number of answers."""
    host, answers = f"127.0.0.1:{port}", 0
    headers = {"Cookie": cookie, "Origin": f"http://{host}"}
    uri = f"ws://{host}/socket"
    async with websockets.connect(uri, additional_headers=headers, max_size=None) as socket:

        async def read() -> None:
            nonlocal answers
            async for _ in socket:
                answers += 1

        reading = asyncio.create_task(read())
        for i in range(count):
            await socket.send(MESSAGES[i % len(MESSAGES)] if i % 3 else MESSAGES[0])
        await asyncio.sleep(2)
        reading.cancel()
    return answers


async def flood(port: int, token: str, count: int, connections: int) -> tuple[list[float], int]:
    r"""Floods a server; returns the seconds of each fetch of the page, infinite where it failed,
    and the number of answers to the messages."""
    cookie, times = f"fokker-studio-{port}={token}", []
    attacks = asyncio.gather(
        half_open(port, connections),
        messages(port, cookie, count // 2),
        messages(port, cookie, count - count // 2),
    )
    while not attacks.done():
        try:
            times.append(await fetch(port, cookie))
        except (OSError, TimeoutError) as error:
            print(f"fetch {len(times)}: {error}")
            times.append(float("inf"))
        await asyncio.sleep(0.5)
    _, first, second = await attacks
    return times, first + second


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(args)
    command = [sys.executable, "-m", "fokker", "studio", "--port", "0", "--no-browser"]
    few = f'ulimit -n {DESCRIPTORS}; exec "$@"'
    with tempfile.TemporaryDirectory() as root, Path(root, "log").open("wb") as log:
        server = subprocess.Popen(
            ["bash", "-c", few, "bash", *command, "--runs", f"{root}/runs"],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "TMPDIR": root},
        )
        assert server.stdout is not None
        address = urllib.parse.urlsplit(server.stdout.readline().decode().split()[1])
        token, port = urllib.parse.parse_qs(address.query)["token"][0], address.port
        assert port is not None
        begin = time.perf_counter()
        times, answers = asyncio.run(flood(port, token, given.messages, given.connections))
        seconds, ended = time.perf_counter() - begin, server.poll() is not None
        server.terminate()
        server.wait(20)
        written = Path(root, "log").stat().st_size
        print(Path(root, "log").read_bytes()[:2000].decode(errors="replace"))
    late = sum(t > ALLOWED for t in times)
    faults = late + ended + (written > LOG)
    slowest = max(times)
    detail = (
        f"{given.messages:,} messages on 2 pages and {given.connections:,} half-open connections"
        f" in {seconds:.0f} s, {DESCRIPTORS} file descriptors: {answers:,} answers;"
        f" {len(times)} fetches of the page, the slowest {slowest:.2f} s; {written:,} bytes of"
        f" log; {faults} faults"
    )
    print(detail)
    if given.out is not None:
        attempts = given.messages + given.connections
        row = {"value": faults, "unit": f"faults in {attempts:,} calls", "detail": detail}
        record(
            given.out,
            "studio-flood",
            [row],
            f"python studies/trust/studio_flood.py --out {given.out}",
        )
    if faults:
        raise SystemExit(f"expected no fault, got {faults}")


if __name__ == "__main__":
    main()
