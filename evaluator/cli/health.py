"""`health`: asks the worker of this machine how it is, for health checks without a shell."""

import argparse
import http.client
import ssl
from typing import Final

from evaluator.cli.wiring import UsageError
from evaluator.config import Settings

UNWELL: Final = 5
UNREACHABLE: Final = 3
TIMEOUT_SECONDS: Final = 5
EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # what to ask instead of it


def add_to(parser: argparse.ArgumentParser) -> None:
    """The options of `evaluator health`."""
    parser.add_argument(
        "--ready", action="store_true", help="ask /readyz instead of /livez: does it work?"
    )


def health(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator health`: 0 if the worker at http_host:http_port is well."""
    if settings.http_port == 0:
        raise UsageError("http_port is 0, so nobody knows where the worker is. Set a port.")
    path = "/readyz" if asked.ready else "/livez"
    host = EVERY_ADDRESS.get(settings.http_host, settings.http_host)
    connection = _connection(host, settings)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        print(
            f"the worker at {host}:{settings.http_port} cannot be asked: {reason}. "
            "Start it, or give the port with --set http_port=..."
        )
        return UNREACHABLE
    finally:
        connection.close()
    print(body)
    return 0 if answer.status == 200 else UNWELL


def _connection(host: str, settings: Settings) -> http.client.HTTPConnection:
    if settings.http_tls_certfile is None:
        return http.client.HTTPConnection(host, settings.http_port, timeout=TIMEOUT_SECONDS)
    # The name in the certificate is that of the service, not of this address. Nothing is told to
    # whoever answers, and only that it is well is believed.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(
        host, settings.http_port, timeout=TIMEOUT_SECONDS, context=context
    )
