"""A server certificate for the fault proxy, made when it starts.

Owns nothing else: the certificate lives as long as one test's folder and is its own authority.
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class ServerCertificate:
    """A certificate and its key in one file.

    Attributes:
        path: the file, readable by its owner only.
        pem: the certificate alone, for clients to trust.
    """

    path: Path
    pem: bytes

    def context(self) -> ssl.SSLContext:
        """TLS of a server that shows this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path)
        return context


def make_server_certificate(folder: Path) -> ServerCertificate:
    """A self-signed certificate for 127.0.0.1 and localhost, valid for a day."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fleetmend-fault-proxy")])
    now = datetime.now(UTC)
    names = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / "proxy.pem"
    path.touch(mode=0o600)
    path.write_bytes(secret + pem)
    return ServerCertificate(path, pem)
