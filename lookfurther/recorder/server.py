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
from lookfurther.recorder.protocol import MAX_MESSAGE_BYTES, MessageError, parse_message
from lookfurther.recorder.stream import FrameSource, PageConnection

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
MAX_PENDING_CONNECTIONS = 32  # connections that have not become a player's
BUSY_MESSAGE = "Someone is playing here already. Close the other page, then try again."


class RecorderApp:
    """The server's answers: who is let in, and that they are one at a time."""

    def __init__(self, source: FrameSource, token: str, host: str, port: int) -> None:
        self._source, self._token = source, token
        self._host, self._port = host, port
        self._is_busy = False
        self._page = (
            resources.files("lookfurther.recorder").joinpath("page.html").read_text("utf-8")
        )
        self._headers = security_headers(self._page)
        self.app = Starlette(
            routes=[
                Route("/{token}/", self._serve_page),
                WebSocketRoute("/{token}/live", self._serve_websocket),
            ]
        )

    async def _serve_page(self, request: Request) -> Response:
        if fault := self._rejection_reason(request):
            return PlainTextResponse(fault, 403, {"Cache-Control": "no-store"})
        return HTMLResponse(self._page, headers=self._headers)

    async def _serve_websocket(self, websocket: WebSocket) -> None:
        origin, host = websocket.headers.get("origin", ""), websocket.headers.get("host", "")
        if self._rejection_reason(websocket) or origin.lower() != f"http://{host.lower()}":
            await websocket.close()  # before it is accepted: the answer is 403
            return
        await websocket.accept()
        if self._is_busy:
            await websocket.send_text(json.dumps({"kind": "refused", "text": BUSY_MESSAGE}))
            await websocket.close(4409)
            return
        self._is_busy = True
        try:
            await run_connection(websocket, self._source)
        finally:
            self._is_busy = False
            self._source.on_disconnect()

    def _rejection_reason(self, request: HTTPConnection) -> str:
        """Why a request is turned away, or ""."""
        given = request.path_params["token"]
        if not is_known_host(request.headers.get("host", ""), self._host, self._port):
            return "this server does not answer to that name"
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return "wrong token: open the address that lookfurther record printed"
        return ""


async def run_connection(websocket: WebSocket, source: FrameSource) -> None:
    """Show the source and listen to the page until either ends."""
    way = PageConnection(websocket)
    await way.send("hello", **source.hello_message())
    tasks = {
        asyncio.create_task(source.stream_to(way)),
        asyncio.create_task(receive_messages(websocket, way, source)),
    }
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


async def receive_messages(
    websocket: WebSocket, connection: PageConnection, source: FrameSource
) -> None:
    """Read what the page says until it is gone; what makes no sense is answered with the reason."""
    buttons = frozenset(button["name"] for button in source.hello_message().get("buttons", ()))
    while (event := await websocket.receive())["type"] != "websocket.disconnect":
        try:
            message = parse_message(event.get("text"), buttons)
        except MessageError as error:
            await connection.send("notice", text=str(error), tone="bad")
            continue
        if message.kind == "seen":
            connection.acknowledge(message.number, message.wait / 1000)
        else:
            source.on_message(message)


def is_known_host(header: str, host: str, port: int) -> bool:
    """Whether a Host header names this server: a name that was rebound to it does not."""
    if ":" not in header.rpartition("]")[2]:
        header += ":80"  # which browsers leave out
    name, _, given = header.lower().rpartition(":")
    if given != str(port):
        return False
    if name in ("[::1]", *LOCAL_HOSTS, host.lower(), f"[{host.lower()}]"):
        return True
    return host in ("0.0.0.0", "::") and (
        name == socket.gethostname().lower() or _is_ip_address(name)
    )


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def security_headers(page: str) -> dict[str, str]:
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


class PendingConnection(H11Protocol):
    """A connection that is not a player's yet: the oldest of too many is closed.

    An idle connection would otherwise hold a file descriptor forever, and without one left nobody
    can come in. A player's connection has become a websocket and counts no longer.
    """

    def __init__(self, waiting: dict[PendingConnection, None], **uvicorn_options: Any) -> None:
        super().__init__(**uvicorn_options)
        self._pending = waiting  # of all connections, in the order in which they came

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._pending[self] = None
        if len(self._pending) > MAX_PENDING_CONNECTIONS:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            if oldest.transport.get_protocol() is oldest:  # else it is a websocket by now
                oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pending.pop(self, None)
        super().connection_lost(exc)


def serve(source: FrameSource, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page until a signal; `announce` is given its address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {host} --port {port} cannot be served: {error}") from None
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(16)
    theatre = RecorderApp(source, token, host, port)
    config = uvicorn.Config(
        theatre.app,
        http=partial(PendingConnection, waiting={}),  # type: ignore[arg-type]
        backlog=MAX_PENDING_CONNECTIONS,  # accepted before the first is looked at
        log_level="error",  # a warning for each bad request would let a visitor fill the log
        access_log=False,  # it would print the token
        lifespan="off",
        server_header=False,
        ws_max_size=MAX_MESSAGE_BYTES,
        # 0.8 ms and 1 kB for a frame of 100 kB: worth it on a network alone.
        ws_per_message_deflate=host not in LOCAL_HOSTS,
        timeout_graceful_shutdown=2,
    )
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    announce(f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/{token}/")
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
