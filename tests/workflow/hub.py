"""A hub on loopback: repositories in memory, behind the few addresses that a download asks for."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub:
    """Repositories of models and datasets, each with commits and branches; `asked` lists the requests.

    A file called in `broken` ends in the middle.
    """

    def __init__(self):
        self.commits: dict[tuple[str, str], dict[str, dict[str, bytes]]] = {}
        self.branches: dict[tuple[str, str], dict[str, str]] = {}
        self.asked: list[str] = []
        self.broken: set[str] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def push(self, kind: str, name: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Make `files` the newest commit of a repository's branch; returns the commit."""
        commits = self.commits.setdefault((kind, name), {})
        commit = hashlib.sha1(f"{kind} {name} {len(commits)}".encode()).hexdigest()
        commits[commit] = files
        self.branches.setdefault((kind, name), {})[branch] = commit
        return commit

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = urlsplit(request.path).path
        self.asked.append(f"{request.command} {unquote(path)}")
        looked_up = re.fullmatch(r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
        resolved = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if looked_up:
            kind, name, what, revision = looked_up.groups()
        elif resolved:
            kind, name, what, revision = "dataset" if resolved[1] else "model", resolved[2], "resolve", resolved[3]
        else:
            return self.refuse(request, "EntryNotFound")
        if (kind, name) not in self.commits:
            return self.refuse(request, "RepoNotFound")
        revision = unquote(revision or "main")
        commit = self.branches[kind, name].get(revision, revision)
        files = self.commits[kind, name].get(commit)
        if files is None:
            return self.refuse(request, "RevisionNotFound")
        if what == "resolve":
            file = unquote(resolved[4])
            return self.send(request, files[file], commit, broken=file in self.broken)
        if what == "tree":
            blobs = {path: hashlib.sha1(content).hexdigest() for path, content in files.items()}
            answer = [{"type": "file", "path": path, "size": len(files[path]), "oid": blobs[path]} for path in files]
        else:
            answer = {"id": name, "sha": commit, "siblings": [{"rfilename": path} for path in files]}
        return self.send(request, json.dumps(answer).encode(), commit)

    def send(self, request: BaseHTTPRequestHandler, content: bytes, commit: str, broken: bool = False) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        request.send_header("X-Repo-Commit", commit)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(content[: len(content) // 2] if broken else content)

    def refuse(self, request: BaseHTTPRequestHandler, code: str) -> None:
        request.send_response(404)
        request.send_header("X-Error-Code", code)
        request.send_header("Content-Length", "0")
        request.end_headers()
