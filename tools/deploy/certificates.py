"""A board's certificates for TLS, checked on this machine before they are copied.

`[broker] tls = true` alone is for a broker with a certificate from a public authority. This machine connects to the broker once
and verifies the certificate against its own trusted authorities. The board gets the root certificate of that chain only, because
it has no room for all authorities. `ca`, `cert` and `key` name the user's own files.
"""

import ipaddress
import re
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from app.configuration import ConfigurationError
from tools.command import Failure

CA, CERT, KEY = "/tls/ca.pem", "/tls/cert.pem", "/tls/key.pem"  # paths on the board
CONNECT_S = 10.0
_BLOCK = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----", re.DOTALL)


@dataclass(frozen=True)
class Tls:
    """The TLS settings of [broker]; the files are on this machine."""

    on: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def paths(self) -> dict[str, str]:
        """Return the board's configuration: key -> path of the file on the board."""
        found = {"tls": CA} if self.on else {}
        return found | ({"tls_cert": CERT, "tls_key": KEY} if self.cert else {})


def _pem(what: str, path: Path, kind: bytes) -> bytes:
    """Return a file's PEM blocks whose label ends in `kind`, without other text; a DER file becomes one block."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"broker.{what}: {path} can't be read: {error.strerror}") from None
    blocks = [match[0] for match in _BLOCK.finditer(content) if match[1].endswith(kind)]
    if blocks:
        return b"\n".join(blocks) + b"\n"
    if content[:1] == b"\x30" and kind == b"CERTIFICATE":  # an ASN.1 sequence: DER
        return ssl.DER_cert_to_PEM_cert(content).encode()
    raise ConfigurationError(f"broker.{what}: {path} has no PEM block of the kind {kind.decode()}")


def authority(path: Path) -> bytes:
    """Return a CA file's content for the board.

    Raises:
        ConfigurationError: the file has no certificate, or not an authority's, or all have expired.
    """
    pem = _pem("ca", path, b"CERTIFICATE")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"broker.ca: {path} has no valid certificate: {error}") from None
    known = context.get_ca_certs()
    if not known:
        raise ConfigurationError(
            f"broker.ca: {path} is not an authority's certificate: name the authority that signed the broker's certificate"
        )
    now = time.time()
    ends = [str(one["notAfter"]) for one in known]
    if all(ssl.cert_time_to_seconds(end) < now for end in ends):
        raise ConfigurationError(f"broker.ca: {path} has expired ({ends[0]})")
    return pem


def identity(cert: Path, key: Path) -> tuple[bytes, bytes]:
    """Return the content of a client's certificate and key for the board.

    Raises:
        ConfigurationError: a file can't be read, the key has a pass phrase, certificate and key don't match, or the
            certificate has expired.
    """
    certificate, secret = _pem("cert", cert, b"CERTIFICATE"), _pem("key", key, b"PRIVATE KEY")
    if b"ENCRYPTED" in secret:
        raise ConfigurationError(
            f"broker.key: {key} has a pass phrase, which can't be entered on a board. "
            f"To remove it: openssl pkey -in {key.name} -out board.key"
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key)
    except ssl.SSLError as error:
        words = "don't match" if "MISMATCH" in str(error) else f"can't be used: {error}"
        raise ConfigurationError(f"broker.cert and broker.key, {cert} and {key}, {words}") from None
    end = ssl._ssl._test_decode_cert(str(cert))["notAfter"]  # type: ignore[attr-defined]
    if ssl.cert_time_to_seconds(end) < time.time():
        raise ConfigurationError(f"broker.cert: {cert} has expired ({end})")
    return certificate, secret


def public_authority(host: str, port: int) -> bytes:
    """Connect to a broker, verify its certificate as a browser would, and return the root certificate of its chain.

    Raises:
        Failure: the broker can't be reached, or its certificate is not from an authority that this machine trusts.
    """
    where = f"{host}:{port}"
    context = ssl.create_default_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13's default; boards are not strict
    hint = 'name the authority\'s certificate in config.toml: [broker] ca = "ca.pem"'
    try:
        with (
            socket.create_connection((host, port), CONNECT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            if hasattr(secured, "get_verified_chain"):  # Python 3.13
                return ssl.DER_cert_to_PEM_cert(secured.get_verified_chain()[-1]).encode()
            return secured._sslobj.get_verified_chain()[-1].public_bytes().encode()  # type: ignore[attr-defined]
    except ssl.SSLCertVerificationError as error:
        raise Failure(
            f"broker.tls: the certificate of {where} was refused ({error.verify_message}); if it is your own, {hint}"
        ) from None
    except OSError as error:
        raise Failure(
            f"broker.tls: no certificate came from {where} ({error}). Does the broker use TLS on this port? "
            f"If this machine can't reach it, {hint}"
        ) from None


def files(tls: Tls, host: str, port: int) -> dict[str, bytes]:
    """Return the board's files for TLS: path -> content.

    Raises:
        ConfigurationError, Failure: see the functions above.
    """
    if not tls.on:
        return {}
    found = {CA: authority(tls.ca) if tls.ca else public_authority(host, port)}
    if tls.cert and tls.key:
        found[CERT], found[KEY] = identity(tls.cert, tls.key)
    return found


def is_outside(host: str) -> bool:
    """Return whether a broker is outside the local network, judged by its address or name."""
    try:
        found = {ipaddress.ip_address(row[4][0]) for row in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):  # a name that this machine can't resolve
        return "." in host and not host.endswith((".local", ".lan", ".home", ".internal", ".home.arpa", ".localdomain"))
    return any(address.is_global for address in found)


def warnings(config: dict, tls: Tls) -> list[str]:
    """Return warnings about a connection without TLS over the internet, and about TLS on the usual port without TLS."""
    if tls.on and config["port"] == 1883:
        return ["TlsPort: port 1883 is usually the one without TLS: for port 8883, remove broker.port from config.toml"]
    if tls.on or not is_outside(config["broker"]):
        return []
    where = config["broker"]
    said = [f"PlainInternet: {where} is outside your network and tls is off: others can read and change the readings"]
    if config["user"] or config["broker_password"]:
        said = [
            f"PlainPassword: {where} is outside your network and tls is off: others can read the broker's "
            "user name and password; set [broker] tls = true"
        ]
    return said
