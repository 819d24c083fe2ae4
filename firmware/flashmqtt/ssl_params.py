"""The arguments of `ssl.wrap_socket`, for `ssl=True, ssl_params={...}` of `simple` and `mqtt_as`; loaded when first needed.

| key | value |
|---|---|
| server_hostname | the name in the broker's certificate, if it is not the host |
| cadata | the certificates of the CA that signed the broker's certificate; also `ca_certs` or `ca` |
| cert, key | this client's, if the broker requires them; also `certfile`, `keyfile` |
| cert_reqs | `ssl.CERT_NONE`: no check; `ssl.CERT_REQUIRED`: check, which needs cadata |

Certificates and keys are PEM as bytes or str, DER as bytes, or the name of a file with either. With cadata and without cert_reqs
the broker's certificate is checked; `ssl.wrap_socket` did not check it. With neither, it is not checked, as before, and one
warning is printed; `cert_reqs` avoids the warning.
"""

from . import tls
from .compat import TYPE_CHECKING
from .errors import UsageError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Any  # noqa: TID251

# The argument of `tls.context` for each key; None: none.
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
_warned = False


def context(params: "dict[str, Any]", log: "Callable[[str], object]" = print) -> "ssl.SSLContext":
    """Return an SSLContext for a dict of params; log is called with the warning that nothing is checked.

    Raises:
        UsageError: an unknown parameter, or one for servers; and the errors of `tls.context`.
    """
    global _warned
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
        if checks is None and not _warned and not arguments.get("insecure"):
            _warned = True
            log(
                "flashmqtt: the broker's certificate is not checked, so an attacker can pretend to be the broker; "
                "give ssl_params 'cadata' (the CA), or 'cert_reqs': ssl.CERT_NONE if that is intended"
            )
        arguments["insecure"] = True
    return tls.context(**arguments)
