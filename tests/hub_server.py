"""A local stand-in for the Hugging Face Hub: the part of its HTTP interface that is used."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "1" * 40


@dataclass
class HubServer:
    """Repositories by type and name, such as models/me/pong, with their files."""

    url: str
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    listed_sizes: dict[str, int] = field(default_factory=dict)  # forged, by file name
    private: set[str] = field(default_factory=set)

    def list_repo(self, repo: str) -> dict[str, Any]:
        files = self.repos[repo].items()
        sizes = {name: self.listed_sizes.get(name, len(content)) for name, content in files}
        siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
        return {"id": repo.partition("/")[2], "sha": COMMIT, "siblings": siblings}

    def commit(self, repo: str, body: bytes) -> None:
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                self.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del self.repos[repo][value["path"]]


class HubHandler(BaseHTTPRequestHandler):
    hub: HubServer

    def log_message(self, format: str, *_: Any) -> None:
        """No log."""

    def send_content(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_json(self, value: Any) -> None:
        self.send_content(json.dumps(value).encode(), Content_Type="application/json")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = urlsplit(self.path).path.removeprefix("/api/")
        if path == "repos/create":
            data = json.loads(body)
            repo_type = data.get("type") or "model"
            repo = f"{repo_type}s/{data['name']}"
            if data.get("organization"):
                repo = f"{repo_type}s/{data['organization']}/{data['name']}"
            self.hub.repos.setdefault(repo, {})
            if data.get("private") or data.get("visibility") == "private":
                self.hub.private.add(repo)
            self.send_json({"url": f"{self.hub.url}/{repo.removeprefix('models/')}"})
        elif path == "validate-yaml":
            self.send_json({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {**f, "uploadMode": "regular", "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            self.send_json({"files": files})
        else:
            repo = path.partition("/commit/")[0]
            self.hub.commit(repo, body)
            url = f"{self.hub.url}/{repo.removeprefix('models/')}/commit/{COMMIT}"
            self.send_json({"success": True, "commitUrl": url, "commitOid": COMMIT})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        if path.startswith("api/"):
            repo = path.removeprefix("api/").partition("/revision/")[0].partition("/tree/")[0]
            if repo not in self.hub.repos:
                missing = {
                    "X_Error_Code": "RepoNotFound",
                    "X_Error_Message": "Repository not found",
                }
                self.send_content(b"{}", 404, **missing)
            elif "/tree/" in path:
                files = self.hub.repos[repo].items()
                self.send_json(
                    [{"type": "file", "path": n, "size": len(c), "oid": COMMIT} for n, c in files]
                )
            else:
                self.send_json(self.hub.list_repo(repo))
            return
        repo, _, rest = path.partition("/resolve/")
        repo = repo if repo.startswith("datasets/") else f"models/{repo}"
        content = self.hub.repos[repo][rest.partition("/")[2]]
        self.send_content(content, ETag='"1"', X_Repo_Commit=COMMIT)

    do_HEAD = do_GET


@contextmanager
def serve_hub() -> Iterator[HubServer]:
    """Serve an empty hub on a free port."""
    handler = type("Handler", (HubHandler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.hub = HubServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield handler.hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
