"""The service as an ASGI application: paths, and what each answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import anyio
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from covey.extras import load
from covey.serving import protocol
from covey.serving.batcher import Batcher, Columns
from covey.serving.bodies import read_body, read_form
from covey.serving.limits import Limits
from covey.serving.metrics import Metrics
from covey.serving.model import FINITE, MEMBERS, Model
from covey.serving.reading import parse, read_images, read_options, read_request
from covey.serving.refusals import RefusedError

_log = logging.getLogger("covey")
_LARGE = 1 << 16  # bytes, above which a body is parsed beside the event loop, which goes on serving others
_PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def application(model: Model, limits: Limits | None = None) -> FastAPI:
    """A service for an ensemble, to run under any ASGI server.

    Args:
        model: what is served.
        limits: on what it takes on.
    """
    load("python_multipart")  # which Starlette asks for only when the first image comes
    service = _Service(model, limits or Limits())
    # FastAPI's own pages about paths would load scripts from foreign hosts.
    app = FastAPI(title="covey", lifespan=service.lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    under = f"/v2/models/{model.name}"
    # Paths are tried in order, and these are asked for most.
    app.add_route("/predict", service.predict, methods=["POST"])
    app.add_route(f"{under}/infer", service.infer, methods=["POST"])
    for path, handler in {
        "/health": service.health,
        "/metadata": service.metadata,
        "/metrics": service.metrics_text,
        "/v2": service.server_metadata,
        "/v2/health/live": service.live,
        "/v2/health/ready": service.ready,
        under: service.model_metadata,
        f"{under}/ready": service.model_ready,
    }.items():
        app.add_route(path, handler, methods=["GET"])
    for path, (name, kind) in _PAGE.items():
        app.add_route(path, _file(name, kind), methods=["GET"])
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(HTTPException, _no_path)
    app.add_exception_handler(Exception, _fault)
    app.add_middleware(_Counted, metrics=service.metrics, paths=_paths(app))
    return app


class _Service:
    """The handlers of the paths, and what they share."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model, self.limits, self.metrics = model, limits, Metrics()
        self._batcher: Batcher | None = None

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """The thread that runs batches lives as long as the service, and finishes what was accepted."""
        batcher = Batcher(self.model.run, self.limits, self.metrics.batch)
        self._batcher = batcher
        try:
            yield
        finally:
            self._batcher = None
            await anyio.to_thread.run_sync(batcher.close)

    async def predict(self, request: Request) -> Response:
        """Inputs as JSON, or images as a form."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        body = await read_body(request, self.limits)
        if kind == "multipart/form-data":
            sent, fields = await read_form(request, body, self.limits)
            options = read_options(_typed(fields))
            inputs = await anyio.to_thread.run_sync(self._images, sent)
        elif kind in ("application/json", ""):
            payload, inputs = await _aside(self._request, body)
            options = read_options(payload)
        else:
            raise RefusedError(415, f"expected application/json or multipart/form-data; got {kind[:80]}")
        each, budget = options
        if each and not self.model.tells_members:
            raise RefusedError(
                422, "members' own answers are not in the file that is served; export it with --members"
            )
        members = self.model.chosen(budget, len(inputs))
        columns = await self._answer(inputs, members, each)
        rows = _rows(columns, each)
        answer: dict[str, Any] = {"model": self.model.name, "predictions": rows}
        if self.model.task == "classification":
            answer["classes"] = self.model.classes(len(rows[0]["probs"]))
        if self.model.levels:
            answer["levels"] = list(self.model.levels)
        if members is not None:
            answer["members_used"] = list(members)
        return _json(answer)

    async def infer(self, request: Request) -> Response:
        """An inference request of the Open Inference Protocol."""
        if "inference-header-content-length" in request.headers:
            raise RefusedError(415, "binary tensor data are not read; send the tensors as JSON")
        body = await read_body(request, self.limits)
        payload, inputs = await _aside(self._infer_request, body)
        columns = await self._answer(inputs, None, False)
        return _json(protocol.infer_answer(payload, columns, self.model))

    async def health(self, _: Request) -> Response:
        """Whether the service takes requests."""
        good = self._batcher is not None
        return _json({"status": "ok" if good else "not ready"}, 200 if good else 503)

    async def metadata(self, _: Request) -> Response:
        """What inputs look like, and what answers hold."""
        return _json(
            {**self.model.metadata(), "limits": {"rows": self.limits.rows, "bytes": self.limits.bytes}}
        )

    async def metrics_text(self, _: Request) -> Response:
        """Counts for Prometheus."""
        waiting = 0 if self._batcher is None else self._batcher.waiting
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return PlainTextResponse(self.metrics.text(waiting), media_type=kind, headers=_HEADERS)

    async def server_metadata(self, _: Request) -> Response:
        """/v2"""
        return _json(protocol.server_metadata())

    async def live(self, _: Request) -> Response:
        """/v2/health/live"""
        return _json({"live": True})

    async def ready(self, _: Request) -> Response:
        """/v2/health/ready"""
        good = self._batcher is not None
        return _json({"ready": good}, 200 if good else 503)

    async def model_metadata(self, _: Request) -> Response:
        """/v2/models/NAME"""
        return _json(protocol.model_metadata(self.model))

    async def model_ready(self, _: Request) -> Response:
        """/v2/models/NAME/ready"""
        good = self._batcher is not None
        return _json({"name": self.model.name, "ready": good}, 200 if good else 503)

    def _request(self, body: bytes) -> tuple[Any, Tensor]:
        payload = parse(body)
        return payload, self.model.prepared(read_request(payload, self.model, self.limits))

    def _infer_request(self, body: bytes) -> tuple[Any, Tensor]:
        payload = parse(body)
        return payload, self.model.prepared(protocol.read_infer(payload, self.model, self.limits))

    def _images(self, sent: list[bytes]) -> Tensor:
        return self.model.prepared(read_images(sent, self.model, self.limits))

    async def _answer(self, inputs: Tensor, members: tuple[int, ...] | None, each: bool) -> Columns:
        """The ensemble's answer, once its batch has run."""
        if self._batcher is None:
            raise RefusedError(503, "the service is not ready", retry_after=1)
        future = self._batcher.submit(inputs, members, each=each)
        try:
            with anyio.fail_after(self.limits.seconds):
                columns = await asyncio.wrap_future(future)
        except TimeoutError:
            raise RefusedError(504, f"there was no answer within {self.limits.seconds:g} s") from None
        broken = [row for row, finite in enumerate(columns[FINITE]) if not finite]
        if broken:
            raise RefusedError(
                422, f"the prediction for sample {broken[0]} is NaN or infinite: its values are too large"
            )
        self.metrics.deferred(sum(map(bool, columns["defer"])))
        return columns


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """A handler that answers with a part of the page to try the service by hand."""
    text = files("covey.serving").joinpath("page", name).read_text(encoding="utf-8")

    async def answer(_: Request) -> Response:
        return Response(text, media_type=kind, headers={**_HEADERS, "Content-Security-Policy": _POLICY})

    return answer


async def _aside(read: Any, body: bytes) -> Any:
    """Read a small body at once, and a large one in a thread."""
    if len(body) < _LARGE:
        return read(body)
    return await anyio.to_thread.run_sync(read, body)


def _typed(fields: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a form, which are texts, as the JSON values they stand for."""
    found: dict[str, Any] = {}
    for name, text in fields.items():
        if name not in ("members", "budget_ms"):
            raise RefusedError(
                422, f"there is no field {name[:80]!r}; a form has files, members and budget_ms"
            )
        try:
            found[name] = parse(text.encode())
        except RefusedError:
            raise RefusedError(
                422, f"the field {name!r} is a JSON value such as true or 5; got {text[:40]!r}"
            ) from None
    return found


def _rows(columns: Columns, each: bool) -> list[dict[str, Any]]:
    """Columns as one object per sample."""
    names = [name for name in columns if name != FINITE and (each or name != MEMBERS)]
    return [
        dict(zip(names, row, strict=True)) for row in zip(*(columns[name] for name in names), strict=True)
    ]


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(content, status, {**_HEADERS, **(headers or {})})


async def _refused(_: Request, error: Any) -> Response:
    told = error.message.encode(errors="replace").decode()  # a request may hold half of a character
    return _json({"error": told}, error.status, error.headers)


async def _no_path(request: Request, error: Any) -> Response:
    told = {
        404: f"there is no path {request.url.path[:200]}; / is a page, /predict answers, /metadata says how to ask",
        405: f"{request.url.path[:200]} does not take {request.method}",
    }
    return _json({"error": told.get(error.status_code, str(error.detail))}, error.status_code, error.headers)


async def _fault(_: Request, error: Exception) -> Response:
    # What went wrong inside is told to the log, not to whoever asks.
    _log.error("a request failed: %s: %s", type(error).__name__, error)
    return _json({"error": "this is a fault of the service, not of the request"}, 500)


def _paths(app: FastAPI) -> frozenset[str]:
    return frozenset(str(route.path) for route in app.routes if hasattr(route, "path"))


class _Counted:
    """Counts requests by path and status, and times them."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Anybody can ask for any path, and each would be kept.
        path = scope["path"] if scope["path"] in self._paths else "other"
        started = time.monotonic()
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            self._metrics.request(path, status, time.monotonic() - started)
