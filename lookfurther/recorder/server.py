"""One page for one viewer: a local server that shows a Source's frames and hands it the answers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import socket
from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from lookfurther.errors import ConfigError
from lookfurther.recorder.protocol import LARGEST, MessageError, read
from lookfurther.recorder.stream import Link, Source

LOCAL = ("127.0.0.1", "localhost", "::1")
MOST_WAITING = 32  # connections that have not become a player's
BUSY = "Someone is playing here already. Close the other page, then try again."


class Theatre:
    """The server's answers: who is let in, and that they are one at a time."""

    def __init__(self, source: Source, token: str, host: str, port: int) -> None:
        self._source, self._token = source, token
        self._host, self._port = host, port
        self._taken = False
        self._page = (
            resources.files("lookfurther.recorder").joinpath("page.html").read_text("utf-8")
        )
        self._headers = headers(self._page)
        self.app = Starlette(
            routes=[
                Route("/{token}/", self._show_page),
                WebSocketRoute("/{token}/live", self._live),
            ]
        )

    async def _show_page(self, request: Request) -> Response:
        if fault := self._fault(request):
            return PlainTextResponse(fault, 403, {"Cache-Control": "no-store"})
        return HTMLResponse(self._page, headers=self._headers)

    async def _live(self, link: WebSocket) -> None:
        origin, host = link.headers.get("origin", ""), link.headers.get("host", "")
        if self._fault(link) or origin.lower() != f"http://{host.lower()}":
            await link.close()  # before it is accepted: the answer is 403
            return
        await link.accept()
        if self._taken:
            await link.send_text(json.dumps({"kind": "refused", "text": BUSY}))
            await link.close(4409)
            return
        self._taken = True
        try:
            await converse(link, self._source)
        finally:
            self._taken = False
            self._source.leave()

    def _fault(self, request: HTTPConnection) -> str:
        """Why a request is turned away, or ""."""
        given = request.path_params["token"]
        if not known(request.headers.get("host", ""), self._host, self._port):
            return "this server does not answer to that name"
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return "wrong token: open the address that lookfurther record printed"
        return ""


async def converse(link: WebSocket, source: Source) -> None:
    """Show the source and listen to the page until either ends."""
    way = Link(link)
    await way.say("hello", **source.hello())
    tasks = {asyncio.create_task(source.show(way)), asyncio.create_task(listen(link, way, source))}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        error = None if task.cancelled() else task.exception()
        if error and not isinstance(error, WebSocketDisconnect):
            raise error


async def listen(link: WebSocket, way: Link, source: Source) -> None:
    """Read what the page says until it is gone; what makes no sense is answered with the reason."""
    buttons = frozenset(button["name"] for button in source.hello().get("buttons", ()))
    while (event := await link.receive())["type"] != "websocket.disconnect":
        try:
            message = read(event.get("text"), buttons)
        except MessageError as error:
            await way.say("notice", text=str(error), tone="bad")
            continue
        if message.kind == "seen":
            way.seen(message.number, message.wait / 1000)
        else:
            source.hear(message)


def known(header: str, host: str, port: int) -> bool:
    """Whether a Host header names this server: a name that was rebound to it does not."""
    if ":" not in header.rpartition("]")[2]:
        header += ":80"  # which browsers leave out
    name, _, given = header.lower().rpartition(":")
    if given != str(port):
        return False
    if name in ("[::1]", *LOCAL, host.lower(), f"[{host.lower()}]"):
        return True
    return host in ("0.0.0.0", "::") and (name == socket.gethostname().lower() or _address(name))


def _address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def headers(page: str) -> dict[str, str]:
    """What keeps the page to itself: only its own style and script, and no other site around it."""

    def digest(tag: str) -> str:
        content = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        assert content is not None
        return (
            "'sha256-"
            + base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
            + "'"
        )

    policy = (
        f"default-src 'none'; script-src {digest('script')}; style-src {digest('style')};"
        " worker-src blob:; img-src data:; connect-src 'self'; form-action 'none'; base-uri 'none';"
        " frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }


class Visitor(H11Protocol):
    """A connection that is not a player's yet: the oldest of too many is closed.

    An idle connection would otherwise hold a file descriptor forever, and without one left nobody
    can come in. A player's connection has become a websocket and counts no longer.
    """

    def __init__(self, waiting: dict[Visitor, None], **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._waiting = waiting  # of all connections, in the order in which they came

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting[self] = None
        if len(self._waiting) > MOST_WAITING:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            if oldest.transport.get_protocol() is oldest:  # else it is a websocket by now
                oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        super().connection_lost(exc)


def serve(source: Source, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page until a signal; `announce` is given its address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {host} --port {port} cannot be served: {error}") from None
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(16)
    theatre = Theatre(source, token, host, port)
    config = uvicorn.Config(
        theatre.app,
        http=partial(Visitor, waiting={}),  # type: ignore[arg-type]
        backlog=MOST_WAITING,  # accepted before the first is looked at
        log_level="error",  # a warning for each bad request would let a visitor fill the log
        access_log=False,  # it would print the token
        lifespan="off",
        server_header=False,
        ws_max_size=LARGEST,
        # 0.8 ms and 1 kB for a frame of 100 kB: worth it on a network alone.
        ws_per_message_deflate=host not in LOCAL,
        timeout_graceful_shutdown=2,
    )
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    announce(f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/{token}/")
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
