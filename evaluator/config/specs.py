"""What is known of a setting beside its name, type and default."""

from dataclasses import dataclass, field
from typing import Any

from evaluator.config.kinds import Kind, as_text


@dataclass(frozen=True, slots=True)
class Spec:
    """What a setting accepts and means, and where it stands on the page of settings.

    `refusal` replaces the general words when an integer is too small.
    """

    group: str
    kind: Kind
    example: str
    meaning: str
    refusal: str = ""
    secret: bool = False


def setting(
    default: object,
    group: str,
    kind: Kind,
    meaning: str,
    example: str = "",
    *,
    refusal: str = "",
    secret: bool = False,
) -> Any:
    """A field of the settings; without an example its default is one."""
    spec = Spec(group, kind, example or as_text(default), meaning, refusal, secret)
    return field(default=default, metadata={"spec": spec})
