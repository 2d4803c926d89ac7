"""The lab's certificates: who they say one is, and that a restart keeps them."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from workers.lab.controlplane.pki import ensure_pki, node_certificate


def _load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_api_server_is_known_by_loopback_names(tmp_path: Path) -> None:
    certificate = _load(ensure_pki(tmp_path).api_server.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_a_node_certificate_is_a_kubelet_of_that_node(tmp_path: Path) -> None:
    pki = ensure_pki(tmp_path)
    path, key = node_certificate(tmp_path, "node-7")
    certificate = _load(path)
    certificate.verify_directly_issued_by(_load(pki.ca_certificate))
    assert certificate.subject.rfc4514_string() == "O=system:nodes,CN=system:node:node-7"
    usage = certificate.extensions.get_extension_for_oid(ExtensionOID.EXTENDED_KEY_USAGE).value
    assert isinstance(usage, x509.ExtendedKeyUsage)
    assert ExtendedKeyUsageOID.CLIENT_AUTH in usage
    assert key.stat().st_mode & 0o077 == 0


def test_a_second_call_keeps_every_file(tmp_path: Path) -> None:
    ensure_pki(tmp_path)
    node_certificate(tmp_path, "node-7")
    before = {p.name: p.read_bytes() for p in (tmp_path / "pki").iterdir()}
    ensure_pki(tmp_path)
    node_certificate(tmp_path, "node-7")
    assert {p.name: p.read_bytes() for p in (tmp_path / "pki").iterdir()} == before


@pytest.mark.parametrize("name", ["", "../ca", "Node", "a/b", "-a", "a" * 300])
def test_a_name_that_no_node_can_have_is_refused(tmp_path: Path, name: str) -> None:
    ensure_pki(tmp_path)
    with pytest.raises(ValueError, match="node name"):
        node_certificate(tmp_path, name)
