"""Files of the package -> the live page and its modules, with headers that forbid all other sources."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import PurePath

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from unmask.report.page import LIVE, MODULES, STYLES, WEB
from unmask.server.limits import Refusal

KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
SERVED = {name for name in (*MODULES, *STYLES, *LIVE) if PurePath(name).suffix in KINDS}
HOME = "live.html"
ROUTES = "GET /openapi.json lists the paths"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
SAFE = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache"}
PAGES = APIRouter()


@cache
def _file(name: str) -> tuple[bytes, str]:
    """The contents of a file, and their ETag."""
    data = (WEB / name).read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'


@PAGES.get("/", response_class=HTMLResponse, summary="The live page")
async def home(request: Request) -> HTMLResponse:
    """The live page, with a note whether the server needs a token."""
    data = _file(HOME)[0].decode()
    wants = "yes" if request.app.state.unmask.wants_token else "no"
    page = data.replace('data-token="no"', f'data-token="{wants}"', 1)
    return HTMLResponse(page, headers={**SAFE, "content-security-policy": POLICY})


@PAGES.get("/web/{name}", include_in_schema=False)
async def web(request: Request, name: str) -> Response:
    """A module, style or picture of the page."""
    if name not in SERVED:
        raise Refusal(404, f"unknown file {name!r}", ROUTES)
    data, tag = _file(name)
    headers = {**SAFE, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=KINDS[PurePath(name).suffix], headers=headers)
