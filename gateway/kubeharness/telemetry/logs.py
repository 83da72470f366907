"""One line a log entry: JSON for machines, text for people. Never a body, a prompt or a secret."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal


class JsonLines(logging.Formatter):
    """Level, logger, message, time, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The entry as one line of JSON."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(form: Literal["json", "text"], level: str) -> None:
    """Send everything to standard error in one form."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # kubernetes_asyncio writes whole answers at debug level, Secrets and tokens with them (C53).
    for chatty in ("httpx", "httpx2", "httpcore", "httpcore2", "mcp", "asyncio", "openai", "kubernetes_asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
