r"""The server: the page, and a socket for each that is open.

It listens on the loopback address alone. Other users of this machine can call that too, so the
address has a random token, as that of a notebook: whoever opens it gets the token as a cookie, and
nothing is answered without it. Other web pages in the same browser could call it as well, so two
headers are checked: `Host` must name this machine, or a page elsewhere could reach it by a name
that it points here (DNS rebinding); and the `Origin` of a socket must be the page that this server
sent. Nothing is fetched from anywhere else, and a page may not be framed.
"""

__all__ = ["app", "serve"]

import asyncio
import contextlib
import importlib.util
import json
import re
import secrets
import socket
import webbrowser

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .connections import BACKLOG, bounded
from .form import presets
from .request import BOUNDS, FEWEST_POINTS, LIMIT, MOST_POINTS
from .session import PLACE, Session
from .. import __version__
from ..data import PLANAR
from ..files import sweep

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.websockets import WebSocket

STATIC = Path(__file__).parent / "static"
SESSIONS = 4  # pages open at once
HOSTS = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")
HEADERS = {
    b"content-security-policy": b"default-src 'self'; connect-src 'self' ws:; img-src 'self' data:"
    b" blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-cache",
}
HEADERS_TEXT = {name.decode(): value.decode() for name, value in HEADERS.items()}


class Guard:
    r"""Lets only this machine's own page in, and adds the headers that keep it to itself.

    Arguments:
        inner: The application.
        token: The token that a caller must have; none is asked for if it is `None`.
    """

    def __init__(self, inner: Callable[..., Any], token: str | None) -> None:
        self.inner, self.token = inner, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.requests import HTTPConnection
        from starlette.responses import PlainTextResponse, RedirectResponse

        if scope["type"] not in {"http", "websocket"}:
            await self.inner(scope, receive, send)
            return
        headers = {k.lower(): v.decode("latin-1") for k, v in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        wrong = None
        if not HOSTS.fullmatch(host):
            wrong = f"expected the host to be localhost or 127.0.0.1, got {host[:80]!r}"
        elif origin != f"http://{host}" and (origin is not None or scope["type"] == "websocket"):
            wrong = f"expected a page of http://{host}, got one of {str(origin)[:80]!r}"
        if wrong is None and self.token is not None:
            call = HTTPConnection(scope)
            cookie = f"fokker-studio-{host.rpartition(':')[2]}"
            if scope["path"] == "/" and same(call.query_params.get("token"), self.token):
                answer = RedirectResponse("/", 303, HEADERS_TEXT)
                answer.set_cookie(cookie, self.token, httponly=True, samesite="strict")
                await answer(scope, receive, send)
                return
            if not same(call.cookies.get(cookie), self.token):
                wrong = "expected the address with the token that `fokker studio` has printed"
        if wrong is not None:
            await PlainTextResponse(wrong + "\n", 403)(scope, receive, send)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS.items()]
            await send(message)

        await self.inner(scope, receive, guarded)


def same(given: str | None, token: str) -> bool:
    return given is not None and secrets.compare_digest(given.encode(), token.encode())


def hello() -> dict[str, Any]:
    r"""Returns what a page needs to know: sets, presets, forms and bounds."""
    return {
        "op": "hello",
        "version": __version__,
        "sets": list(PLANAR),
        "presets": presets(),
        "bounds": BOUNDS,
        "points": [FEWEST_POINTS, MOST_POINTS],
    }


def app(runs: Path = Path("runs"), token: str | None = None) -> "Starlette":
    r"""Returns the application.

    Arguments:
        runs: The folder to export to.
        token: The token that a caller must have; none is asked for if not given.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.routing import Mount, WebSocketRoute
    from starlette.staticfiles import StaticFiles
    from starlette.websockets import WebSocketDisconnect

    greeting, open_sessions = hello(), set[Session]()

    async def talk(websocket: "WebSocket") -> None:
        await websocket.accept()
        lock = asyncio.Lock()

        async def send_json(what: Any) -> None:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the page has gone
                async with lock:
                    await websocket.send_text(json.dumps(what, allow_nan=False))

        async def send_bytes(what: bytes) -> None:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                async with lock:
                    await websocket.send_bytes(what)

        if len(open_sessions) >= SESSIONS:
            message = f"expected at most {SESSIONS} open pages, got one more: close another"
            await send_json({"op": "error", "message": message})
            await websocket.close(1013, message)
            return
        session = Session(send_json, send_bytes, runs)
        open_sessions.add(session)
        try:
            await send_json(greeting)
            session.side(0)  # takes a second or two to wake
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                text = message.get("text")
                if text is None:
                    answer = "expected a message in JSON, got bytes"
                    await send_json({"op": "error", "message": answer})
                else:
                    await session.handle(text)
                await asyncio.sleep(0)  # the turn of others: many messages may have come at once
        finally:
            open_sessions.discard(session)
            session.close()

    routes = [
        WebSocketRoute("/socket", talk),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token)])


def serve(port: int = 8377, browser: bool = True, runs: Path = Path("runs")) -> None:
    r"""Serves the studio until Ctrl-C.

    Arguments:
        port: The port on the loopback address; 0 for any that is free.
        browser: Whether to open the page.
        runs: The folder to export to.
    """
    missing = [
        n for n in ("starlette", "uvicorn", "websockets") if not importlib.util.find_spec(n)
    ]
    if missing:
        raise ValueError(f"expected {', '.join(missing)}, got none: pip install 'fokker[studio]'")
    if not 0 <= port <= 65535:
        raise ValueError(f"expected --port from 0 to 65535, got {port}")
    import uvicorn

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise OSError(f"expected a free port, got {port}: {error.strerror}") from None
        listener.listen(BACKLOG)  # who opens the page at once waits for the server
        token = secrets.token_urlsafe(24)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/?token={token}"
        sweep(PLACE)
        settings = uvicorn.Config(
            app(runs, token),
            http=bounded(),
            backlog=BACKLOG,
            log_level="error",  # not a line for each odd call
            ws="websockets-sansio",
            ws_max_size=4 * LIMIT,
            ws_per_message_deflate=False,
            server_header=False,
            lifespan="off",
        )
        print(f"studio: {address} (Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn has shut down by then
            uvicorn.Server(settings).run(sockets=[listener])
