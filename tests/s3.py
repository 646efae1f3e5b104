"""A server of S3 in this process, for programs that tests start."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

SECRET = "never-in-a-log"


@contextmanager
def s3_server(bucket: str, objects: Mapping[str, bytes] | None = None) -> Iterator[dict[str, str]]:
    """A bucket with these objects; yields the environment of programs that use it."""
    server = pytest.importorskip("moto.server", reason="moto is in the group compare")
    boto3 = pytest.importorskip("boto3", reason="boto3 comes with moto")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        client = boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="test",
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=bucket)
        for name, text in (objects or {}).items():
            client.put_object(Bucket=bucket, Key=name, Body=text)
        client.close()
        yield environment
    finally:
        running.stop()
