"""A hub on loopback: repositories in memory, behind the addresses that huggingface_hub and datasets ask for."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

LARGE_FILES = (".safetensors", ".bin", ".parquet")
"""Suffixes of files in the large file storage, which is on another host."""


@dataclass
class Fault:
    """An answer in place of the usual one, to requests for paths that contain a regular expression.

    A fault with a status is the whole answer. The others disturb the content: `keep` is the share of it that is sent
    before the connection ends, and `flip` inverts its last byte.
    """

    path: str
    status: int | None = None
    times: int = 1000
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = ""
    message: str = "some fault"
    keep: float = 1
    flip: bool = False


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub:
    """Repositories of models and datasets, each with commits and branches.

    `asked` lists the requests as "METHOD path"; `authorized` lists the host and the Authorization of each. Gated
    repositories need a token, which must be one of `members`.
    """

    def __init__(self):
        self.commits: dict[tuple[str, str], dict[str, dict[str, bytes]]] = {}
        self.branches: dict[tuple[str, str], dict[str, str]] = {}
        self.asked: list[str] = []
        self.authorized: list[tuple[str, str | None]] = []
        self.faults: list[Fault] = []
        self.gated: set[str] = set()
        self.members: set[str] = set()
        self.lock, self.closed = threading.Lock(), False
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if hub.closed:  # also for a connection that was open before
                    self.close_connection = True
                else:
                    hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.storage = f"http://localhost:{self.server.server_port}"  # another host, which must not see a token
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self.closed = True
        self.server.shutdown()
        self.server.server_close()

    def push(self, kind: str, name: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Make `files` the newest commit of a repository's branch; returns the commit."""
        commits = self.commits.setdefault((kind, name), {})
        commit = hashlib.sha1(f"{kind} {name} {len(commits)}".encode()).hexdigest()
        commits[commit] = files
        self.branches.setdefault((kind, name), {})[branch] = commit
        return commit

    def push_folder(self, name: str, folder: Path) -> str:
        """Make the files of a folder the newest commit of a model."""
        return self.push("model", name, {file.name: file.read_bytes() for file in folder.iterdir()})

    def fail(self, path: str, *arguments, **keys) -> None:
        """Answer requests with a `Fault`."""
        self.faults.append(Fault(path, *arguments, **keys))

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        if path == "/api/agent-harnesses":  # statistics, which the library asks for once a day
            return self.send(request, 200, b"{}", {})
        fault = self.fault(request.command, path)
        with self.lock:
            self.asked.append(f"{request.command} {path}")
            self.authorized.append((str(request.headers["Host"]), request.headers["Authorization"]))
        if fault.status is not None:
            return self.refuse(request, fault.status, "", fault.message, fault.headers)
        looked_up = re.fullmatch(r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path)
        resolved = re.fullmatch(r"/(lfs/)?(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        stored = resolved is not None and resolved[1] is not None
        if looked_up:
            kind, name, what, revision = looked_up.groups()
        elif resolved:
            kind, name, what, revision = "dataset" if resolved[2] else "model", resolved[3], "resolve", resolved[4]
        else:
            return self.refuse(request, 404, "EntryNotFound", "Not here")
        token = (request.headers["Authorization"] or "").removeprefix("Bearer ")
        if (kind, name) not in self.commits:
            code = 404 if token else 401  # as the real hub, which hides private repositories
            return self.refuse(request, code, "RepoNotFound", "Repository not found" if token else "Log in first.")
        if name in self.gated and not (looked_up and what in (None, "revision")) and not stored:
            if not token:
                return self.refuse(request, 401, "GatedRepo", f"Access to {name} is restricted. Please log in.")
            if token not in self.members:
                return self.refuse(request, 403, "GatedRepo", f"You are not in the authorized list of {name}.")
        revision, _, folder = (revision or "main").partition("/") if what == "tree" else (revision or "main", "", "")
        commit = self.branches[kind, name].get(revision, revision)
        files = self.commits[kind, name].get(commit)
        if files is None:
            return self.refuse(request, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if what == "resolve":
            file = resolved[5]
            if file not in files:
                commits = {"X-Repo-Commit": commit}
                return self.refuse(request, 404, "EntryNotFound", "Entry not found", commits)
            return self.send_file(request, (path, commit, file), files[file], fault)
        if what == "tree":
            inside = [file for file in files if file.startswith(f"{folder}/" if folder else "")]
            if not inside:
                return self.refuse(request, 404, "EntryNotFound", f"No folder {folder}")
            answer = [self.entry(file, files[file]) | {"path": file} for file in inside]
        else:
            entries = [self.entry(file, content) | {"rfilename": file} for file, content in files.items()]
            answer = {"id": name, "sha": commit, "siblings": entries, "config": self.facts(files)}
            answer["cardData"] = self.card(files)
        return self.send(request, 200, json.dumps(answer).encode(), {"X-Repo-Commit": commit})

    def fault(self, method: str, path: str) -> Fault:
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method in ("", method) and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return Fault("")

    @staticmethod
    def facts(files: Mapping[str, bytes]) -> object:
        try:
            return json.loads(files["config.json"])
        except (KeyError, ValueError):
            return {}

    @staticmethod
    def card(files: Mapping[str, bytes]) -> object:
        _, *parts = files.get("README.md", b"").decode().split("---\n")
        return yaml.safe_load(parts[0]) if parts else {}

    @staticmethod
    def entry(file: str, content: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "size": len(content), "oid": git_digest(content)}
        entry["blobId"] = entry["oid"]
        if file.endswith(LARGE_FILES):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 134}
        return entry

    def send_file(self, request, place: tuple[str, str, str], content: bytes, fault: Fault) -> None:
        path, commit, file = place
        digest = hashlib.sha256(content).hexdigest() if file.endswith(LARGE_FILES) else git_digest(content)
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if file.endswith(LARGE_FILES) and not path.startswith("/lfs/"):
            linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
            return self.send(request, 302, b"", headers | linked | {"Location": f"{self.storage}/lfs{path}"})
        if fault.flip:
            content = content[:-1] + bytes([content[-1] ^ 255])
        status, whole = 200, len(content)
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers["Range"] or ""):
            begin = int(asked[1])
            end = min(int(asked[2]) + 1, whole) if asked[2] else whole
            status, content = 206, content[begin:end]
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{whole}"
        return self.send(request, status, content, headers, fault.keep)

    def send(self, request, status: int, content: bytes, headers: Mapping[str, str], keep: float = 1) -> None:
        request.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | dict(headers)).items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(content[: int(len(content) * keep)])
        if keep < 1:
            request.close_connection = True

    def refuse(self, request, status: int, code: str, message: str, more: Mapping[str, str] | None = None) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {}) | dict(more or {})
        self.send(request, status, b"", headers)


@contextmanager
def hub_in(home: Path) -> Iterator[Hub]:
    """Start a hub that this process, and those that it starts, take for the only one; its cache is in `home`."""
    hub = Hub()
    constants = {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_HUB_OFFLINE": False,
        "HF_TOKEN_PATH": str(home / "token"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.endpoint)
        patch.setenv("HF_HOME", str(home))
        for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN"):
            patch.delenv(name, raising=False)
        for name, value in constants.items():  # read from the environment when the library was imported
            patch.setattr(f"huggingface_hub.constants.{name}", value)
        patch.setattr("datasets.config.HF_ENDPOINT", hub.endpoint)
        patch.setattr("datasets.config.HF_HUB_OFFLINE", False)
        patch.setattr("datasets.config.HF_DATASETS_CACHE", home / "datasets")
        try:
            yield hub
        finally:
            hub.close()
