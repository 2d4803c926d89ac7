"""The lab's own certificate authority, and every key that its parties need.

Owns the files below pki/: the CA, the API server's serving certificate, client certificates of the
admin, the controllers and (on request) single nodes, and the ServiceAccount signing keys.
All keys are P-256 (a key takes microseconds; an RSA key takes a noticeable part of the start) and
readable by this user only. An existing file is never replaced, so a restart keeps every identity.
"""

import fcntl
import ipaddress
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from workers.lab.paths import LabPaths

# A lab is thrown away long before; a directory kept for a year still works.
VALIDITY: Final = timedelta(days=3650)
# Clocks of containers on one machine don't differ, but a clock may be stepped back by NTP.
BACKDATING: Final = timedelta(hours=1)

API_SERVER_NAMES: Final = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
)
_NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, as files."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Subject:
    """Who a certificate is for, and what it may be used as."""

    common_name: str
    organization: str | None = None
    is_client: bool = True
    server_names: tuple[str, ...] = ()  # not empty = also a serving certificate on 127.0.0.1


@dataclass(frozen=True)
class LabPki:
    """The files of the lab's PKI that every lab has."""

    ca_certificate: Path
    ca_key: Path
    api_server: KeyPair
    api_server_as_kubelet_client: KeyPair
    admin: KeyPair
    controller_manager: KeyPair
    scheduler: KeyPair
    karpenter: KeyPair
    service_account_key: Path
    service_account_public_key: Path


_SUBJECTS: Final = {
    "kube-apiserver": Subject("kube-apiserver", is_client=False, server_names=API_SERVER_NAMES),
    "kube-apiserver-kubelet-client": Subject("kube-apiserver-kubelet-client", "system:masters"),
    "admin": Subject("fleetmend-lab-admin", "system:masters"),
    "kube-controller-manager": Subject("system:kube-controller-manager"),
    "kube-scheduler": Subject("system:kube-scheduler"),
    # A name of its own for the audit log; in a lab its rights are no subject.
    "karpenter": Subject("karpenter", "system:masters"),
}


def ensure_pki(lab_directory: Path) -> LabPki:
    """The lab's PKI; what is missing of it is made. Called at each start of a lab."""
    folder = LabPaths(lab_directory).pki
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder):
        if not (folder / "ca.crt").exists():
            _make_ca(folder)
        for name, subject in _SUBJECTS.items():
            _ensure_issued(folder, name, subject)
        if not (folder / "service-account.pub").exists():
            _make_service_account_keys(folder)
    return LabPki(
        ca_certificate=folder / "ca.crt",
        ca_key=folder / "ca.key",
        api_server=_pair(folder, "kube-apiserver"),
        api_server_as_kubelet_client=_pair(folder, "kube-apiserver-kubelet-client"),
        admin=_pair(folder, "admin"),
        controller_manager=_pair(folder, "kube-controller-manager"),
        scheduler=_pair(folder, "kube-scheduler"),
        karpenter=_pair(folder, "karpenter"),
        service_account_key=folder / "service-account.key",
        service_account_public_key=folder / "service-account.pub",
    )


def node_certificate(lab_directory: Path, name: str) -> tuple[Path, Path]:
    """Certificate and key files of the kubelet identity of node `name`.

    Group system:nodes, so the Node authorizer and NodeRestriction apply. It also serves on
    127.0.0.1, should a stand-in offer the kubelet's own API. A second call finds the first's files.

    Raises:
        ValueError: `name` can't be a node's name.
        FileNotFoundError: that lab has never been started, so it has no CA.
    """
    if not _NODE_NAME.fullmatch(name):
        raise ValueError(f"node name {name!r}: only lower-case letters, digits, '-' and '.'")
    folder = LabPaths(lab_directory).pki
    with _locked(folder):
        subject = Subject(f"system:node:{name}", "system:nodes", server_names=(name,))
        pair = _ensure_issued(folder, f"node-{name}", subject)
    return pair.certificate, pair.key


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _pair(folder: Path, name: str) -> KeyPair:
    return KeyPair(folder / f"{name}.crt", folder / f"{name}.key")


def _make_ca(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fleetmend lab CA")])
    certificate = (
        _unsigned(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(folder / "ca.key", key)
    _write(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _ensure_issued(folder: Path, name: str, subject: Subject) -> KeyPair:
    pair = _pair(folder, name)
    if pair.certificate.exists():  # written after its key
        return pair
    ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    ca_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{folder / 'ca.key'} is no EC key; remove the lab directory")
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, subject.common_name)]
    if subject.organization is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, subject.organization))
    builder = (
        _unsigned(x509.Name(attributes), ca.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_usages(subject)), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    if subject.server_names:
        names: list[x509.GeneralName] = [x509.DNSName(n) for n in subject.server_names]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    _write_key(pair.key, key)
    certificate = builder.sign(ca_key, hashes.SHA256())
    _write(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return pair


def _usages(subject: Subject) -> Sequence[x509.ObjectIdentifier]:
    usages = []
    if subject.is_client:
        usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    if subject.server_names:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return usages


def _unsigned(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATING)
        .not_valid_after(now + VALIDITY)
    )


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _make_service_account_keys(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(folder / "service-account.key", key)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write(folder / "service-account.pub", public, 0o644)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    _write(path, content, 0o600)


def _write(path: Path, content: bytes, mode: int) -> None:
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    part.replace(path)
