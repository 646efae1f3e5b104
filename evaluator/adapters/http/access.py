"""Authentication by a token, and TLS; both from files that may change."""

import base64
import binascii
import contextlib
import hmac
import re
import ssl
from pathlib import Path

import structlog

from evaluator.ports import RequestRefused
from evaluator.secret_files import read_secret, reason_of, require_readable

MIN_TOKEN_CHARS = 16

log = structlog.get_logger(__name__)

Stamp = tuple[tuple[int, int, int], ...]


class HttpUnusable(RequestRefused):
    """The HTTP server cannot be started."""


class Access:
    """The token that requests must have, and the TLS context; none by default.

    Args:
        token_file: contains the token; read at every request.
        certfile, keyfile: PEM files; `renew` loads changed ones without a restart.
    """

    def __init__(
        self,
        *,
        token_file: str | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
    ) -> None:
        self._token_file = token_file
        self._certfile = certfile
        self._keyfile = keyfile
        self._context: ssl.SSLContext | None = None
        self._stamp: Stamp | None = None
        self._token_is_readable = True

    @property
    def needs_token(self) -> bool:
        """Whether requests must have a token."""
        return self._token_file is not None

    def start(self) -> ssl.SSLContext | None:
        """Checks the files; returns the context of connections, None without TLS.

        Raises:
            HttpUnusable: names the setting, not the token file, which may be the token itself.
        """
        if self._token_file is not None:
            try:
                self._token()
            except (OSError, ValueError) as error:
                raise HttpUnusable(
                    f"the file named by http_token_file cannot be used: {reason_of(error)}. Write "
                    f"one line of at least {MIN_TOKEN_CHARS} visible ASCII characters to it, e.g. "
                    "the output of `openssl rand -hex 32`."
                ) from None
        if self._certfile is None or self._keyfile is None:
            return None
        self._stamp = self._stamp_now()
        try:
            self._context = self._loaded(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise HttpUnusable(
                f"http_tls_certfile {self._certfile} and http_tls_keyfile {self._keyfile} cannot "
                f"be used: {reason_of(error)}. Name a certificate chain and its key without a "
                "password, both in PEM."
            ) from None
        return self._context

    def admits(self, authorization: str | None) -> bool:
        """Whether the header contains the token, as Bearer or as the password of Basic.

        Reads the file, so it must run outside of the event loop. Without a readable token all
        requests are refused.
        """
        if self._token_file is None:
            return True
        try:
            token = self._token()
        except (OSError, ValueError) as error:
            if self._token_is_readable:
                log.warning("http_token_unusable", error=reason_of(error))
            self._token_is_readable = False
            return False
        self._token_is_readable = True
        return hmac.compare_digest(_presented(authorization or ""), token)

    def renew(self) -> None:
        """Loads a changed certificate for new connections; an invalid one is ignored."""
        if self._context is None or (stamp := self._stamp_now()) == self._stamp:
            return
        self._stamp = stamp
        try:
            # First loads a new context: half of an invalid pair would remain in the present one.
            self._loaded(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
            self._loaded(self._context)
        except (OSError, ValueError) as error:
            log.warning("http_certificate_unusable", error=reason_of(error))
            return
        log.info("http_certificate_renewed")

    def reload(self) -> None:
        """Loads the certificate even if its files seem unchanged, and logs an unusable token."""
        self._token_is_readable, self._stamp = True, None
        self.admits(None)
        self.renew()

    def _token(self) -> bytes:
        """Raises OSError or ValueError."""
        token = read_secret(self._token_file or "").rstrip(b"\r\n")
        if len(token) < MIN_TOKEN_CHARS:
            raise ValueError(f"it has less than {MIN_TOKEN_CHARS} characters")
        if not re.fullmatch(rb"[!-~]+", token):
            raise ValueError("it has other characters than visible ASCII")
        return token

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        require_readable(self._certfile, self._keyfile)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # The empty password prevents a prompt on the terminal.
        context.load_cert_chain(self._certfile or "", self._keyfile, password=lambda: b"")
        return context

    def _stamp_now(self) -> Stamp:
        stamps = []
        for name in (self._certfile, self._keyfile):
            with contextlib.suppress(OSError):
                found = Path(name or "").stat()
                stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return tuple(stamps)


def _presented(authorization: str) -> bytes:
    """The token of a header; empty without one."""
    scheme, _, rest = authorization.partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer":
        return rest.encode("utf-8", "replace")
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(rest, validate=True).partition(b":")[2]
    return b""
