"""Loads certificates and keys, as PEM or DER, from files or bytes into an SSLContext.

Most boards' mbedTLS reads DER only, and reports "invalid cert" for everything else. So PEM is decoded here, line by line (a
bundle may be longer than a board's heap), and an error names the file. The module is used once per context, and does not stay in
memory. It knows no socket.
"""

import sys

from .compat import TYPE_CHECKING
from .errors import UsageError

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_HOSTED = sys.implementation.name != "micropython"

_BEGIN = b"-----BEGIN "
_END = b"-----END "
_SEQUENCE = 0x30  # DER's first byte
_ENCRYPTED = "ENCRYPTED"  # in the label or the headers of a key with a pass phrase


def trust(tls: "Any", source: "Any") -> None:
    """Load the CA certificates of a source."""
    name = _name(source, "ca")
    number = 0
    for label, der in _blocks(source, name):
        if label == "DER" or ("CERTIFICATE" in label and "REQUEST" not in label):
            number += 1
            try:
                tls.load_verify_locations(cadata=der[: _der_length(der)])  # openssl may have written more after it
            except (OSError, ValueError, MemoryError) as error:
                raise UsageError(
                    "%s: certificate %d in it can't be used: %s. Is it damaged, or is memory short? "
                    "Only the broker's CA is needed" % (name, number, _text(error))
                )
    if not number:
        raise UsageError("%s: no certificate in it, neither PEM (-----BEGIN CERTIFICATE-----) nor DER" % name)


def identify(tls: "Any", cert: "Any", key: "Any", password: "Any") -> None:
    """Load this client's certificate and key."""
    cert_name = _name(cert, "cert")
    key_name = _name(key, "key")
    certificates = [der for label, der in _blocks(cert, cert_name) if label == "CERTIFICATE" or label == "DER"]
    if not certificates:
        raise UsageError("%s: no certificate in it, neither PEM (-----BEGIN CERTIFICATE-----) nor DER" % cert_name)
    keys = [(label, der) for label, der in _blocks(key, key_name) if "PRIVATE KEY" in label or label == "DER"]
    if not keys:
        raise UsageError("%s: no private key in it, neither PEM (-----BEGIN PRIVATE KEY-----) nor DER" % key_name)
    label, der = keys[0]
    if _HOSTED:
        from .hosted import load_chain

        if _ENCRYPTED in label and not password:
            raise UsageError("%s: the key has a pass phrase: give password=..." % key_name)
    elif _ENCRYPTED in label:
        raise UsageError(
            "%s: the key has a pass phrase, which MicroPython's TLS can't take; remove it: "
            "openssl pkey -in %s -out plain.pem" % (key_name, key_name)
        )
    try:
        if _HOSTED:
            load_chain(tls, certificates, key, label, der, password)
        elif len(certificates) == 1:
            tls.load_cert_chain(certificates[0], der)
        else:
            tls.load_cert_chain(_pem(certificates), der)
    except (OSError, ValueError, MemoryError) as error:
        text = _text(error)
        # mbedTLS names the one that it refused; OpenSSL may report that the two do not match.
        name = key_name if "key" in text else cert_name if "cert" in text else "%s and %s" % (cert_name, key_name)
        if len(certificates) > 1 and not _HOSTED:
            text += "; it has %d certificates: most boards accept one, and the broker must know the others"
            text %= len(certificates)
        raise UsageError("%s: can't be used: %s" % (name, text))


def _pem(certificates: "Any") -> "Any":
    """Return certificates as PEM: mbedTLS takes a chain only in this form, on ports whose mbedTLS reads PEM."""
    from binascii import b2a_base64

    text = b""
    for der in certificates:
        text += _BEGIN + b"CERTIFICATE-----\n" + b2a_base64(der) + _END + b"CERTIFICATE-----\n"
    return text


def _name(source: "Any", what: str) -> "Any":
    """Return the name of a source for error texts."""
    return source if isinstance(source, str) else what


def _text(error: "Any") -> "Any":
    return " ".join(str(error).split()) or type(error).__name__


def _blocks(source: "Any", name: str) -> "Any":
    """Yield (label, DER) for each block of a source; the label of a DER source is "DER".

    Raises:
        UsageError: the file can't be read; a block is truncated, or is not base64.
    """
    try:
        if isinstance(source, str):
            file = open(source, "rb")
        else:
            from io import BytesIO

            file = BytesIO(source)  # type: ignore[assignment]
        start = file.read(6)  # a read, because MicroPython also opens a directory
    except (OSError, TypeError) as error:
        raise UsageError("%s: can't be read: %s" % (name, _text(error)))
    try:
        if len(start) > 1 and start[0] == _SEQUENCE and _der_length(start) == file.seek(0, 2):
            file.seek(0)
            yield "DER", file.read()
            return
        file.seek(0)
        while True:
            line = file.readline()
            if not line:
                return
            at = line.find(_BEGIN)
            if at >= 0:
                label = str(line[at + len(_BEGIN) :].split(b"-----")[0], "utf-8")
                yield _block(file, label, name)
    finally:
        file.close()


def _block(file: "Any", label: str, name: str) -> "Any":
    """Return the rest of a block: its label, with ENCRYPTED if a header says that, and its bytes."""
    from binascii import a2b_base64

    der = bytearray()
    rest = b""
    while True:
        line = file.readline()
        if not line or _BEGIN in line:
            raise UsageError("%s: the block %s has no end: the file is cut off" % (name, label))
        if line.startswith(_END):
            break
        if b":" in line:  # a header; openssl's old format of encrypted keys has them
            if b"ENCRYPTED" in line:
                label = "%s %s" % (_ENCRYPTED, label)
            continue
        rest += line.strip()
        whole = len(rest) & -4
        try:
            der += a2b_base64(rest[:whole])
        except ValueError as error:
            raise UsageError("%s: the block %s is no base64: %s" % (name, label, error))
        rest = rest[whole:]
    # Not checked: EC PARAMETERS and keys in openssl's old encrypted format. They are not sequences, and not used here.
    plain = "CERTIFICATE" in label or (label.endswith("PRIVATE KEY") and not label.startswith(_ENCRYPTED))
    if rest or not der or (plain and not (der[0] == _SEQUENCE and 0 < _der_length(der) <= len(der))):
        raise UsageError("%s: the block %s is damaged" % (name, label))
    return label, bytes(der)  # MicroPython's ssl does not accept a bytearray


def _der_length(der: "Any") -> "Any":
    """Return the length of a DER value, from its first bytes."""
    n = der[1]
    if n < 0x80:
        return n + 2
    size = n & 0x7F
    if size > 4 or len(der) < size + 2:
        return -1
    n = 0
    for byte in der[2 : size + 2]:
        n = n << 8 | byte
    return n + size + 2
