"""Certificates for the brokers and clients of tests."""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
DAY = dt.timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


class Authority:
    """Signs certificates of a day; every file is PEM and lies in *directory*."""

    def __init__(self, directory: Path, name: str = "evaluator tests") -> None:
        self.directory = directory
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.cafile = directory / f"{name.replace(' ', '-')}.pem"
        self.cafile.write_bytes(
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
            .public_bytes(PEM)
        )

    def issue(
        self, name: str, *, hosts: Sequence[str] = (), age_days: int = 0
    ) -> tuple[Path, Path]:
        """Certificate and key of *name*, for the names and addresses of these hosts.

        A certificate is valid from an hour before its creation until a day after it.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name), key, age_days=age_days)
        if hosts:
            names = x509.SubjectAlternativeName(list(map(_host, hosts)))
            builder = builder.add_extension(names, critical=False)
        certfile = self.directory / f"{name}.crt"
        keyfile = self.directory / f"{name}.key"
        certfile.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(PEM))
        keyfile.write_bytes(_pem_of(key))
        return certfile, keyfile

    def keystore(self, name: str, *hosts: str) -> Path:
        """Key and certificates of a broker in one file, as Kafka requires."""
        certfile, keyfile = self.issue(name, hosts=hosts)
        both = self.directory / f"{name}.pem"
        both.write_bytes(b"".join(map(Path.read_bytes, (keyfile, certfile, self.cafile))))
        return both

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, age_days: int = 0
    ) -> x509.CertificateBuilder:
        made = dt.datetime.now(dt.UTC) - age_days * DAY
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(made - dt.timedelta(hours=1))
            .not_valid_after(made + DAY)
        )


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def encrypted(keyfile: Path) -> Path:
    """A copy of a key with a passphrase."""
    key = serialization.load_pem_private_key(keyfile.read_bytes(), None)
    copy = keyfile.with_suffix(".locked")
    copy.write_bytes(
        key.private_bytes(
            PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    return copy
