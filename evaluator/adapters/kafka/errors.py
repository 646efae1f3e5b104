"""Converts errors of aiokafka to SourceUnavailable (temporary) or SourceUnusable."""

import asyncio
import contextlib
import ssl
from collections.abc import Container, Iterator, Sequence
from typing import Final

from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors

from evaluator.core.types.records import LOGS
from evaluator.core.types.skips import OffsetRange, partition_missing
from evaluator.ports import SourceUnavailable, SourceUnusable

TOO_LARGE: Final = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
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
"""Certificate errors of OpenSSL by code; all other codes mean an untrusted authority."""
_TLS_ALERT = 0x1503
"""The first bytes of a TLS alert, which a client without TLS reads as a length."""


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raises errors of aiokafka as SourceUnavailable or SourceUnusable; *doing* is the action."""
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
        tls = _tls_error(error)
        if tls is not None:
            raise SourceUnusable(f"{doing[0].upper()}{doing[1:]} failed. {tls}") from error
        raise SourceUnavailable(f"{doing} failed: {_reason(error)}.") from error


def describe(error: BaseException) -> str:
    """A description of *error* in one line, not empty."""
    text = str(error) or type(error).__name__
    return " ".join(text.split()).rstrip(".")


def raise_for(code: int) -> None:
    """Raises the error of aiokafka for a protocol error code other than 0."""
    if code:
        error = kafka_errors.for_code(code)
        raise error(getattr(error, "description", "") or error.__name__)


def closed_by_broker(error: BaseException | None) -> bool:
    """Whether the broker accepted the connection and closed it without an answer."""
    return any(isinstance(cause, _CLOSED) for cause in _causes(error))


def _reason(error: BaseException) -> str:
    if isinstance(error, kafka_errors.NotCoordinatorForGroupError):
        return (
            "NOT_COORDINATOR, from the broker that should coordinate it. Restart that broker if "
            "this lasts and its log says `Failed to load metadata from __consumer_offsets`"
        )
    if not closed_by_broker(error):
        return describe(error)
    return (
        "the broker closed the connection. Unless it is just stopping, security_protocol does not "
        "fit the listener (TLS or none, login or none), or it refuses the client certificate"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """*error* and the errors that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


def _tls_error(error: BaseException) -> str | None:
    """The reason and the action for a permanent TLS error."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _broker_certificate_error(cause)
        if isinstance(cause, ssl.SSLError):
            return _handshake_error(cause)
        if (
            isinstance(cause, asyncio.IncompleteReadError)
            and (cause.expected or 0) >> 16 == _TLS_ALERT
        ):
            return "The broker's listener uses TLS. Set security_protocol to SSL or SASL_SSL."
    return None


def _broker_certificate_error(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _OTHER_HOST:
        advice = (
            "Connect to a name that the certificate is for (--source, and advertised.listeners of "
            "the broker), or issue a certificate for this name to the broker."
        )
    elif error.verify_code in {_EXPIRED, _NOT_VALID_YET}:
        advice = "Renew the broker's certificate, or correct the clock of this machine."
    else:
        advice = "Set ssl_cafile to the authority that signed the broker's certificate."
    return f"The broker's certificate is not accepted: {error.verify_message.rstrip('.')}. {advice}"


def _handshake_error(error: ssl.SSLError) -> str | None:
    """None for errors that a stopping broker may cause."""
    reason = error.reason or ""
    if reason == "WRONG_VERSION_NUMBER":
        return (
            "The broker's listener does not use TLS. Set security_protocol to PLAINTEXT or "
            "SASL_PLAINTEXT, or use the port of a listener with TLS."
        )
    if "ALERT" not in reason or "CLOSE_NOTIFY" in reason:
        return None
    alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
    return (
        f"The broker ends the TLS handshake: {alert}. Set ssl_certfile and ssl_keyfile to a client "
        "certificate that has not expired and whose authority the broker trusts."
    )


# Record batches that cannot be unpacked, and offsets that are skipped

_SKIPPED: Final[dict[TopicPartition, Sequence[OffsetRange]]] = {}


class BatchDamaged(SourceUnusable):
    """The record batch that begins at *first* cannot be unpacked; *last* is None if unknown.

    It is intact if *error* is a MemoryError.
    """

    def __init__(
        self, partition: TopicPartition, first: int, last: int | None, error: Exception
    ) -> None:
        self.partition = partition
        topic, number = partition
        where = f"{topic}-{number}:{first}" + (f"-{last}" if (last or 0) > first else "")
        text = " ".join((str(error) or type(error).__name__).split())[:200]
        advice = (
            f" To continue without them: `evaluator run --skip {where}`, the same for replay. A "
            "worker that has to rebuild a task from them needs --accept-loss too."
            if topic.endswith(LOGS)
            else ""
        )
        cause = (
            ""
            if isinstance(error, MemoryError)
            else " They are damaged on the broker; another replica may have intact ones."
        )
        super().__init__(f"The records {where} cannot be read: {text}.{cause}{advice}")


def skip(partition: TopicPartition, ranges: Sequence[OffsetRange]) -> None:
    """Makes all consumers of this process skip the batches that lie within *ranges*."""
    _SKIPPED[partition] = ranges


def skipped(partition: TopicPartition) -> Sequence[OffsetRange]:
    """The ranges of the last `skip` of a partition."""
    return _SKIPPED.get(partition, ())


def require_skipped(topics: Container[str], n_partitions: int) -> None:
    """Raises SourceUnusable if `skip` names a partition that does not exist."""
    for (topic, number), ranges in _SKIPPED.items():
        if ranges and topic in topics and number >= n_partitions:
            raise SourceUnusable(partition_missing(topic, number, n_partitions))
