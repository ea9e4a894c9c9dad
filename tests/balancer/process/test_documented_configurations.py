"""The configurations of docs/coming-from.md and docs/certificates.md, served between workers and clients."""

from __future__ import annotations

import re
import ssl
import tomllib
from pathlib import Path
from typing import Any

import pytest

from balancer.config.loading import Settings
from tests.support.certificates import Shelf
from tests.support.documentation import KEYS, cells_of, text_of
from tests.support.peers import output_of
from tests.support.stage import Stage
from tests.support.wire import Message, ScriptedWorker, get, response

WORKER = re.compile(r"http://([\d.]+:\d+)")


def blocks(page: str, language: str = "toml") -> list[str]:
    text = text_of(f"docs/{page}.md")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


NGINX, HAPROXY, TRAEFIK = blocks("coming-from")


class Served:
    """A configuration of a page in a running server. Each of its workers answers with its documented address."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self.shelf = Shelf(folder)
        self.tls: ssl.SSLContext | None = None
        self.workers: dict[str, ScriptedWorker] = {}
        self.answer: Message

    async def start(self, text: str, **answers: bytes) -> None:
        """Serve the document, with its workers, its certificate and its log replaced."""
        for address in dict.fromkeys(WORKER.findall(text)):
            answer = answers.get(address.partition(":")[2], response(address.encode()))
            self.workers[address] = worker = await self.stage.worker(answer)
            text = text.replace(f"http://{address}", f"http://127.0.0.1:{worker.port}")
        document: dict[str, Any] = tomllib.loads(text)
        Settings.model_validate(document)
        if "tls" in document:
            document["tls"] = self.shelf.pair("shop.example.org")
            self.tls = self.shelf.client()
        for listener in document.get("listeners", {}).values():
            listener["listen"] = "127.0.0.1:0"
        if "path" in document.get("log", {}):
            document["log"]["path"] = str(self.shelf.folder / document["log"]["path"])
        await self.stage.serve(**document | {"listen": "127.0.0.1:0"})

    async def ask(
        self, target: bytes, *fields: bytes, method: bytes = b"GET", listener: str = ""
    ) -> tuple[int, str]:
        """Status, and the answering worker, or Location, or the body of a fixed answer."""
        tls = None if listener else self.tls
        name = "shop.example.org" if tls is not None else None
        client = await self.stage.client(listener=listener, tls=tls, name=name)
        request = get(target, *fields, method=method).replace(b"Host: example.org", b"Host: shop.example.org")
        self.answer = answer = await client.ask(request)
        return answer.status, (answer.value(b"Location") or answer.body).decode()

    def targets(self, address: str) -> list[bytes]:
        return [request.line.split()[1] for request in self.workers[address].requests]


@pytest.fixture
def served(stage: Stage, tmp_path: Path) -> Served:
    return Served(stage, tmp_path)


async def test_nginx(served: Served) -> None:
    await served.start(NGINX)
    answers = [await served.ask(b"/api/x?y") for _ in range(2)]
    assert {worker for _, worker in answers} <= {"10.0.0.1:8000", "10.0.0.2:8000"}  # not the backup
    assert served.answer.value(b"Strict-Transport-Security") == b"max-age=31536000"
    asked = [request for worker in served.workers.values() for request in worker.requests]
    assert {(one.line, one.value(b"X-Real-IP")) for one in asked} == {(b"GET /x?y HTTP/1.1", b"127.0.0.1")}
    assert await served.ask(b"/old/x") == (301, "https://old.example.org/old/x")
    assert await served.ask(b"/x", listener="plain") == (301, "https://shop.example.org/x")
    assert await served.ask(b"/robots.txt") == (200, "User-agent: *")
    assert (await served.ask(b"/none"))[0] == 404
    log = served.shelf.folder / "access.log"
    await served.stage.eventually(lambda: log.read_bytes().count(b"\n") == 6)
    assert b'] "GET /api/x?y HTTP/1.1" 200 13 "-" "-"\n' in log.read_bytes()


async def test_certificates(served: Served) -> None:
    """The challenge is asked for in plain HTTP, and answered by the client of ACME over https."""
    [text] = blocks("certificates")
    await served.start(text)
    target = b"/.well-known/acme-challenge/token"
    assert await served.ask(target, listener="plain") == (308, f"https://shop.example.org{target.decode()}")
    assert await served.ask(target) == (200, "127.0.0.1:5002")
    assert await served.ask(b"/") == (200, "10.0.0.1:8000")


async def test_haproxy(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    await served.start(HAPROXY)
    assert await served.ask(b"/api/x", b"X-User: a") == (200, "10.0.0.3:8000")
    first = await served.ask(b"/api/x", method=b"DELETE")
    assert first[1] in ("10.0.0.1:8000", "10.0.0.2:8000")
    statuses = {(await served.ask(b"/"))[0] for _ in range(99)}
    assert statuses == {200, 429}
    await served.stage.close()
    assert "at=info method=GET path=" in capfd.readouterr().out


async def test_traefik(served: Served) -> None:
    await served.start(TRAEFIK, **{"4181": response(b"", b"X-User: ann")})
    assert await served.ask(b"/api/x", b"X-User: eve") == (200, "10.0.0.3:8000")
    [request] = served.workers["10.0.0.3:8000"].requests
    assert (request.line.split()[1], request.values(b"X-User")) == (b"/x", [b"ann"])
    assert await served.ask(b"/y") == (200, "10.0.0.1:8000")
    assert served.targets("10.0.0.2:8000") in ([], [b"/y"])


@pytest.mark.second_tier
async def test_configurations_of_others_are_valid(tmp_path: Path) -> None:
    """They are checked by their own programs, with the paths replaced."""
    [of_nginx], [of_haproxy] = blocks("coming-from", "nginx"), blocks("coming-from", "haproxy")
    here, pair = str(tmp_path), Shelf(tmp_path).pair("shop.example.org")
    whole = f"pid {here}/pid; events {{}}\nhttp {{\n{of_nginx.replace('/var/log/nginx', here)}}}\n"
    (tmp_path / "nginx.conf").write_text(whole)
    (tmp_path / "shop.key").write_text(Path(pair["key"]).read_text())  # noqa: ASYNC240 - small
    (tmp_path / "shop.pem").write_text("".join(Path(path).read_text() for path in pair.values()))  # noqa: ASYNC240 - small
    (tmp_path / "haproxy.cfg").write_text(of_haproxy.replace("shop.pem", f"{here}/shop.pem"))
    await output_of("nginx", "-t", "-c", f"{here}/nginx.conf")
    await output_of("haproxy", "-c", "-f", f"{here}/haproxy.cfg")


@pytest.mark.parametrize("proxy", ["nginx", "HAProxy", "Traefik"])
def test_table_has_twenty_directives_and_known_keys(proxy: str) -> None:
    """Keys, and tables of keys, of the configuration."""
    rows = cells_of("docs/coming-from.md", f"| {proxy} | here |")
    assert len(rows) == 20
    named = [key for _, here, _ in rows for key in re.findall(r"`([^`]+)`", here)]
    tables = {key[:at] for key in KEYS for at in range(len(key)) if key[at] == "."}
    assert [key for key in named if key not in KEYS and key not in tables] == []
    assert all(here != "–" or text for _, here, text in rows)
