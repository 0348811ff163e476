"""The web application: JSON over HTTP, and the page that reads it.

It listens on loopback, has no account, changes nothing and uses nothing from elsewhere. A page of
another site could reach it through the browser, so another Host or Origin is refused.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

try:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "lsmstate ui needs starlette and uvicorn; run: pip install 'lsmstate[ui]'",
        name=error.name,
    ) from error

from lsmstate.errors import InvalidArgumentError, LsmStateError
from lsmstate.ui.views import Views

#: Names of this machine for itself.
HOSTS: Final = ("127.0.0.1", "localhost", "::1")
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STATIC: Final = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uPlot.min.css": "text/css; charset=utf-8",
    "uPlot.LICENSE": "text/plain; charset=utf-8",
}

#: Of a number that is asked for.
_MOST_DIGITS: Final = 18

Answer = Callable[[Request], Awaitable[Response]]


def ui_app(views: Views) -> Starlette:
    """Make the application."""

    def places(_: Request) -> Any:
        return views.places()

    def query(request: Request) -> Any:
        return views.query(_at(request))

    def store(request: Request) -> Any:
        return views.store(_at(request))

    def bucket(request: Request) -> Any:
        return views.bucket(_at(request), _number(request.query_params, "bucket", least=0) or 0)

    def rows(request: Request) -> Any:
        asked = request.query_params
        return views.rows(
            _at(request),
            asked.get("stream") or None,
            asked.getlist("key"),
            _number(asked, "bucket", least=0),
            _number(asked, "limit", least=1) or 50,
        )

    answers = {"places": places, "query": query, "store": store, "bucket": bucket, "rows": rows}
    routes = [Route(f"/api/{name}", _json(answer)) for name, answer in answers.items()]
    routes += [Route("/", _static("index.html"))]
    routes += [Route(f"/static/{name}", _static(name)) for name in _STATIC]
    return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=_guarded)])


async def _guarded(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
    refusal = _refusal(request.headers)
    response: Response
    if request.method not in ("GET", "HEAD"):
        response = PlainTextResponse("this page changes nothing\n", 405, {"Allow": "GET, HEAD"})
    elif refusal is not None:
        response = PlainTextResponse(refusal, 403)
    else:
        response = await call(request)
    response.headers.update(_HEADERS)
    return response


def _refusal(headers: Mapping[str, str]) -> str | None:
    host = headers.get("host", "")
    if _name(f"//{host}") not in HOSTS:
        return f"Host {host!r} is not this machine; open http://127.0.0.1 with the port shown\n"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return f"Origin {origin!r} is another page\n"
    return None


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _json(answer: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """An endpoint that runs in a thread, since it reads files. What cannot be done is said."""

    def endpoint(request: Request) -> Response:
        try:
            return _Answer(answer(request))
        except InvalidArgumentError as error:
            return _Answer({"error": str(error)}, 400)
        except (LsmStateError, OSError) as error:
            return _Answer({"error": str(error)}, 500)

    return endpoint


class _Answer(JSONResponse):
    """JSON in which names of files that are no UTF-8 have escapes."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


def _static(name: str) -> Callable[[Request], Response]:
    def endpoint(_: Request) -> Response:
        content = files("lsmstate.ui").joinpath("static", name).read_bytes()
        return Response(content, media_type=_STATIC[name])

    return endpoint


def _at(request: Request) -> str:
    return request.query_params.get("at", ".")


def _number(asked: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = asked.get(name, "")
    if text == "":
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    if not is_number or int(text) < least:
        raise InvalidArgumentError(f"{name}={text[:40]!r}: give a whole number, at least {least}")
    return int(text)
