"""Who may ask the page's server, and what its answers let a browser do."""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from buildd.host.proc import peer_uid
from buildd.web.guard import Guard

TOKEN = "0123456789abcdef"
PASS = hmac.digest(TOKEN.encode(), b"cookie", "sha256").hex()
PORT = 40000
GOOD = {"host": "127.0.0.1:6392", "authorization": f"Bearer {TOKEN}"}


def ask(
    path: str = "/api/builds", method: str = "GET", query: str = "", uid: int | None = None, **headers: str
) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer to a request with these headers."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "client": ("127.0.0.1", PORT),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    guard = Guard(
        PlainTextResponse("secret"), token=TOKEN, port=6392, uid_of=lambda port, server: uid if port == PORT else None
    )
    asyncio.run(guard(scope, receive, send))  # type: ignore[arg-type]
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def test_the_token_opens_as_header_and_as_cookie() -> None:
    assert ask(**GOOD)[0] == 200
    assert ask(host="localhost:6392", cookie=f"buildd-6392={PASS}")[0] == 200
    assert ask(host="[::1]:6392", cookie=f"other=1; buildd-6392={PASS}")[0] == 200
    # A browser sends the cookies of this machine's other servers along, on whatever port, in whatever form.
    for other in ('settings={"a": 1}', "a@b=1", 'x="y', "flag", "a[0]=1", "expires=never", "x=\xe9"):
        assert ask(host="localhost:6392", cookie=f"{other}; buildd-6392={PASS}")[0] == 200, other


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer old"},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": "buildd-6392=old"},
        {"cookie": f"buildd-6393={PASS}"},
        {"cookie": f"buildd-6392={TOKEN}"},
        {"authorization": f"Bearer {PASS}"},
        {"cookie": "buildd-6392=\xff; ;;="},
    ],
)
def test_a_missing_or_old_token_is_refused(headers: dict[str, str]) -> None:
    assert ask(host="127.0.0.1:6392", **headers)[0] == 401
    assert ask("/metrics", host="127.0.0.1:6392", **headers)[0] == 401


def test_the_link_moves_the_token_from_the_address_into_a_cookie() -> None:
    status, headers = ask("/build/x", query=f"a=1&token={TOKEN}", host="127.0.0.1:6392")
    assert (status, headers["location"]) == (303, "/build/x?a=1")
    assert "HttpOnly" in headers["set-cookie"] and "SameSite=lax" in headers["set-cookie"]
    assert ask("/", query="token=old", host="127.0.0.1:6392")[0] == 401
    _, elsewhere = ask("//evil.example/x", query=f"token={TOKEN}", host="127.0.0.1:6392")
    assert elsewhere["location"] == "/evil.example/x", "it leads to no other host"


def test_a_cookie_opens_nothing_to_another_user() -> None:
    """A browser sends it to every server of 127.0.0.1, so one of another user's may have read it there."""
    held = {"host": "127.0.0.1:6392", "cookie": f"buildd-6392={PASS}"}
    assert ask(uid=os.geteuid(), **held)[0] == 200
    assert ask(uid=0, **held)[0] == 200
    assert ask(uid=os.geteuid() + 1, **held)[0] == 401
    assert ask(uid=os.geteuid() + 1, **GOOD)[0] == 200, "another user with the token, such as Prometheus"


def test_the_user_of_a_connection_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert peer_uid(client.getsockname()[1], port) == os.geteuid()
        assert peer_uid(1, port) is None


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:6393", "evil.example:6392", ""])
def test_another_host_is_refused_even_with_the_token(host: str) -> None:
    """A name that its owner points to 127.0.0.1: DNS rebinding."""
    assert ask(host=host, authorization=f"Bearer {TOKEN}")[0] == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:6393"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    ],
)
def test_a_page_of_another_origin_is_refused_even_with_the_token(headers: dict[str, str]) -> None:
    assert ask(**GOOD, **headers)[0] == 403


def test_the_servers_own_pages_and_the_users_links_pass() -> None:
    assert ask(**GOOD, origin="http://127.0.0.1:6392", **{"sec-fetch-site": "same-origin"})[0] == 200
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask("/", **GOOD, **followed)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_only_reads(method: str) -> None:
    assert ask(method=method, **GOOD)[0] == 405


@pytest.mark.parametrize("headers", [GOOD, {"host": "evil.example"}, {"host": "127.0.0.1:6392"}])
def test_every_answer_has_the_policy(headers: dict[str, str]) -> None:
    found = ask(**headers)[1]
    policy = found["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert (found["x-frame-options"], found["cache-control"]) == ("DENY", "no-store")
    assert "access-control-allow-origin" not in found
