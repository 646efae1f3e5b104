"""`health`: checks the worker of this machine over HTTP, for images without a shell."""

import argparse
import http.client
import ssl
from typing import Final

from evaluator.cli.exits import FOUND, INPUT_UNUSABLE, UsageError
from evaluator.config import Settings
from evaluator.secret_files import reason_of

TIMEOUT_SECONDS: Final = 5
LOOPBACK_OF: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # the keys are not bound


def health(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator health`: 0 if the worker at http_host:http_port is healthy."""
    if settings.http_port == 0:
        raise UsageError("http_port is 0, so the port of the worker is unknown. Set a port.")
    host, port = LOOPBACK_OF.get(settings.http_host, settings.http_host), settings.http_port
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
    if settings.http_tls_certfile is not None:
        # The certificate names the service, not this address. The request has no secret, and only
        # the health is read from the response.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            host, port, timeout=TIMEOUT_SECONDS, context=context
        )
    try:
        connection.request("GET", "/readyz" if options.ready else "/livez")
        response = connection.getresponse()
        body = response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        print(
            f"the worker at {host}:{port} is unreachable: {reason_of(error)}. "
            "Start it, or give its settings of HTTP with --config or --set http_port=..."
        )
        return INPUT_UNUSABLE
    finally:
        connection.close()
    print(body)
    return 0 if response.status == 200 else FOUND
