"""TLS with mosquitto, with good, expired, self-signed, wrong-host and unknown-CA certificates, on both interpreters."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bootstrap import ROOT
from tools.proof.broker import Broker, find_mosquitto, free_port

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


def make_certificate(directory: Path, name: str, ca: str, days: int, host: str = "localhost", extra: str = "") -> None:
    openssl(
        directory,
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={host}"),
    )
    (directory / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}\n{extra}")
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
    make_ca(directory, "localhost")  # self-signed
    make_certificate(directory, "good", "ca", 30)
    make_certificate(directory, "expired", "ca", -1)
    make_certificate(directory, "elsewhere", "ca", 30, "elsewhere")
    make_certificate(directory, "board", "ca", 30, "board")
    make_certificate(directory, "strange_board", "stranger", 30, "board")
    return directory


@pytest.fixture(scope="module")
def ports(certificates, tmp_path_factory):
    """Return the port of a listener for each server certificate; "mutual" is the listener that requires a client certificate."""
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
    with Broker(tmp_path_factory.mktemp("broker"), kind="mosquitto", extra="\n".join(lines)):
        yield names


def connect(interpreter: str, port: int, options: dict, program: str = "tls_case.py") -> str:
    """Run a program that connects; return what it printed."""
    case = Path(__file__).parent / program
    python = [sys.executable] if interpreter == "cpython" else [str(MICROPYTHON), "-X", "heapsize=1M"]
    path = ".frozen:" + str(ROOT / "firmware")  # on MicroPython `ssl` is a frozen module
    ran = subprocess.run(
        [*python, str(case), str(port)],
        check=False,
        # The options are no argument: MicroPython fails with "uncaught NLR" if an argument has more than 255 bytes.
        env={**os.environ, "PYTHONPATH": path, "MICROPYPATH": path, "OPTIONS": repr(options)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return ran.stdout + ran.stderr


@pytest.mark.req("W13")
@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
@pytest.mark.parametrize(
    ("listener", "options", "outcome"),
    [
        ("good", {"ca": "ca"}, "connected 4"),
        ("good", {"ca": "ca", "publish": True}, "connected 4"),
        ("good", {"ca": "ca", "server_name": "elsewhere"}, "CertificateRefused"),
        ("good", {"ca": "stranger"}, "CertificateRefused"),
        ("elsewhere", {"ca": "ca"}, "CertificateRefused"),
        ("elsewhere", {"ca": "ca", "host": "127.0.0.1", "server_name": "elsewhere"}, "connected 4"),
        ("expired", {"ca": "ca"}, "CertificateRefused"),
        ("localhost", {"ca": "ca"}, "CertificateRefused"),
        ("localhost", {"ca": "localhost"}, "connected 4"),
        ("localhost", {"insecure": True}, "connected 4"),
        ("mutual", {"ca": "ca", "cert": "board"}, "connected 4"),
        ("mutual", {"ca": "ca"}, "CertificateRefused the broker refused the handshake"),
        ("mutual", {"ca": "ca", "cert": "strange_board"}, "CertificateRefused the broker refused the handshake"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(f"{k}_{v}" for k, v in value.items()),
)
def test_certificate_is_accepted_or_refused(interpreter, listener, options, outcome, certificates, ports):
    arguments = dict(options)
    for key in ("ca", "cert"):
        if key in options:
            arguments[key] = f"{certificates}/{options[key]}.crt"
    if "cert" in options:
        arguments["key"] = f"{certificates}/{options['cert']}.key"
    printed = connect(interpreter, ports[listener], arguments)
    assert printed.startswith(outcome), printed


def write_files(directory: Path) -> None:
    """Write certificates and keys in the common file formats, and some invalid files."""

    def pem(name):
        return (directory / name).read_text()

    certifi = '\n# Issuer: CN=%s O=Some\n# Subject: CN=%s\n# Label: "a name"\n# SHA256 Fingerprint: 96:bc:ec\n'
    (directory / "certifi.pem").write_text(
        "".join(certifi % (name, name) + pem(name + ".crt") for name in ("stranger", "localhost", "ca"))
    )
    curl = "##\n## Bundle of CA Root Certificates\n##\n\nActalis \u00e9-Root\n=============\n"
    (directory / "curl.pem").write_text(curl + "\n".join(pem(name + ".crt") for name in ("ca", "stranger")))
    (directory / "windows.pem").write_bytes(b"\xef\xbb\xbf" + pem("ca.crt").replace("\n", "\r\n").encode())
    text = subprocess.run(
        ["openssl", "x509", "-in", "ca.crt", "-text"], cwd=directory, check=True, capture_output=True
    ).stdout
    (directory / "text.pem").write_bytes(text)
    openssl(directory, "x509", "-in", "ca.crt", "-trustout", "-out", "trusted.pem")
    openssl(directory, "x509", "-in", "ca.crt", "-outform", "DER", "-out", "ca.der")
    openssl(directory, "x509", "-in", "board.crt", "-outform", "DER", "-out", "board.der")
    openssl(directory, "pkey", "-in", "board.key", "-outform", "DER", "-out", "boardkey.der")
    openssl(directory, "ec", "-in", "board.key", "-outform", "DER", "-out", "boardec.der")
    openssl(directory, "ec", "-in", "board.key", "-out", "boardec.pem")
    (directory / "together.pem").write_text(pem("board.key") + "the certificate:\n" + pem("board.crt"))
    (directory / "parameters.pem").write_text(
        "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n" + pem("boardec.pem")
    )
    openssl(directory, "pkey", "-in", "board.key", "-aes256", "-passout", "pass:sesame", "-out", "locked.pem")
    openssl(directory, "ec", "-in", "board.key", "-aes128", "-passout", "pass:sesame", "-out", "lockedec.pem")
    (directory / "chain.pem").write_text(pem("board2.crt") + pem("between.crt"))
    (directory / "cut.pem").write_text(pem("ca.crt")[:300])
    (directory / "cut2.pem").write_text(pem("ca.crt")[:300] + "\n" + pem("ca.crt"))
    (directory / "damaged.pem").write_text("\n".join(pem("ca.crt").split("\n")[:3]) + "\n-----END CERTIFICATE-----\n")
    (directory / "bad64.pem").write_text("-----BEGIN CERTIFICATE-----\n****\n-----END CERTIFICATE-----\n")
    (directory / "nonsense.pem").write_text("-----BEGIN CERTIFICATE-----\nMAMCAQU=\n-----END CERTIFICATE-----\n")
    (directory / "page.html").write_text("<html>not found</html>")
    (directory / "empty.pem").write_text("")


@pytest.fixture(scope="module")
def files(certificates):
    """Return the folder of certificates, with the files of `write_files` added."""
    make_certificate(certificates, "between", "ca", 30, "between", "basicConstraints=critical,CA:TRUE\n")
    make_certificate(certificates, "board2", "between", 30, "board2")
    write_files(certificates)
    return certificates


@pytest.mark.req("W13")
@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
@pytest.mark.parametrize(
    "options",
    [
        {"ca": "certifi.pem"},
        {"ca": "curl.pem"},
        {"ca": "windows.pem"},
        {"ca": "text.pem"},
        {"ca": "trusted.pem"},
        {"ca": "ca.der"},
        {"ca": "certifi.pem", "as_bytes": ["ca"]},
        {"ca": "ca.der", "as_bytes": ["ca"]},
        {"ca": "ca.crt", "cert": "board.der", "key": "boardkey.der"},
        {"ca": "ca.crt", "cert": "board.crt", "key": "boardec.der"},
        {"ca": "ca.crt", "cert": "board.crt", "key": "boardec.pem"},
        {"ca": "ca.crt", "cert": "board.crt", "key": "parameters.pem"},
        {"ca": "ca.crt", "cert": "together.pem"},
        {"ca": "ca.crt", "cert": "together.pem", "as_bytes": ["cert"]},
        {"ca": "ca.crt", "cert": "board.crt", "key": "boardkey.der", "as_bytes": ["cert", "key"]},
    ],
    ids=lambda options: "-".join(str(value) for value in options.values()),
)
def test_certificates_in_common_file_formats_are_accepted(interpreter, options, files, ports):
    arguments = {key: value if key == "as_bytes" else f"{files}/{value}" for key, value in options.items()}
    printed = connect(interpreter, ports["mutual" if "cert" in options else "good"], arguments)
    assert printed.startswith("connected 4"), printed


@pytest.mark.req("W13")
@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ca": "nowhere.pem"}, "nowhere.pem: can't be read: "),
        ({"ca": "."}, "/.: can't be read: "),
        ({"ca": "page.html"}, "page.html: no certificate in it"),
        ({"ca": "empty.pem"}, "empty.pem: no certificate in it"),
        ({"ca": "board.key"}, "board.key: no certificate in it"),
        ({"ca": "cut.pem"}, "cut.pem: the block CERTIFICATE has no end: the file is cut off"),
        ({"ca": "cut2.pem"}, "cut2.pem: the block CERTIFICATE has no end: the file is cut off"),
        ({"ca": "damaged.pem"}, "damaged.pem: the block CERTIFICATE is damaged"),
        ({"ca": "bad64.pem"}, "bad64.pem: the block CERTIFICATE is "),
        ({"ca": "nonsense.pem"}, "nonsense.pem: certificate 1 in it can't be used: "),
        ({"ca": "ca.crt", "cert": "nowhere.pem", "key": "board.key"}, "nowhere.pem: can't be read: "),
        ({"ca": "ca.crt", "cert": "board.crt"}, "board.crt: no private key in it"),
        ({"ca": "ca.crt", "cert": "board.key"}, "board.key: no certificate in it"),
        ({"ca": "ca.crt", "key": "board.key"}, "a key without its certificate"),
        ({"ca": "ca.crt", "cert": "nonsense.pem", "key": "board.key"}, "nonsense.pem"),
        ({"ca": "ca.crt", "cert": "board.crt", "key": "locked.pem"}, "locked.pem: the key has a pass phrase"),
        ({"ca": "ca.crt", "cert": "board.crt", "key": "lockedec.pem"}, "lockedec.pem: the key has a pass phrase"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
)
def test_error_about_a_bad_file_names_it_and_its_fault(interpreter, options, named, files):
    arguments = {key: f"{files}/{value}" for key, value in options.items()}
    printed = connect(interpreter, 1, arguments)
    assert printed.startswith("UsageError "), printed
    assert named in printed, printed


@pytest.mark.req("W13")
@pytest.mark.parametrize("key", ["locked.pem", "lockedec.pem"])
@pytest.mark.parametrize("as_bytes", [[], ["cert", "key"]])
def test_encrypted_key_needs_the_right_password_on_cpython(key, as_bytes, files, ports):
    arguments = {"ca": f"{files}/ca.crt", "cert": f"{files}/board.crt", "key": f"{files}/{key}", "as_bytes": as_bytes}
    printed = connect("cpython", ports["mutual"], {**arguments, "password": "sesame"})
    assert printed.startswith("connected 4"), printed
    printed = connect("cpython", ports["mutual"], {**arguments, "password": "wrong"})
    assert printed.startswith("UsageError "), printed
    assert ("key: " if as_bytes else key) in printed


@pytest.mark.req("W13")
@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
def test_certificate_chain_works_on_cpython_and_is_refused_on_micropython(interpreter, files, ports):
    arguments = {"ca": f"{files}/ca.crt", "cert": f"{files}/chain.pem", "key": f"{files}/board2.key"}
    printed = connect(interpreter, ports["mutual"], arguments)
    if interpreter == "cpython":
        assert printed.startswith("connected 4"), printed
    else:  # as on a Pico, the unix port's mbedTLS reads only DER
        assert "chain.pem: can't be used: invalid cert; it has 2 certificates: most boards accept one" in printed


@pytest.mark.req("W13")
def test_error_names_a_key_of_another_certificate(files):
    printed = connect("cpython", 1, {"ca": f"{files}/ca.crt", "cert": f"{files}/board.crt", "key": f"{files}/good.key"})
    assert printed.startswith("UsageError "), printed
    assert "good.key" in printed


NOT_CHECKED = "flashmqtt: the broker's certificate is not checked"


def with_paths(options: dict, files: Path) -> dict:
    """Return the options with file names replaced by paths."""
    arguments = {}
    for key, value in options.items():
        if isinstance(value, str) and value.endswith((".crt", ".key", ".der")):
            kind, _, name = value.rpartition(":")
            arguments[key] = f"{kind}:{files}/{name}" if kind else f"{files}/{name}"
        else:
            arguments[key] = value
    return arguments


@pytest.mark.req("R6")
@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
@pytest.mark.parametrize(
    ("listener", "options", "outcome"),
    [
        ("localhost", {}, NOT_CHECKED),
        ("elsewhere", {"server_hostname": "localhost"}, NOT_CHECKED),
        ("expired", {"server_hostname": b"localhost", "server": b"127.0.0.1"}, NOT_CHECKED),
        ("good", {"ssl": "module", "server_hostname": "localhost"}, NOT_CHECKED),
        ("mutual", {"cert": "text:board.crt", "key": "text:board.key", "server_side": False}, NOT_CHECKED),
        ("localhost", {"cert_reqs": 0}, "connected 2"),
        ("localhost", {"insecure": True}, "connected 2"),
        ("good", {"cadata": "stranger.crt", "cert_reqs": 0}, "connected 2"),
        ("good", {"cadata": "text:ca.crt"}, "connected 2"),
        ("good", {"cadata": "bytes:ca.crt", "cert_reqs": 2, "do_handshake": True}, "connected 2"),
        ("good", {"cadata": "bytes:ca.der", "cert_reqs": 2}, "connected 2"),
        ("good", {"ca_certs": "ca.crt", "cert_reqs": 2}, "connected 2"),
        ("good", {"ssl": "context", "cadata": "bytes:ca.der"}, "connected 2"),
        ("good", {"ssl": "native", "cadata": "bytes:ca.der"}, "connected 2"),
        ("elsewhere", {"cadata": "ca.crt", "server_hostname": "elsewhere", "server": "127.0.0.1"}, "connected 2"),
        ("mutual", {"cadata": "ca.der", "cert": "bytes:board.der", "key": "bytes:boardkey.der"}, "connected 2"),
        ("mutual", {"ca_certs": "ca.crt", "certfile": "board.crt", "keyfile": "board.key"}, "connected 2"),
        ("good", {"cadata": "text:stranger.crt"}, "OSError"),
        ("elsewhere", {"cadata": "ca.crt"}, "OSError"),
        ("mutual", {"cadata": "ca.crt"}, "OSError"),
        ("good", {"ssl": "context", "cadata": "bytes:board.der"}, "OSError"),
        ("good", {"cert_reqs": 2}, "UsageError TLS needs ca"),
        ("good", {"server_side": True}, "UsageError ssl_params 'server_side': ca, ca_certs, cadata, cert"),
        ("good", {"pin": "1234"}, "UsageError ssl_params 'pin': ca, ca_certs, cadata, cert"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(f"{k}_{v}" for k, v in value.items()),
)
def test_umqtt_tls_arguments_keep_their_meaning(interpreter, listener, options, outcome, files, ports):
    printed = connect(interpreter, ports[listener], with_paths(options, files), "simple_tls_case.py")
    assert printed.startswith(outcome), printed
    assert printed.count(NOT_CHECKED) == (outcome == NOT_CHECKED), printed
    assert outcome != NOT_CHECKED or printed.endswith("connected 2\n"), printed


@pytest.mark.req("R6")
@pytest.mark.parametrize(
    ("listener", "options", "outcome"),
    [
        ("localhost", {}, NOT_CHECKED),
        ("good", {"ssl": "module", "server_hostname": "localhost"}, NOT_CHECKED),
        ("localhost", {"cert_reqs": 0}, "connected"),
        ("good", {"cadata": "text:ca.crt"}, "connected"),
        ("good", {"cadata": "bytes:ca.der", "cert_reqs": 2}, "connected"),
        ("good", {"ssl": "native", "cadata": "bytes:ca.der"}, "connected"),
        ("elsewhere", {"cadata": "ca.crt", "server_hostname": "elsewhere", "server": "127.0.0.1"}, "connected"),
        ("elsewhere", {"cadata": "ca.crt", "server_hostname": b"elsewhere", "server": "127.0.0.1"}, "connected"),
        ("mutual", {"cadata": "ca.der", "cert": "bytes:board.der", "key": "bytes:boardkey.der"}, "connected"),
        ("mutual", {"cadata": "ca.crt", "cert": "text:board.crt", "key": "text:board.key"}, "connected"),
        ("good", {"cadata": "text:stranger.crt"}, "OSError"),
        ("elsewhere", {"cadata": "ca.crt"}, "OSError"),
        ("mutual", {"cadata": "ca.crt"}, "OSError"),
        ("good", {"cert_reqs": 2}, "UsageError TLS needs ca"),
        ("good", {"pin": "1234"}, "UsageError ssl_params 'pin': ca, ca_certs, cadata, cert"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(f"{k}_{v}" for k, v in value.items()),
)
def test_mqtt_as_accepts_the_same_tls_arguments(listener, options, outcome, files, ports):
    arguments = {**with_paths(options, files), "face": "mqtt_as"}
    printed = connect("micropython", ports[listener], arguments, "simple_tls_case.py")
    assert printed.startswith(outcome), printed
    assert printed.count(NOT_CHECKED) == (outcome == NOT_CHECKED), printed
    assert outcome != NOT_CHECKED or printed.endswith("connected\n"), printed


@pytest.mark.req("R6")
@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
def test_documented_umqtt_program_with_tls_runs(interpreter, certificates, ports, tmp_path):
    page = (ROOT / "firmware" / "MOVING_FROM_UMQTT_SIMPLE.md").read_text()
    program = next(part for part in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "ssl_params" in part)
    program = program.replace('"broker.example", user', f'"localhost", {ports["good"]}, user')
    program = program.replace("broker.example", "localhost").replace("ca.pem", f"{certificates}/ca.crt")
    (tmp_path / "program.py").write_text(program + "print('published')\n")
    assert connect(interpreter, ports["good"], {}, str(tmp_path / "program.py")) == "published\n"


@pytest.mark.req("B4")
@pytest.mark.parametrize("listener", ["good", "mutual"])
def test_watchdog_is_fed_between_any_two_handshake_records(listener, certificates, ports):
    arguments = {"ca": f"{certificates}/ca.crt"}
    if listener == "mutual":
        arguments |= {"cert": f"{certificates}/board.crt", "key": f"{certificates}/board.key"}
    seen = connect("micropython", ports[listener], arguments, "handshake_case.py").strip()
    assert set(seen) == set("rwsf"), seen
    # ServerHello, Certificate, ServerKeyExchange, ServerHelloDone, and at the end ChangeCipherSpec and Finished.
    assert seen.count("r") >= 6, seen
    # ClientHello, ClientKeyExchange, ChangeCipherSpec and Finished, CONNECT; "mutual": also Certificate and CertificateVerify.
    assert seen.count("w") >= (6 if listener == "mutual" else 4), seen
    longest = max(sum(letter in "rw" for letter in part) for part in seen.split("f"))
    assert longest == 1, seen


@pytest.mark.req("B4")
def test_error_in_handshake_suggests_a_port_without_tls():
    from flashmqtt import tls

    for error in (
        OSError(-29312, "MBEDTLS_ERR_SSL_CONN_EOF"),
        OSError(-29184),
        OSError(104, "ECONNRESET"),
        OSError("[SSL: WRONG_VERSION_NUMBER] wrong version number"),
        OSError("EOF occurred in violation of protocol (_ssl.c:2427)"),
    ):
        assert "does the broker speak TLS on this port?" in str(tls.explained(error))


@pytest.mark.req("B4")
def test_error_after_the_handshake_is_not_blamed_on_it(certificates, ports, monkeypatch):
    import ssl

    from flashmqtt.client import Client
    from flashmqtt.tls import context

    def ended(*_):
        raise ssl.SSLEOFError("EOF occurred in violation of protocol (_ssl.c:2427)")

    mqtt = Client("localhost", ports["good"], "ended", tls=context(f"{certificates}/ca.crt"))
    mqtt.connect(30)
    monkeypatch.setattr(mqtt.link.sock, "write", ended)
    mqtt.publish("a", "1", 1)
    assert not mqtt.connected and isinstance(mqtt.error, ssl.SSLEOFError), mqtt.error
    mqtt.disconnect()


@pytest.mark.req("B4")
def test_certificate_error_names_an_unset_clock(monkeypatch):
    from flashmqtt import tls

    refused = ValueError("\nThe certificate validity starts in the future\n")
    assert "expired, or is not valid yet" in str(tls.explained(refused))
    monkeypatch.setattr("time.localtime", lambda: (2000, 1, 1))
    assert "clock is not set (year 2000)" in str(tls.explained(refused))
    assert "clock" in str(tls.explained(OSError(-9984, "MBEDTLS_ERR_X509_CERT_VERIFY_FAILED")))
    broken = OSError(110, "ETIMEDOUT")
    assert tls.explained(broken) is broken


@pytest.mark.req("W13")
def test_tls_without_a_ca_is_refused():
    from flashmqtt.errors import UsageError
    from flashmqtt.tls import context

    with pytest.raises(UsageError):
        context()


@pytest.mark.req("W13")
def test_ca_of_wrong_type_is_refused():
    from flashmqtt.errors import UsageError
    from flashmqtt.tls import context

    for ca in (["ca.pem"], True, 5):
        with pytest.raises(UsageError):
            context(ca=ca)
