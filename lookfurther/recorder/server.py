"""A local server that connects one page to a FrameSource."""

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
PAGE_SCRIPTS = ("settings.js", "connection.js", "view.js", "input.js")  # in this order
MAX_PENDING_CONNECTIONS = 32  # connections that are not (yet) a websocket
BUSY_MESSAGE = "Another page is already connected. Close it and try again."


class RecorderApp:
    """Serves the page to requests with the token, and one websocket at a time."""

    def __init__(self, source: FrameSource, token: str, host: str, port: int) -> None:
        self._source, self._token = source, token
        self._host, self._port = host, port
        self._is_busy = False
        self._page = load_page()
        self._headers = security_headers(self._page)
        self.app = Starlette(
            routes=[
                Route("/{token}/", self._serve_page),
                WebSocketRoute("/{token}/live", self._serve_websocket),
            ]
        )

    async def _serve_page(self, request: Request) -> Response:
        if reason := self._rejection_reason(request):
            return PlainTextResponse(reason, 403, {"Cache-Control": "no-store"})
        return HTMLResponse(self._page, headers=self._headers)

    async def _serve_websocket(self, websocket: WebSocket) -> None:
        origin, host = websocket.headers.get("origin", ""), websocket.headers.get("host", "")
        if self._rejection_reason(websocket) or origin.lower() != f"http://{host.lower()}":
            await websocket.close()  # before accept(): the response is 403
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
        """Return why a request is rejected, or ""."""
        token = request.path_params["token"]
        if not is_known_host(request.headers.get("host", ""), self._host, self._port):
            return "unknown host name: open the address that lookfurther printed"
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return "wrong token: open the address that lookfurther printed"
        return ""


async def run_connection(websocket: WebSocket, source: FrameSource) -> None:
    """Stream the source and receive messages until one of the two ends."""
    connection = PageConnection(websocket)
    await connection.send("hello", **source.hello_message())
    tasks = {
        asyncio.create_task(source.stream_to(connection)),
        asyncio.create_task(receive_messages(websocket, connection, source)),
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
    """Pass messages to the source until the page disconnects; answer invalid ones with a notice."""
    buttons = frozenset(button["name"] for button in source.hello_message().get("buttons", ()))
    while (event := await websocket.receive())["type"] != "websocket.disconnect":
        try:
            message = parse_message(event.get("text"), buttons)
        except MessageError as error:
            await connection.send("notice", text=str(error), tone="bad")
            continue
        if message.kind == "seen":
            connection.acknowledge(message.number, message.wait_ms / 1000)
        else:
            source.on_message(message)


def is_known_host(header: str, host: str, port: int) -> bool:
    """Whether a Host header names this server; protects against DNS rebinding."""
    if ":" not in header.rpartition("]")[2]:
        header += ":80"  # browsers omit it
    name, _, header_port = header.lower().rpartition(":")
    if header_port != str(port):
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


def load_page() -> str:
    """Return the page with its style and its scripts inside: one file that loads no other."""
    folder = resources.files("lookfurther.recorder").joinpath("page")
    page, style = (folder.joinpath(name).read_text("utf-8") for name in ("page.html", "style.css"))
    scripts = "".join(folder.joinpath(name).read_text("utf-8") for name in PAGE_SCRIPTS)
    page = page.replace("<style>\n</style>", f"<style>\n{style}</style>")
    return page.replace("<script>\n</script>", f"<script>\n{scripts}</script>")


def security_headers(page: str) -> dict[str, str]:
    """Headers that allow only the page's own style and script, and no embedding."""

    def digest(tag: str) -> str:
        content = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        assert content is not None
        sha256 = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        return f"'sha256-{sha256}'"

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
    """A connection that is not a websocket; if there are too many, the oldest is closed.

    Otherwise idle connections could use up all file descriptors. A websocket does not count.
    """

    def __init__(self, pending: dict[PendingConnection, None], **uvicorn_options: Any) -> None:
        super().__init__(**uvicorn_options)
        self._pending = pending  # shared by all connections, oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._pending[self] = None
        if len(self._pending) > MAX_PENDING_CONNECTIONS:
            oldest = next(iter(self._pending))
            del self._pending[oldest]
            if oldest.transport.get_protocol() is oldest:  # otherwise it is now a websocket
                oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pending.pop(self, None)
        super().connection_lost(exc)


def serve_page(source: FrameSource, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page until a signal; call `announce` with its address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {host} --port {port} cannot be served: {error}") from None
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(16)
    config = uvicorn.Config(
        RecorderApp(source, token, host, port).app,
        http=partial(PendingConnection, pending={}),  # type: ignore[arg-type]
        backlog=MAX_PENDING_CONNECTIONS,  # accepted before the first is handled
        log_level="error",  # a warning per bad request would let anyone fill the log
        access_log=False,  # it would print the token
        lifespan="off",
        server_header=False,
        ws_max_size=MAX_MESSAGE_BYTES,
        # Compresses a 100 kB frame to 1 kB in 0.8 ms: only worth it over a network.
        ws_per_message_deflate=host not in LOCAL_HOSTS,
        timeout_graceful_shutdown=2,
    )
    address = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    announce(f"http://{f'[{address}]' if ':' in address else address}:{port}/{token}/")
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
