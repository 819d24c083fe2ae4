"""What `ssl.wrap_socket` took, for `ssl=True, ssl_params={...}` of `simple` and `mqtt_as`; loaded with the first such connection.

| key | value |
|---|---|
| server_hostname | the name in the broker's certificate; the broker's where it is missing |
| cadata | the certificate(s) of whoever signed the broker's; also `ca_certs` or `ca` |
| cert, key | this client's, where the broker asks for them; also `certfile`, `keyfile` |
| cert_reqs | `ssl.CERT_NONE`: check nothing; `ssl.CERT_REQUIRED`: check, for which cadata is needed |

Certificates and keys are PEM as bytes or str, DER as bytes, or the name of a file with either. A CA is there to be checked
against: with cadata and no cert_reqs the broker's certificate is checked, while `ssl.wrap_socket` did not. With neither it is
not, as ever, and one line says so; `cert_reqs` says that it is meant.
"""

from . import tls
from .compat import TYPE_CHECKING
from .errors import UsageError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Any  # noqa: TID251

# What each key is for `tls.context`; None: nothing.
_NAMES = {
    "server_hostname": None,
    "server_side": None,
    "do_handshake": None,
    "cadata": "ca",
    "ca_certs": "ca",
    "ca": "ca",
    "cert": "cert",
    "certfile": "cert",
    "key": "key",
    "keyfile": "key",
    "insecure": "insecure",
    "password": "password",
    "cert_reqs": "cert_reqs",
}
_said = False


def context(params: "dict[str, Any]", log: "Callable[[str], object]" = print) -> "ssl.SSLContext":
    """Return an SSLContext for a dict of params; log is called with the line that says what is not checked.

    Raises:
        UsageError: a parameter that there is not, or a server's; and what `tls.context` raises.
    """
    global _said
    arguments: "dict[str, Any]" = {}
    for key in params:
        value = params[key]
        if key not in _NAMES or (key == "server_side" and value):
            raise UsageError("ssl_params %r: %s" % (key, ", ".join(sorted(_NAMES))))
        name = _NAMES[key]
        if name and value is not None:
            if isinstance(value, str) and "-----BEGIN " in value:
                value = value.encode()
            arguments[name] = value
    checks = arguments.pop("cert_reqs", None)
    if not checks and (checks is not None or "ca" not in arguments):
        if checks is None and not _said and not arguments.get("insecure"):
            _said = True
            log(
                "flashmqtt: the broker's certificate is not checked, so anybody on the way can pretend to be the broker; "
                "give ssl_params 'cadata' (the CA), or 'cert_reqs': ssl.CERT_NONE if that is meant"
            )
        arguments["insecure"] = True
    return tls.context(**arguments)
