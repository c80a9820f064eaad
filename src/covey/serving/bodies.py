"""The body of a request, read under limits of size and time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from covey.serving.limits import Limits
from covey.serving.refusals import RefusedError

_MOST_FIELDS = 16


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body; refused as soon as it is too long or too slow, not after."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RefusedError(415, "compressed bodies are not read; send the body as it is")
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > limits.bytes:
        raise _too_long(limits)
    chunks: list[bytes] = []
    size = 0
    try:
        with anyio.fail_after(limits.seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.bytes:
                    raise _too_long(limits)
                chunks.append(chunk)
    except TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {limits.seconds:g} s") from None
    except ClientDisconnect:
        raise RefusedError(400, "the connection was closed before the body was complete") from None
    return b"".join(chunks)


async def read_form(request: Request, body: bytes, limits: Limits) -> tuple[list[bytes], dict[str, Any]]:
    """The files and the other fields of a multipart form; nothing is written to a disk."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(request.headers, stream(), max_files=limits.rows, max_fields=_MOST_FIELDS)
    parser.spool_max_size = limits.bytes + 1  # files stay in memory, which the body's limit bounds
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise RefusedError(422, f"the form cannot be read: {error}") from error
    files: list[bytes] = []
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        if isinstance(value, str):
            fields[name] = value
        else:
            files.append(await value.read())
    await form.close()
    return files, fields


def _too_long(limits: Limits) -> RefusedError:
    return RefusedError(413, f"a request's body has at most {limits.megabytes:g} MiB")
