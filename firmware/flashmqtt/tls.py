"""TLS that verifies: an SSLContext for `Client(tls=...)`, on MicroPython and CPython.

Certificate and host name are checked unless `insecure=True` is spelled out. A board has no CA store: `ca` has to be given. A
certificate is valid between two dates, so a board needs its clock set first (`ntptime.settime()`); where
that is why a handshake failed, the error says so.
"""

import ssl
import sys

from .errors import CertificateRefused, UsageError

_HOSTED = sys.implementation.name != "micropython"


def context(ca=None, cert=None, key=None, insecure=False):
    """Return an SSLContext for a client.

    Args:
        ca: the certificate(s) of whoever signed the broker's, as PEM or DER bytes, or the name of a file with them.
        cert, key: this client's certificate and key, likewise, where the broker asks for them.
        insecure: accept any certificate. Whoever sits on the way then reads, and changes, everything.

    Raises:
        UsageError: neither `ca` nor `insecure`.
    """
    if ca is None and not insecure:
        raise UsageError("TLS needs ca=..., the certificate that signs the broker's (or, spelled out, insecure=True)")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if insecure:
        if _HOSTED:
            tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    else:
        tls.verify_mode = ssl.CERT_REQUIRED
        for der in _certificates(ca):
            tls.load_verify_locations(cadata=der)
    if cert is not None:
        if _HOSTED:
            tls.load_cert_chain(cert, key)  # CPython takes file names only
        else:
            tls.load_cert_chain(_certificates(cert)[0], _certificates(key)[0])
    return tls


def _certificates(source):
    """Return what PEM or DER bytes, or the file of that name, hold, each as DER: most boards' mbedTLS reads nothing else."""
    if isinstance(source, str):
        with open(source, "rb") as file:
            source = file.read()
    if not source.startswith(b"-----"):
        return [source]
    from binascii import a2b_base64

    found = []
    for block in source.split(b"-----BEGIN ")[1:]:
        text = block[block.index(b"-----") + 5 : block.index(b"-----END")]
        found.append(a2b_base64(b"".join(text.split())))
    return found


def explained(error):
    """Return a CertificateRefused that says in words why a handshake failed, or the error itself where that was not it."""
    text = _reason(error)
    return CertificateRefused(text) if text else error


def _reason(error):
    text = str(error)
    # mbedTLS gives names or the bare number -0x2700 (9984), OpenSSL sentences.
    if "expired" in text or "EXPIRED" in text or "not yet valid" in text or "FUTURE" in text or "validity" in text:
        return _dates()
    if "CERT" in text or "X509" in text or "certificate" in text or "9984" in text:
        year = _year()
        if year < 2024:
            return _dates()
        return "the broker's certificate was refused: " + " ".join(text.split())
    return None


def _dates():
    if _year() < 2024:
        return (
            "the broker's certificate was refused because this board's clock is not set (year %d): set it first"
            % _year()
        )
    return "the broker's certificate has expired, or is not valid yet"


def _year():
    from time import localtime

    return localtime()[0]
