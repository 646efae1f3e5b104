"""SIGHUP: reads the token, the certificate and the log level again."""

import argparse
import threading
from typing import Final

import structlog
from msgspec.structs import replace

from evaluator.adapters.http import HttpServer
from evaluator.adapters.log import configure_log
from evaluator.cli.execution import settings_of
from evaluator.config import ConfigError, Settings
from evaluator.config.settings import SPECS

log = structlog.get_logger(__name__)
_RELOADING: Final = threading.Lock()
_RELOADS: Final = threading.BoundedSemaphore(2)  # one reads its files, one waits for it


def hang_up(options: argparse.Namespace, settings: Settings, server: HttpServer) -> None:
    """Reloads in a thread, as files may be slow; one that never ends does not delay the exit.

    While a reload waits for the one before, it is enough for all further signals.
    """

    def run() -> None:
        with _RELOADING:  # in order, so that the newest files count
            try:
                reload(options, settings, server)
            finally:
                _RELOADS.release()

    if _RELOADS.acquire(blocking=False):
        try:
            threading.Thread(target=run, name="reload", daemon=True).start()
        except RuntimeError as error:
            _RELOADS.release()
            log.warning("settings_unusable", error=f"no thread to read them: {error}")


def reload(options: argparse.Namespace, settings: Settings, server: HttpServer) -> None:
    """Reads the token, the certificate and the log level again; *settings* are those in use."""
    server.reload()
    try:
        now = settings_of(options)
    except ConfigError as error:
        log.warning("settings_unusable", error=str(error))
        return
    configure_log(log_format=settings.log_format, log_level=now.log_level)
    reloaded = replace(settings, log_level=now.log_level)
    waiting = [name for name in SPECS if getattr(now, name) != getattr(reloaded, name)]
    log.info("settings_reloaded", log_level=now.log_level, restart_needed_for=waiting)
