"""The library's errors in our words: what waiting may mend, and what somebody has to."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator

from aiokafka import errors as kafka_errors

from evaluator.ports import SourceUnavailable, SourceUnusable

_NO_RIGHT = (
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.GroupAuthorizationFailedError,
    kafka_errors.ClusterAuthorizationFailedError,
    kafka_errors.TransactionalIdAuthorizationFailed,
)
_NO_LOGIN = (
    kafka_errors.AuthenticationFailedError,
    kafka_errors.AuthenticationMethodNotSupported,
    kafka_errors.SaslAuthenticationFailed,
)
_OTHER_LOGIN = (kafka_errors.UnsupportedSaslMechanismError, kafka_errors.IllegalSaslStateError)
_CLOSED = (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError)

_NOT_VALID_YET, _EXPIRED = 9, 10
_OTHER_HOST = (62, 64)  # a name, an address
"""Codes of OpenSSL for what is wrong with a certificate; any other is a matter of trust."""
_TLS_ALERT = 0x1503
"""The first bytes of an alert of TLS, which who does not speak it takes for a length."""


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turns library errors into SourceUnavailable and SourceUnusable; *doing* names the action."""
    try:
        yield
    except _NO_RIGHT as error:
        raise SourceUnusable(
            f"No right for {doing}: {describe(error)}. Grant it to this user (ACL)."
        ) from error
    except _NO_LOGIN as error:
        raise SourceUnusable(
            f"The broker refuses the login: {describe(error)}. Check sasl_username, the password "
            "in the file of sasl_password_file, sasl_mechanism and security_protocol."
        ) from error
    except _OTHER_LOGIN as error:
        raise SourceUnusable(
            f"The broker does not offer this kind of login ({type(error).__name__}, {doing}). "
            "Check sasl_mechanism and security_protocol."
        ) from error
    except kafka_errors.InvalidSessionTimeoutError as error:
        raise SourceUnusable(
            "The broker does not allow this session_timeout_ms. Set it to at least its "
            "group.min.session.timeout.ms (6000, unless it was changed) and at most its "
            "group.max.session.timeout.ms (1800000)."
        ) from error
    except TimeoutError as error:
        raise SourceUnavailable(f"The broker did not answer in time ({doing}).") from error
    except (kafka_errors.KafkaError, kafka_errors.ConsumerStoppedError, OSError) as error:
        refusal = _refusal_of_tls(error)
        if refusal is not None:
            raise SourceUnusable(f"{doing[0].upper()}{doing[1:]} failed. {refusal}") from error
        raise SourceUnavailable(f"{doing} failed: {_reason(error)}.") from error


def describe(error: BaseException) -> str:
    """One line about *error*, never empty."""
    text = str(error) or type(error).__name__
    return " ".join(text.split()).rstrip(".")


def raise_for(code: int) -> None:
    """Raises the library's error for a protocol error code other than 0."""
    if code:
        error = kafka_errors.for_code(code)
        raise error(getattr(error, "description", "") or error.__name__)


def hung_up(error: BaseException | None) -> bool:
    """Whether the broker took the connection and closed it without a word."""
    return any(isinstance(cause, _CLOSED) for cause in _causes(error))


def _reason(error: BaseException) -> str:
    if not hung_up(error):
        return describe(error)
    return (
        "the broker closed the connection. Unless it is just stopping, security_protocol does not "
        "fit the listener (TLS or none, login or none), or it refuses the client certificate"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """*error* and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


def _refusal_of_tls(error: BaseException) -> str | None:
    """What to do where waiting mends nothing: certificates, or one side that speaks no TLS."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _refused_broker(cause)
        if isinstance(cause, ssl.SSLError):
            return _refused_client(cause)
        if (
            isinstance(cause, asyncio.IncompleteReadError)
            and (cause.expected or 0) >> 16 == _TLS_ALERT
        ):
            return "The broker's listener speaks TLS. Set security_protocol to SSL or SASL_SSL."
    return None


def _refused_broker(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _OTHER_HOST:
        advice = (
            "Connect to a name that the certificate is for (--source, and advertised.listeners of "
            "the broker), or have the broker's certificate made for this one."
        )
    elif error.verify_code in {_EXPIRED, _NOT_VALID_YET}:
        advice = "Renew the broker's certificate, or correct the clock of this machine."
    else:
        advice = "Set ssl_cafile to the authority that signed the broker's certificate."
    return f"The broker's certificate is not accepted: {error.verify_message.rstrip('.')}. {advice}"


def _refused_client(error: ssl.SSLError) -> str | None:
    """None for what may have been the end of a broker."""
    reason = error.reason or ""
    if reason == "WRONG_VERSION_NUMBER":
        return (
            "The listener of the broker does not speak TLS. Set security_protocol to PLAINTEXT or "
            "SASL_PLAINTEXT, or take the port of a listener with TLS."
        )
    if "ALERT" not in reason or "CLOSE_NOTIFY" in reason:
        return None
    said = reason.partition("ALERT_")[2].replace("_", " ").lower()
    return (
        f"The broker ends the TLS handshake: {said}. Set ssl_certfile and ssl_keyfile to a client "
        "certificate that has not expired and whose authority the broker trusts."
    )
