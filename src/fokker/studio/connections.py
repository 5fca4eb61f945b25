r"""Connections: how many the server holds open, and for how long.

A connection that asks for nothing holds a file descriptor. So at most `MOST` are held: one more
ends the oldest that is not being answered, so that a page comes however many others are half open.
Each ends after `SECONDS` unless it has become the socket of a page, of which the server has few.
"""

__all__ = ["BACKLOG", "bounded"]

import asyncio
import itertools

from typing import Any

MOST = 64  # connections at once, beside the sockets of pages
SECONDS = 20.0  # of a connection
BACKLOG = 32  # connections that are accepted in one go


def bounded() -> type[asyncio.Protocol]:
    r"""Returns the class of the HTTP connections of a server."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    waiting: dict[Any, None] = {}  # in the order in which they came

    class Bounded(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            idle = (one for one in list(waiting) if not one.busy)
            for one in itertools.islice(idle, max(0, len(waiting) - MOST + 1)):
                one.leave()
                one.transport.abort()
            waiting[self] = None
            self.end = self.loop.call_later(SECONDS, transport.abort)

        @property
        def busy(self) -> bool:
            r"""Whether a whole request is being answered."""
            return self.cycle is not None and not self.cycle.response_complete

        def leave(self) -> None:
            waiting.pop(self, None)
            self.end.cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            self.leave()
            super().connection_lost(exc)

        def handle_websocket_upgrade(self, event: Any) -> None:
            self.leave()
            super().handle_websocket_upgrade(event)

    return Bounded
