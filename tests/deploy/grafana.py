"""Strict models of the provisioning files of Grafana: they refuse unknown members and types."""

from typing import Annotated, Literal

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from pydantic.alias_generators import to_camel

Duration = Annotated[str, Field(pattern=r"^[1-9][0-9]*(ms|s|m|h)$")]
Uid = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,40}$")]


class Strict(BaseModel):
    """A model that refuses unknown members."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class PrometheusOptions(Strict):
    """`jsonData` of a data source of type prometheus: the members in use."""

    http_method: Literal["GET", "POST"]
    time_interval: Duration
    manage_alerts: StrictBool


class AlertmanagerOptions(Strict):
    """`jsonData` of a data source of type alertmanager."""

    implementation: Literal["prometheus", "mimir", "cortex"]
    handle_grafana_managed_alerts: StrictBool


class PrometheusSource(Strict):
    """A data source of type prometheus."""

    name: StrictStr
    uid: Uid
    type: Literal["prometheus"]
    access: Literal["proxy"]
    url: AnyHttpUrl
    is_default: StrictBool
    editable: StrictBool
    json_data: PrometheusOptions


class AlertmanagerSource(Strict):
    """A data source of type alertmanager."""

    name: StrictStr
    uid: Uid
    type: Literal["alertmanager"]
    access: Literal["proxy"]
    url: AnyHttpUrl
    editable: StrictBool
    json_data: AlertmanagerOptions


class Sources(Strict):
    """A file of `provisioning/datasources`."""

    api_version: Literal[1]
    datasources: list[Annotated[PrometheusSource | AlertmanagerSource, Field(discriminator="type")]]


class FileOptions(Strict):
    """The folder of the dashboards in the file system of Grafana."""

    path: Annotated[str, Field(pattern=r"^/[\w./-]+$")]


class Provider(Strict):
    """A provider of a folder of dashboards."""

    name: StrictStr
    org_id: StrictInt
    folder: StrictStr
    type: Literal["file"]
    disable_deletion: StrictBool
    allow_ui_updates: StrictBool
    update_interval_seconds: Annotated[StrictInt, Field(ge=10)]
    options: FileOptions


class Providers(Strict):
    """A file of `provisioning/dashboards`."""

    api_version: Literal[1]
    providers: list[Provider]


class ForwardOptions(Strict):
    """The address of an Alertmanager."""

    url: AnyHttpUrl


class Forward(Strict):
    """A receiver that passes every alert to an Alertmanager."""

    uid: Uid
    type: Literal["prometheus-alertmanager"]
    disable_resolve_message: StrictBool
    settings: ForwardOptions


class ContactPoint(Strict):
    """A contact point."""

    org_id: StrictInt
    name: StrictStr
    receivers: Annotated[list[Forward], Field(min_length=1)]


class Policy(BaseModel):
    """The root of the notification policies, whose members have underscores."""

    model_config = ConfigDict(extra="forbid")

    org_id: Annotated[StrictInt, Field(alias="orgId")]
    receiver: StrictStr
    group_by: list[StrictStr]
    group_wait: Duration
    group_interval: Duration
    repeat_interval: Duration


class Alerting(Strict):
    """A file of `provisioning/alerting`, without rules, because Prometheus evaluates them."""

    api_version: Literal[1]
    contact_points: list[ContactPoint]
    policies: list[Policy]
