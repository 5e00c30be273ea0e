"""Models, settings and limits -> the HTTP application."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from unmask._version import __version__
from unmask.core.denoiser import Chats
from unmask.errors import UnmaskError
from unmask.models import Denoiser
from unmask.server import replies, schemas
from unmask.server.active import Stream, Visit, unless_gone
from unmask.server.answer import Writer
from unmask.server.batcher import Batcher
from unmask.server.catalog import catalog
from unmask.server.limits import Refusal, refusal
from unmask.server.metrics import Metrics
from unmask.server.middleware import Gate
from unmask.server.pages import PAGES
from unmask.server.puzzle import kind_of
from unmask.server.request import Body, Order, Shop, understand
from unmask.server.validation import invalid

Found = TypeVar("Found")
PATIENCE = 0.3  # seconds that a step may still take when the server stops


@dataclass(frozen=True)
class Hall:
    """What the routes share."""

    shop: Shop
    metrics: Metrics = field(default_factory=Metrics)
    started: int = field(default_factory=lambda: int(time.time()))

    def open(self) -> Batcher:
        return Batcher(self.shop.models, self.shop.limits, self.metrics)


def make_app(shop: Shop, token: str | None = None, local: bool = True) -> tuple[Gate, Batcher]:
    """The application, behind its gate, and the batcher that decodes for it."""
    hall = Hall(shop)
    batcher = hall.open()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()
        await run_in_threadpool(batcher.join, PATIENCE)

    app = FastAPI(
        title="unmask",
        version=__version__,
        description="Masked diffusion language models, decoded along low-uncertainty paths.",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.hall, app.state.batcher, app.state.token = hall, batcher, token is not None
    app.include_router(PAGES)
    app.include_router(OUTER)
    app.include_router(INNER, dependencies=[] if token is None else [Depends(HTTPBearer(auto_error=False))])
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(UnmaskError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _refused)
    return Gate(app, shop.limits, hall.metrics, token, local), batcher


# --- the routes ------------------------------------------------------------------------------------------------------

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": replies.Error, "description": "The request cannot be decoded as it is"},
    401: {"model": replies.Error, "description": "No token, or a wrong one"},
    404: {"model": replies.Error, "description": "There is no such model"},
    408: {"model": replies.Error, "description": "Not decoded in time"},
    413: {"model": replies.Error, "description": "Too large"},
    415: {"model": replies.Error, "description": "The body is no JSON"},
    429: {"model": replies.Error, "description": "Too many wait already"},
    "default": {"model": replies.Error, "description": "Any other error"},
}


def _sent(*kinds: str) -> dict[str, Any]:
    """How a stream of server-sent events is described."""
    fields = {"event": {"type": "string", "enum": kinds}, "data": {"type": "string"}}
    return {"text/event-stream": {"schema": {"type": "object", "properties": fields, "required": ["data"]}}}


STREAM, EVENTS = _sent("message"), _sent("start", "step", "end", "error")
OUTER = APIRouter()
INNER = APIRouter(responses=ERRORS)


@OUTER.get("/healthz", responses={200: {"model": replies.Health}, 503: {"model": replies.Health}}, summary="Health")
async def healthz(request: Request) -> JSONResponse:
    """200 while requests are taken."""
    batcher, shop = request.app.state.batcher, request.app.state.hall.shop
    well = not batcher.closing and batcher.thread.is_alive()
    said = "ok" if well else "stopping"
    body = {"status": said, "message": HEALTH[said], "version": __version__, "models": list(shop.models)}
    return JSONResponse(body, 200 if well else 503)


HEALTH = {
    "ok": "requests are taken",
    "stopping": "the server is stopping: requests under way are finished, no new ones",
}


@INNER.get("/metrics", response_class=PlainTextResponse, summary="Counters for Prometheus")
async def metrics(request: Request) -> PlainTextResponse:
    """Requests, choices, tokens, evaluations, batches, times, the queue and memory."""
    text = request.app.state.hall.metrics.text()
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@INNER.get("/v1/models", responses={200: {"model": replies.ModelsReply}}, summary="The models that are served")
async def models(request: Request) -> JSONResponse:
    """A list of models."""
    hall: Hall = request.app.state.hall
    return JSONResponse(
        {"object": "list", "data": [_model(hall, name, model) for name, model in hall.shop.models.items()]}
    )


@INNER.get("/v1/models/{name:path}", responses={200: {"model": replies.ModelReply}}, summary="One of them")
async def model(request: Request, name: str) -> JSONResponse:
    """One model."""
    hall: Hall = request.app.state.hall
    return JSONResponse(_model(hall, name, hall.shop.model(name)))


def _model(hall: Hall, name: str, model: Denoiser) -> dict[str, Any]:
    chat = isinstance(model.tokenizer, Chats) and model.tokenizer.template is not None
    facts = {"limit": model.limit, "vocabulary": model.head.width, "mask": model.vocab.mask, "chat": chat}
    about = {"id": name, "object": "model", "created": hall.started, "owned_by": "unmask"}
    return {**about, "unmask": {**facts, "puzzle": kind_of(model), "device": str(model.device)}}


@INNER.get("/v1/recipes", responses={200: {"model": replies.CatalogReply}}, summary="What a recipe may be made of")
async def recipes(request: Request) -> JSONResponse:
    """Samplers, searches, their settings, and what is usual here."""
    return JSONResponse(catalog(request.app.state.hall.shop.usual))


@INNER.post(
    "/v1/completions",
    responses={200: {"model": replies.CompletionReply, "content": STREAM}},
    summary="Text after a prompt, between two texts, or in the holes of a canvas",
)
async def completions(request: Request, body: schemas.Completion) -> Response:
    """As OpenAI has it; every setting of a recipe may stand beside its fields."""
    return await _complete(request, body)


@INNER.post(
    "/v1/chat/completions",
    responses={200: {"model": replies.ChatReply, "content": STREAM}},
    summary="The next message of a dialogue",
)
async def chat(request: Request, body: schemas.Chat) -> Response:
    """As OpenAI has it; every setting of a recipe may stand beside its fields."""
    return await _complete(request, body)


async def _complete(request: Request, body: Body) -> Response:
    order = await _order(request, body)
    visit, writer = Visit(order, request.app.state.batcher), Writer(order)
    if not order.stream:
        return JSONResponse(await _begun(request, visit, lambda: visit.answer(writer)))
    return Stream(visit, visit.stream(writer, await _begun(request, visit, visit.first)))


@INNER.post(
    "/v1/paths",
    responses={200: {"content": EVENTS, "description": "Events start, step and end of a trace; error if it fails"}},
    response_class=Response,
    summary="Every step of all particles, as it is taken",
)
async def paths(request: Request, body: schemas.Paths) -> Response:
    """The events of a trace, as server-sent events."""
    visit = Visit(await _order(request, body), request.app.state.batcher, events=True)
    return Stream(visit, visit.paths(await _begun(request, visit, visit.first)))


async def _begun(request: Request, visit: Visit, work: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
    """What the work of a visit gives; if that fails, or the client leaves, the visit ends."""
    visit.begin()
    try:
        return await unless_gone(request, work())
    except BaseException:
        visit.end()
        raise


async def _order(request: Request, body: Body) -> Order:
    """The order; texts are cut into tokens in another thread."""
    hall: Hall = request.app.state.hall
    order = await run_in_threadpool(understand, body, hall.shop)
    hall.metrics.add("unmask_tokens_total", order.given, kind="given")
    return order


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def _refused(request: Request, error: Exception) -> Response:
    found = refusal(error)
    return JSONResponse(found.body, found.status, found.headers)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said, hint = str(error.detail), "GET /openapi.json lists what is here"
    if error.status_code == 400:
        hint = "send a JSON object"
    elif error.status_code == 404:
        said = f"there is no {request.url.path!r} here"
    elif error.status_code == 405:
        said, hint = f"{request.method} is not for {request.url.path}", f"use {(error.headers or {}).get('Allow')}"
    found = Refusal(error.status_code, said, hint)
    return JSONResponse(found.body, error.status_code, error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = invalid(error.errors(), request.url.path, error.body)
    return JSONResponse(found.body, found.status)
