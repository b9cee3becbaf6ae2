"""The gate of the page's server: who may ask, and what a browser may do with the answers. An ASGI application.

A page of another site can send requests to this machine's loopback address, and a name that its owner points there
(DNS rebinding) makes them look like the site's own. So a request must name this server's own address as its host, come
from no other origin, and hold the token: in a cookie, or in the header of a program. The token is new with each start
of the server. Everything is read-only.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from buildd.host.proc import peer_uid

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_OPEN = "/assets/"
"""The page's own scripts and styles: they hold nothing of the user's."""


class Guard:
    """Lets the requests through that hold the token and come from this server's own pages or from programs.

    Args:
        app: answers them.
        token: of this start of the server.
        port: on which the server listens.
        uid_of: the user of the process at the other end of a connection to this port, from its own port; None if it is
            not known.
    """

    def __init__(
        self, app: ASGIApp, *, token: str, port: int, uid_of: Callable[[int, int], int | None] = peer_uid
    ) -> None:
        self._app = app
        self._uid_of = uid_of
        # A browser sends a cookie to every server of this machine, on whatever port, also to another user's. So it is
        # not the token, and it opens nothing to another user.
        self._pass = hmac.digest(token.encode(), b"cookie", "sha256").hex()
        self._token = token
        self._port = port
        self._cookie = f"buildd-{port}"  # cookies are not divided by port

    @property
    def _hosts(self) -> tuple[str, ...]:
        return tuple(f"{name}:{self._port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope) if scope["type"] == "http" else Response(status_code=403)

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if not scope["path"].startswith(_OPEN):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (self._app if refused is None else refused)(scope, receive, hardened)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self._hosts:
            return _refused("this server answers to its own address only", status=421)
        if not self._is_own(headers):
            return _refused("a page of another origin asked")
        if scope["method"] not in ("GET", "HEAD"):
            return _refused("this server is read-only", status=405)
        if scope["path"].startswith(_OPEN):
            return None
        asked = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        given = asked.pop("token", None)
        if given is not None and self._is_token(given):
            return self._welcome(scope["path"], asked)
        if self._is_token(self._credentials(headers)):
            return None
        if hmac.compare_digest(self._in_cookie(headers).encode(), self._pass.encode()) and self._is_users(scope):
            return None
        return _refused("the token is missing, or of an earlier start: `buildd ui` prints a link that holds it", 401)

    def _is_own(self, headers: Headers) -> bool:
        """Whether no other origin asks. A program sends neither header, a browser always the second one."""
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in {f"http://{host}" for host in self._hosts}:
            return False
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
        # A link on another page may lead here: the cookie is not sent along, unless the user has followed it.
        return site in ("same-origin", "none") or (mode == "navigate" and headers.get("sec-fetch-dest") == "document")

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _credentials(self, headers: Headers) -> str:
        """What a program holds: `Authorization: Bearer`."""
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        return credentials.strip() if scheme.lower() == "bearer" else ""

    def _in_cookie(self, headers: Headers) -> str:
        # Not http.cookies, which gives up at a cookie that it cannot read: a browser sends those of all servers that
        # this machine has on any port, and other programs write other forms.
        cookies = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        return next((value for name, _, value in cookies if name == self._cookie), "")

    def _is_users(self, scope: Scope) -> bool:
        """Whether no other user of the machine is seen at the other end."""
        client = scope.get("client")
        uid = self._uid_of(client[1], self._port) if client is not None else None
        return uid in (None, 0, os.geteuid())

    def _welcome(self, path: str, asked: dict[str, str]) -> Response:
        """Put the token into a cookie and out of the address, where a screenshot or the history would show it.

        Not a strict cookie: the user comes from a file with the link, which counts as another site.
        """
        place = f"/{path.lstrip('/')}" + (f"?{urlencode(asked)}" if asked else "")
        answer = RedirectResponse(place, status_code=303)
        answer.set_cookie(self._cookie, self._pass, httponly=True, samesite="lax", path="/")
        return answer


def _refused(why: str, status: int = 403) -> Response:
    return PlainTextResponse(f"buildd: {why}\n", status_code=status)
