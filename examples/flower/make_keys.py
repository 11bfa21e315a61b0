"""A certificate authority, a TLS certificate for 127.0.0.1 and a key for each node: for trials.

python make_keys.py --nodes 5 --out keys
"""

import argparse
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFETIME = datetime.timedelta(days=30)


def make_keys(nodes: int, out: Path) -> None:
    """Write `ca.crt`, `server.crt`, `server.key` and, for each node, `node-I` and `node-I.pub`."""
    out.mkdir(parents=True, exist_ok=True)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = _certificate("fedproof example CA", authority, authority, issuer=None)
    leaf = _certificate("localhost", server, authority, issuer=root.subject)
    (out / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (out / "server.crt").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    _write_private(out / "server.key", server, serialization.PrivateFormat.PKCS8)
    for node in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        _write_private(out / f"node-{node}", key, serialization.PrivateFormat.OpenSSH)
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        (out / f"node-{node}.pub").write_bytes(public + b"\n")


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    issuer: x509.Name | None,
) -> x509.Certificate:
    """A certificate of `key`; without an issuer it is the authority's own."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if issuer is None:
        builder = builder.add_extension(_usage(signs=True), critical=True)
    else:
        builder = builder.add_extension(_usage(signs=False), critical=True).add_extension(
            x509.SubjectAlternativeName(hosts), critical=False
        )
    return builder.sign(signer, hashes.SHA256())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, form, encryption_algorithm=serialization.NoEncryption())
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    make_keys(options.nodes, options.out)
