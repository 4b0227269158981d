"""What the processes of a server ask each other about themselves: rare questions, each on a connection of its own.

    frame:  | length: u32, big endian | a value, encoded (codec.py) |

A question is (name, arguments) and is answered with a value, or with a LanewayError that is raised where it was asked.
Whoever may open the socket may do everything, so it is open to this user alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from laneway.cluster.addresses import socket_of_the_owner
from laneway.cluster.codec import decode, encode
from laneway.errors import LanewayError, Unavailable

log = logging.getLogger("laneway.cluster")

MAX_CALL_BYTES = 64 * 1024 * 1024
#: A process that does not answer within this is as good as gone.
ANSWER_S = 5.0

_LENGTH_BYTES = 4

Answerer = Callable[..., Awaitable[Any]]


class CallServer:
    """Answers the questions of other processes, by name."""

    def __init__(self, answerers: Mapping[str, Answerer]) -> None:
        self._answerers = answerers
        self._server: asyncio.Server | None = None

    async def start(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)  # of a process that was killed
        self._server = await asyncio.start_unix_server(self._answer, sock=socket_of_the_owner(path))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                name, arguments = await _read(reader)
                await _write(writer, await self._answered(name, arguments))
        except (OSError, EOFError, TimeoutError):
            pass  # whoever asked is gone, or has given up
        except Exception:
            log.exception("a question of another process cannot be read")
        finally:
            writer.close()

    async def _answered(self, name: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return await self._answerers[name](*arguments)
        except LanewayError as refusal:
            return refusal
        except Exception:
            log.exception("a question of another process could not be answered: %s", name)
            return LanewayError("something went wrong inside the server; its log says what")


async def call(path: str, name: str, *arguments: Any) -> Any:
    """The answer of the process that listens there; Unavailable if it does not answer."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                await _write(writer, (name, arguments))
                answer = await _read(reader)
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError) as trouble:
        raise Unavailable(f"a process of the server does not answer: {trouble or 'not in time'}") from None
    if isinstance(answer, LanewayError):
        raise answer
    return answer


async def _write(writer: asyncio.StreamWriter, value: Any) -> None:
    frame = encode(value)
    writer.write(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)
    await writer.drain()


async def _read(reader: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if size > MAX_CALL_BYTES:
        raise EOFError(f"a frame of {size} bytes, {MAX_CALL_BYTES} are allowed")
    return decode(await reader.readexactly(size))
