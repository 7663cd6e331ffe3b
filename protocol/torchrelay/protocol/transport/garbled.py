"""Bytes that are no message of ours. gRPC would raise an error for them in the server, and log a traceback for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError


class Garbled(grpc.aio.ServerInterceptor):
    """Refuses a call that cannot be read. In a stream, an empty message replaces a message that cannot be read."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        read = handler.request_deserializer

        def read_or_none(data: bytes) -> Any:
            try:
                return read(data)
            except DecodeError:
                return read(b"") if handler.request_streaming else None

        handler = handler._replace(request_deserializer=read_or_none)
        if handler.unary_unary is not None:
            return handler._replace(unary_unary=_answered(handler.unary_unary))
        if handler.unary_stream is not None:
            return handler._replace(unary_stream=_streamed(handler.unary_stream))
        return handler


def _answered(serve: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if request is None:
            await _refuse(context)
        return await serve(request, context)

    return call


def _streamed(serve: Callable[..., Any]) -> Callable[..., Any]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if request is None:
            await _refuse(context)
        async for answer in serve(request, context):
            yield answer

    return call


async def _refuse(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no message of this version")
