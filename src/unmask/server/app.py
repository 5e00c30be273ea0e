"""A ServeConfig -> the HTTP application: its routes and its errors."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv6Network
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
from unmask.server.active import ActiveRequest, EventStream, unless_disconnected
from unmask.server.batcher import Batcher
from unmask.server.catalog import catalog
from unmask.server.limits import Refusal, refusal
from unmask.server.metrics import TEXT, Metrics
from unmask.server.middleware import Middleware
from unmask.server.pages import PAGES, ROUTES
from unmask.server.puzzle import kind_of
from unmask.server.refusals import invalid
from unmask.server.request import Body, ParsedRequest, ServeConfig, parse, standing
from unmask.server.turns import Turns

Found = TypeVar("Found")
PATIENCE = 0.3  # seconds for the last step when the server stops


@dataclass(frozen=True)
class AppState:
    """The values that the routes share."""

    config: ServeConfig
    batcher: Batcher
    wants_token: bool
    turns: Turns
    started: int = field(default_factory=lambda: int(time.time()))


def make_app(config: ServeConfig, token: str | None = None, local: bool = True) -> tuple[Middleware, Batcher]:
    """The application behind its middleware, and the batcher that decodes for it."""
    metrics = Metrics()
    batcher, turns = Batcher(config.models, config.limits, metrics), Turns(config.limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        turns.close()
        batcher.close()
        await run_in_threadpool(batcher.join, PATIENCE)

    app = FastAPI(
        title="unmask",
        version=__version__,
        description="Masked diffusion language models, decoded along low-uncertainty paths.",
        docs_url=None,  # its page would load scripts of other sites
        redoc_url=None,
        redirect_slashes=False,  # it would lead to any host that the request names
        lifespan=lifespan,
    )
    app.state.unmask = AppState(config, batcher, token is not None, turns)
    app.include_router(PAGES)
    app.include_router(OUTER)
    app.include_router(INNER, dependencies=[] if token is None else [Depends(HTTPBearer(auto_error=False))])
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(UnmaskError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _refused)
    return Middleware(app, config.limits, metrics, token, local), batcher


def state_of(request: Request) -> AppState:
    state: AppState = request.app.state.unmask
    return state


def client_of(request: Request) -> str:
    """The address that asks; one client may have 2⁶⁴ addresses of IPv6. Behind a proxy everybody is the proxy."""
    host = "" if request.client is None else request.client.host
    try:
        return str(IPv6Network((host.partition("%")[0], 64), strict=False)) if ":" in host else host
    except ValueError:
        return host


# --- the routes ------------------------------------------------------------------------------------------------------

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": replies.Error, "description": "The request is invalid"},
    401: {"model": replies.Error, "description": "A missing or wrong token"},
    404: {"model": replies.Error, "description": "Unknown model"},
    408: {"model": replies.Error, "description": "Not decoded in time"},
    413: {"model": replies.Error, "description": "Too large"},
    415: {"model": replies.Error, "description": "The body is not JSON"},
    429: {"model": replies.Error, "description": "The queue is full"},
    "default": {"model": replies.Error, "description": "Any other error"},
}


def _sent(*kinds: str) -> dict[str, Any]:
    """The schema of a stream of server-sent events."""
    fields = {"event": {"type": "string", "enum": kinds}, "data": {"type": "string"}}
    return {"text/event-stream": {"schema": {"type": "object", "properties": fields, "required": ["data"]}}}


STREAM, EVENTS = _sent("message"), _sent("start", "step", "end", "error")
OUTER = APIRouter()
INNER = APIRouter(responses=ERRORS)


async def _few_values(request: Request) -> None:
    """A dependency: it is called with the parsed body before that is validated."""
    if await request.body():
        state_of(request).config.limits.check_values(await request.json())


FEW = [Depends(_few_values)]


@OUTER.get("/healthz", responses={200: {"model": replies.Health}, 503: {"model": replies.Health}}, summary="Health")
async def healthz(request: Request) -> JSONResponse:
    """200 while the server accepts requests and decodes them."""
    state = state_of(request)
    status, message, still = "ok", "requests are accepted", state.batcher.stuck()
    if state.batcher.closing or not state.batcher.thread.is_alive():
        status, message = "stopping", STOPPING
    elif state.batcher.broken:
        status, message = "broken", f"{state.batcher.broken}: restart the server"
    elif still:
        status, message = "stuck", f"a step has taken {still:.0f} seconds: restart the server if it does not end"
    body = {"status": status, "message": message, "version": __version__, "models": list(state.config.models)}
    return JSONResponse(body, 200 if status == "ok" else 503)


STOPPING = "the server is stopping: it finishes the requests in progress and accepts no new ones"


@INNER.get("/metrics", response_class=PlainTextResponse, summary="Counters for Prometheus")
async def metrics(request: Request) -> PlainTextResponse:
    """Requests, choices, tokens, evaluations, batches, times, the queue and memory."""
    text = state_of(request).batcher.metrics.text()
    return PlainTextResponse(text, media_type=TEXT)


@INNER.get("/v1/models", responses={200: {"model": replies.ModelsReply}}, summary="The models that are served")
async def models(request: Request) -> JSONResponse:
    """The models that are served."""
    state = state_of(request)
    data = [_model(state, name, model) for name, model in state.config.models.items()]
    return JSONResponse({"object": "list", "data": data})


@INNER.get("/v1/models/{name:path}", responses={200: {"model": replies.ModelReply}}, summary="One model that is served")
async def model(request: Request, name: str) -> JSONResponse:
    """One model."""
    state = state_of(request)
    return JSONResponse(_model(state, name, state.config.model(name)))


def _model(state: AppState, name: str, model: Denoiser) -> dict[str, Any]:
    chat = isinstance(model.tokenizer, Chats) and model.tokenizer.template is not None
    facts: dict[str, Any] = {
        "limit": model.limit,
        "vocabulary": model.head.width,
        "mask": model.vocab.mask,
        "chat": chat,
    }
    about = {"id": name, "object": "model", "created": state.started, "owned_by": "unmask"}
    facts |= {"puzzle": kind_of(model), "device": str(model.device), "recipe": standing(state.config, name)}
    return {**about, "unmask": facts}


@INNER.get("/v1/recipes", responses={200: {"model": replies.CatalogReply}}, summary="Samplers, searches and settings")
async def recipes(request: Request) -> JSONResponse:
    """Samplers and searches with their settings, and the defaults of this server."""
    return JSONResponse(catalog(state_of(request).config.defaults))


@INNER.post(
    "/v1/completions",
    dependencies=FEW,
    responses={200: {"model": replies.CompletionReply, "content": STREAM}},
    summary="Text after a prompt, between two texts, or in the holes of a canvas",
)
async def completions(request: Request, body: schemas.Completion) -> Response:
    """As OpenAI has it; every setting of a recipe may stand beside its fields."""
    return await _complete(request, body)


@INNER.post(
    "/v1/chat/completions",
    dependencies=FEW,
    responses={200: {"model": replies.ChatReply, "content": STREAM}},
    summary="The next message of a dialogue",
)
async def chat(request: Request, body: schemas.Chat) -> Response:
    """As OpenAI has it; every setting of a recipe may stand beside its fields."""
    return await _complete(request, body)


async def _complete(request: Request, body: Body) -> Response:
    active = await _active(request, body)
    if not active.request.stream:
        return JSONResponse(await _submitted(request, active, active.answer))
    return EventStream(active, active.stream(await _submitted(request, active, active.first)))


@INNER.post(
    "/v1/paths",
    dependencies=FEW,
    responses={200: {"content": EVENTS, "description": "Events start, step and end of a trace; error if it fails"}},
    response_class=Response,
    summary="Every step of all particles, as it is taken",
)
async def paths(request: Request, body: schemas.Paths) -> Response:
    """The events of a trace, as server-sent events."""
    active = await _active(request, body, events=True)
    return EventStream(active, active.paths(await _submitted(request, active, active.first)))


async def _active(request: Request, body: Body, events: bool = False) -> ActiveRequest:
    """The request, parsed in another thread, since tokenizers are slow."""
    state = state_of(request)
    if any(value is not None for value in (body.matches, body.choices, body.response_format)):
        work = state.turns.run(client_of(request), partial(parse, body, state.config))
        parsed: ParsedRequest = await unless_disconnected(request, work)
    else:
        parsed = await run_in_threadpool(parse, body, state.config)
    state.batcher.metrics.tokens.labels(kind="given").inc(parsed.prompt_tokens)
    return ActiveRequest(parsed, state.batcher, events, client_of(request))


async def _submitted(request: Request, active: ActiveRequest, work: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
    """The value of the work after the choices are queued; they are cancelled if it fails or the client disconnects."""
    active.submit()
    try:
        return await unless_disconnected(request, work())
    except BaseException:
        active.cancel()
        raise


# --- errors ----------------------------------------------------------------------------------------------------------


async def _refused(request: Request, error: Exception) -> Response:
    found = refusal(error)
    return JSONResponse(found.body, found.status, found.headers)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, hint = str(error.detail), ROUTES
    if error.status_code == 400:
        hint = "send a JSON object"
    elif error.status_code == 404:
        message = f"unknown path {request.url.path!r}"
    elif error.status_code == 405:
        message, hint = (
            f"{request.url.path} does not take {request.method}",
            f"use {(error.headers or {}).get('Allow')}",
        )
    found = Refusal(error.status_code, message, hint)
    return JSONResponse(found.body, error.status_code, error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = invalid(error.errors(), request.url.path, error.body)
    return JSONResponse(found.body, found.status)
