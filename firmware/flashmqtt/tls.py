"""TLS with verification: an SSLContext for `Client(tls=...)`, on MicroPython and CPython.

Certificate and host name are checked unless `insecure=True` is given. A board has no CA store, so `ca` is required. A certificate
is valid between two dates, so a board must set its clock first (`ntptime.settime()`); if a handshake fails because of the clock,
the error says so.
"""

import ssl
import sys

from .compat import TYPE_CHECKING
from .errors import ConnectionLost, UsageError

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_HOSTED = sys.implementation.name != "micropython"


class CertificateRefused(ConnectionLost):
    """The broker's certificate was refused; the text has the reason, such as a clock that is not set."""

    refusal = True


def context(
    ca: "str | bytes | None" = None,
    cert: "str | bytes | None" = None,
    key: "str | bytes | None" = None,
    insecure: bool = False,
    password: "str | bytes | None" = None,
) -> "ssl.SSLContext":
    """Return an SSLContext for a client.

    Args:
        ca: the certificates of the CA that signed the broker's certificate, as PEM or DER bytes, or the name of a file with them.
            A PEM file may have several, with text between them (as certifi's and curl's bundles); a board has memory for a few.
        cert, key: this client's certificate and key, in the same forms, if the broker requires them. The intermediate
            certificates follow cert in its file. key: None if it is in the same file as cert.
        insecure: accept any certificate. An attacker between client and broker can then read and change everything.
        password: the key's pass phrase. MicroPython's TLS does not accept such a key.

    Raises:
        UsageError: neither `ca` nor `insecure` is given; or a file can't be read or used: the text names the file and the reason.
    """
    if ca is None and not insecure:
        raise UsageError("TLS needs ca=..., the CA of the broker's certificate, or insecure=True")
    if key is not None and cert is None:
        raise UsageError("a key without its certificate: give cert=..., too")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if insecure:
        if _HOSTED:
            tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    else:
        tls.verify_mode = ssl.CERT_REQUIRED
    if ca is not None or cert is not None:
        import flashmqtt
        from flashmqtt import certificates

        if not insecure:
            certificates.trust(tls, ca)
        if cert is not None:
            certificates.identify(tls, cert, cert if key is None else key, password)
        if not _HOSTED:
            del sys.modules["flashmqtt.certificates"], flashmqtt.certificates
    return tls


def explained(error: "Exception") -> "Exception | None":
    """Return a CertificateRefused or ConnectionLost that tells why a handshake failed; or the error itself."""
    text = str(error)
    # mbedTLS: -0x7200, no TLS record; -0x7280, the end of the stream.
    if "29184" in text or "29312" in text or "INVALID_RECORD" in text or "EOF" in text or "WRONG_VERSION" in text:
        return ConnectionLost("no TLS handshake: does the broker speak TLS on this port? (%s)" % " ".join(text.split()))
    text = _reason(error)
    return CertificateRefused(text) if text else error


def _reason(error: "Any") -> "Any":
    text = str(error)
    # mbedTLS has names or only a number (-0x7780: a fatal alert; -0x2700: not verified), OpenSSL has sentences.
    if "ALERT" in text or "alert" in text or "30592" in text:
        return (
            "the broker refused the handshake: does it want a client certificate, or not trust ours? (%s)"
            % " ".join(text.split())
        )
    if "expired" in text or "EXPIRED" in text or "not yet valid" in text or "FUTURE" in text or "validity" in text:
        return _dates()
    if "CERT" in text or "X509" in text or "certificate" in text or "9984" in text:
        year = _year()
        if year < 2024:
            return _dates()
        return "the broker's certificate was refused: " + " ".join(text.split())
    return None


def _dates() -> "Any":
    if _year() < 2024:
        return (
            "the broker's certificate was refused because this board's clock is not set (year %d): set it first"
            % _year()
        )
    return "the broker's certificate has expired, or is not valid yet"


def _year() -> "Any":
    from time import localtime

    return localtime()[0]
