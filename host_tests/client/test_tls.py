"""TLS against mosquitto, with good, expired, self-signed, wrong-host and unknown-CA certificates, on both interpreters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.broker import Broker, find_mosquitto, free_port

ROOT = Path(__file__).resolve().parents[2]
MICROPYTHON = Path(sys.executable).parent / "micropython"

pytestmark = [
    pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl"),
]


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


def make_ca(directory: Path, name: str) -> None:
    openssl(
        directory,
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", "30", "-subj", f"/CN={name}"),
    )


def make_certificate(directory: Path, name: str, ca: str, days: int, host: str = "localhost") -> None:
    openssl(
        directory,
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={host}"),
    )
    (directory / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}\n")
    openssl(
        directory,
        *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial"),
        *("-out", f"{name}.crt", "-days", str(days), "-extfile", f"{name}.ext"),
    )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certificates")
    make_ca(directory, "ca")
    make_ca(directory, "stranger")
    make_ca(directory, "localhost")  # stands for itself
    make_certificate(directory, "good", "ca", 30)
    make_certificate(directory, "expired", "ca", -1)
    make_certificate(directory, "elsewhere", "ca", 30, "elsewhere")
    make_certificate(directory, "board", "ca", 30, "board")
    return directory


@pytest.fixture(scope="module")
def ports(certificates, tmp_path_factory):
    """Return the port of a listener for each server certificate, and "mutual" for one that asks for the client's."""
    names = {name: free_port() for name in ("good", "expired", "elsewhere", "localhost", "mutual")}
    lines = []
    for name, port in names.items():
        pair = "good" if name == "mutual" else name
        lines += [
            f"listener {port} 127.0.0.1",
            f"certfile {certificates}/{pair}.crt",
            f"keyfile {certificates}/{pair}.key",
        ]
        if name == "mutual":
            lines += [f"cafile {certificates}/ca.crt", "require_certificate true"]
        lines.append("allow_anonymous true")
    plain = free_port()
    extra = "\n".join([f"listener {plain} 127.0.0.1", "allow_anonymous true", *lines]) + "\n"
    with Broker(tmp_path_factory.mktemp("broker"), port=plain, kind="mosquitto", extra=extra, listener=False):
        yield names


@pytest.mark.timeout(120)
@pytest.mark.req("W13")
@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
@pytest.mark.parametrize(
    ("listener", "options", "outcome"),
    [
        ("good", {"ca": "ca"}, "connected 4"),
        ("good", {"ca": "ca", "server_name": "elsewhere"}, "CertificateRefused"),
        ("good", {"ca": "stranger"}, "CertificateRefused"),
        ("elsewhere", {"ca": "ca"}, "CertificateRefused"),
        ("elsewhere", {"ca": "ca", "host": "127.0.0.1", "server_name": "elsewhere"}, "connected 4"),
        ("expired", {"ca": "ca"}, "CertificateRefused"),
        ("localhost", {"ca": "ca"}, "CertificateRefused"),
        ("localhost", {"ca": "localhost"}, "connected 4"),
        ("localhost", {"insecure": True}, "connected 4"),
        ("mutual", {"ca": "ca", "cert": "board"}, "connected 4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(f"{k}_{v}" for k, v in value.items()),
)
def test_a_certificate_is_accepted_or_refused(interpreter, listener, options, outcome, certificates, ports):
    arguments = dict(options)
    for key in ("ca", "cert"):
        if key in options:
            arguments[key] = f"{certificates}/{options[key]}.crt"
    if "cert" in options:
        arguments["key"] = f"{certificates}/{options['cert']}.key"
    case = Path(__file__).with_name("tls_case.py")
    python = [sys.executable] if interpreter == "cpython" else [str(MICROPYTHON), "-X", "heapsize=1M"]
    path = ".frozen:" + str(ROOT / "firmware")  # on MicroPython `ssl` is a frozen module
    ran = subprocess.run(
        [*python, str(case), str(ports[listener]), repr(arguments)],
        check=False,
        env={**os.environ, "PYTHONPATH": path, "MICROPYPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert ran.stdout.startswith(outcome), ran.stdout + ran.stderr


@pytest.mark.req("B4")
def test_a_clock_that_is_not_set_is_named_as_the_reason(monkeypatch):
    from flashmqtt import tls

    refused = ValueError("\nThe certificate validity starts in the future\n")
    assert "expired, or is not valid yet" in str(tls.explained(refused))
    monkeypatch.setattr(tls, "_year", lambda: 2000)
    assert "clock is not set (year 2000)" in str(tls.explained(refused))
    assert "clock" in str(tls.explained(OSError(-9984, "MBEDTLS_ERR_X509_CERT_VERIFY_FAILED")))
    broken = OSError(104, "reset")
    assert tls.explained(broken) is broken


@pytest.mark.req("W13")
def test_tls_without_a_ca_has_to_be_spelled_out():
    from flashmqtt.errors import UsageError
    from flashmqtt.tls import context

    with pytest.raises(UsageError):
        context()
