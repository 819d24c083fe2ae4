"""TLS in config.toml: certificates and keys are checked before anything is copied; insecure settings give a warning."""

import shutil
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.configuration import ConfigurationError
from host_tests.client.test_tls import make_ca, make_certificate, openssl
from tools.command import Failure
from tools.deploy import certificates
from tools.deploy.__main__ import main
from tools.deploy.certificates import CA, CERT, KEY, Tls
from tools.proof.broker import Broker, find_mosquitto, free_port
from tools.virtual_board.device import Device

MPREMOTE = str(Path(sys.executable).parent / "mpremote")

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make_ca(folder, "ca")
    make_certificate(folder, "board", "ca", 30, "board")
    make_certificate(folder, "good", "ca", 30)
    make_ca(folder, "other")
    openssl(folder, "ec", "-in", "board.key", "-aes256", "-passout", "pass:secret", "-out", "locked.key")
    openssl(folder, "x509", "-in", "ca.crt", "-outform", "DER", "-out", "ca.der")
    (folder / "bundle.pem").write_text("# Our CA\nIssuer: somebody\n" + (folder / "ca.crt").read_text() + "\nend\n")
    openssl(folder, "req", "-new", "-key", "ca.key", "-subj", "/CN=old", "-out", "old.csr")
    (folder / "old.ext").write_text("basicConstraints=CA:TRUE\n")
    openssl(
        folder,
        *("x509", "-req", "-in", "old.csr", "-signkey", "ca.key", "-days", "-1", "-extfile", "old.ext"),
        *("-out", "old.crt"),
    )
    return folder


def test_pem_with_text_and_der_give_the_same_certificate(made):
    assert certificates.authority(made / "bundle.pem") == certificates.authority(made / "ca.crt")
    assert certificates.authority(made / "ca.der") == certificates.authority(made / "ca.crt")


@pytest.mark.req("B3")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere.pem", ["broker.ca", "nowhere.pem", "can't be read"]),
        ("ca.key", ["broker.ca", "ca.key", "no PEM block", "CERTIFICATE"]),
        ("board.crt", ["broker.ca", "not an authority's certificate"]),
        ("old.crt", ["broker.ca", "expired"]),
    ],
)
def test_unsuitable_authority_is_named(made, name, words):
    with pytest.raises(ConfigurationError) as raised:
        certificates.authority(made / name)
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.req("B3")
@pytest.mark.parametrize(
    ("cert", "key", "words"),
    [
        ("board.crt", "locked.key", ["broker.key", "locked.key", "pass phrase", "openssl pkey"]),
        ("board.crt", "good.key", ["board.crt", "good.key", "don't match"]),
        ("board.crt", "board.crt", ["broker.key", "board.crt", "PRIVATE KEY"]),
        ("old.crt", "ca.key", ["broker.cert", "old.crt", "expired"]),
    ],
)
def test_unsuitable_identity_is_named(made, cert, key, words):
    with pytest.raises(ConfigurationError) as raised:
        certificates.identity(made / cert, made / key)
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.fixture
def listener(made):
    """A server that only does the TLS handshake; yields its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "good.crt", made / "good.key")
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                plain, _ = server.accept()
            except OSError:
                return
            try:
                context.wrap_socket(plain, server_side=True).close()
            except OSError:
                plain.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.mark.req("B3")
def test_public_broker_deploys_its_root_certificate(made, listener, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(made / "ca.crt"))  # the machine trusts it
    assert certificates.files(Tls(True), "localhost", listener)[CA].split() == (made / "ca.crt").read_bytes().split()


@pytest.mark.req("B3")
def test_untrusted_or_unreachable_broker_is_named(made, listener, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(made / "other.crt"))
    with pytest.raises(Failure, match=r"localhost:\d+ was refused .*ca = "):
        certificates.files(Tls(True), "localhost", listener)
    with pytest.raises(Failure, match=r"no certificate came from localhost:\d+ .*use TLS"):
        certificates.files(Tls(True), "localhost", free_port())


@pytest.mark.req("B3")
@pytest.mark.parametrize(
    ("host", "user", "on", "said"),
    [
        ("8.8.8.8", "me", False, "PlainPassword: 8.8.8.8"),
        ("broker.example.invalid", "me", False, "PlainPassword: broker.example.invalid"),
        ("8.8.8.8", "", False, "PlainInternet: 8.8.8.8"),
        ("8.8.8.8", "me", True, None),
        ("192.168.1.10", "me", False, None),
        ("127.0.0.1", "me", False, None),
        ("broker.local", "me", False, None),
        ("broker", "me", False, None),
    ],
)
def test_unencrypted_connection_over_the_internet_gives_a_warning(host, user, on, said):
    warned = certificates.warnings({"broker": host, "port": 8883, "user": user, "broker_password": ""}, Tls(on))
    assert [text.startswith(said) for text in warned] == ([True] if said else [])


@pytest.mark.req("B3")
def test_tls_on_the_port_without_tls_gives_a_warning():
    plain = {"broker": "127.0.0.1", "port": 1883, "user": "", "broker_password": ""}
    (warned,) = certificates.warnings(plain, Tls(True))
    assert warned.startswith("TlsPort: ") and "broker.port" in warned and "8883" in warned
    assert not certificates.warnings({**plain, "port": 8883}, Tls(True)) + certificates.warnings(plain, Tls(False))


@pytest.mark.skipif(find_mosquitto() is None, reason="needs mosquitto")
@pytest.mark.req("B1", "B3")
def test_deployed_board_authenticates_by_certificate_and_delivers(made, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("FLASHMQTT_BROKER_PASSWORD", raising=False)
    monkeypatch.delenv("FLASHMQTT_WIFI_PASSWORD", raising=False)
    port = free_port()
    lines = (
        f"listener {port} 127.0.0.1\ncafile {made}/ca.crt\ncertfile {made}/good.crt\nkeyfile {made}/good.key\n"
        "require_certificate true\nuse_identity_as_username true\n"
    )
    for name in ("ca.crt", "board.crt", "board.key"):
        shutil.copy(made / name, tmp_path)
    (tmp_path / "config.toml").write_text(
        f'[wifi]\nssid = "home"\n[broker]\nhost = "localhost"\nport = {port}\ntls = true\n'
        'ca = "ca.crt"\ncert = "board.crt"\nkey = "board.key"\n'
        "[readings]\ninterval_s = 0.2\nhealth_s = 0\n[journal]\nkib = 64\n[device]\nwatchdog_s = 0\n"
    )
    (tmp_path / "config.local.toml").write_text('[wifi]\npassword = "secret-word"\n')
    wifi = "home:secret-word"
    with Broker(tmp_path / "broker", kind="mosquitto", extra=lines), Device(tmp_path / "device", wifi=wifi) as device:
        words = ["deploy", "--port", device.path, "--board", "pico_w", "--config", str(tmp_path), "--timeout", "60"]
        status = main(words)
        said = "".join(capsys.readouterr())
        assert status == 0 and "delivered" in said, said
        listed = subprocess.run(
            [MPREMOTE, "connect", device.path, "ls", ":/tls"], capture_output=True, text=True, timeout=60, check=False
        )
    assert {line.split()[-1] for line in listed.stdout.splitlines()[1:]} == {
        Path(path).name for path in (CA, CERT, KEY)
    }
