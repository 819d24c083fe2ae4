"""TLS with verification: an SSLContext for `Client(tls=...)`, on MicroPython and CPython.

Certificate and host name are checked unless `insecure=True` is given. A board has no CA store, so `ca` is required. A certificate
is valid between two dates, so set a board's clock first (`ntptime.settime()`).
"""

import ssl
import sys

from .errors import ConnectionLost, UsageError

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


def explained(error: "Exception") -> "Exception":
    """Return a CertificateRefused or ConnectionLost that tells why a handshake failed, or the error."""
    text = " ".join(str(error).split())
    # OpenSSL has sentences, mbedTLS names or only a number: -0x7200, no TLS record; -0x7280, the end of the stream; -0x7780, a
    # fatal alert; -0x2700, not verified.
    # 104: some brokers reset a connection whose first packet is no CONNECT.
    if _has(text, "29184 29312 INVALID_RECORD EOF WRONG_VERSION 104]"):
        return ConnectionLost("no TLS handshake: does the broker speak TLS on this port? (%s)" % text)
    if _has(text, "ALERT alert 30592"):
        text = "the broker refused the handshake: does it want a client certificate, or not trust ours? (%s)" % text
        return CertificateRefused(text)
    dates = _has(text, "expired EXPIRED yet FUTURE validity")
    if not dates and not _has(text, "CERT X509 certificate 9984"):
        return error
    from time import localtime

    year = localtime()[0]
    if year < 2024:
        text = "was refused because this board's clock is not set (year %d): set it first" % year
    elif dates:
        text = "has expired, or is not valid yet"
    else:
        text = "was refused: " + text
    return CertificateRefused("the broker's certificate " + text)


def _has(text: str, words: str) -> bool:
    for word in words.split():
        if word in text:
            return True
    return False
