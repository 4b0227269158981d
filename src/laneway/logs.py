"""The log of a server: where its lines go and how they look. Lines for programs are JSON objects, one each, whoever
wrote them: the node, a library, a warning, or an error that nobody caught."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

log = logging.getLogger("laneway")


class _JsonLines(logging.Formatter):
    def __init__(self, process: int | None) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process is not None:
            line["process"] = self._process
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _TextLines(logging.Formatter):
    """One line is one line: what clients say stands in many of them, and must neither end one nor move the cursor of a
    terminal. The lines of a traceback are marked, so that none of them looks like the beginning of a record."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"  | {printable(line)}" for line in super().formatException(ei).split("\n"))

    def formatStack(self, stack_info: str) -> str:
        return "\n".join(f"  | {printable(line)}" for line in stack_info.split("\n"))


def printable(text: str) -> str:
    """The text with everything but letters, signs and blanks written as Python escapes it."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text
    )


def set_up_logging(level: str, form: str, process: int | None = None) -> None:
    """From now on all that is logged goes to stderr, from this level on; again with others when they change. Of
    several processes of a server each says its number."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(form, process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda said: _uncaught(said.exc_type, said.exc_value, said.exc_traceback)


def formatter(form: str, process: int | None = None) -> logging.Formatter:
    if form == "json":
        return _JsonLines(process)
    number = "" if process is None else f"[{process}] "
    return _TextLines(f"%(asctime)s %(levelname)s {number}%(name)s: %(message)s")


def announce(form: str, message: str) -> None:
    """The one line on stdout, which whoever started the server waits for."""
    record = logging.LogRecord("laneway.node", logging.INFO, "", 0, message, None, None)
    print(formatter(form).format(record) if form == "json" else message, flush=True)


def _uncaught(kind: type[BaseException], error: BaseException | None, at: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error or kind(), at)
        return
    log.critical("an error that nobody caught ends what it happened in", exc_info=(kind, error or kind(), at))
