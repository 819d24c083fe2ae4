"""The brokers: where each comes from, its version, its configuration, and how to run it.

Every broker has its files in one folder and runs on loopback, as a child of this process without a service manager, and requires
one user's password. It stays installed: Debian's packages on the machine, npm's and PyPI's packages in folders of the project.
This module knows no MQTT.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools import bootstrap, children
from tools.bootstrap import ROOT
from tools.broker import Broker, free_port

INSTALLED = ROOT / "build" / "brokers"
USER, PASSWORD = "board", "secret"
ERLANG_START_S = 90.0  # RabbitMQ takes 20 s on a quiet machine
INSTALL_S = 600
NPM_PACKAGES = ("aedes@1.2.0", "aedes-persistence-level@9.2.0", "classic-level@3.0.0")
EJABBERD_LIBRARIES = Path("/usr/lib")
RABBITMQ_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class NotHere(Exception):
    """This broker can't be installed here; the text says why, and what to do."""


@dataclass(frozen=True)
class Certificate:
    """A broker's self-signed certificate for the name `localhost`."""

    certificate: Path
    key: Path

    @classmethod
    def make(cls, directory: Path) -> Certificate | None:
        """Make one, or return None if there is no openssl."""
        if shutil.which("openssl") is None:
            return None
        made = cls(directory / "certificate.pem", directory / "key.pem")
        directory.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
                *("-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
                *("-keyout", str(made.key), "-out", str(made.certificate)),
            ],
            check=True,
            capture_output=True,
        )
        made.key.chmod(0o600)
        return made


class Kind(Broker):
    """One kind of broker; an instance is one process.

    Attributes:
        name: as in the table.
        source: where it comes from.
        levels: the protocol levels that it supports.
        user: the user name that its clients need.
        tls_port: its port for TLS, 0 for none.
        package: Debian's, if that is its source.
    """

    name = source = package = ""
    levels: tuple[int, ...] = ()
    user = USER

    def __init__(self, directory: Path, certificate: Certificate | None):
        super().__init__(directory, kind=self.name)
        self.certificate = certificate
        self.tls_port = free_port() if certificate else 0
        self.ports += [self.tls_port] if certificate else []

    @classmethod
    def provide(cls) -> str:
        """Install it if it is missing; return its version.

        Raises:
            NotHere: it can't be installed.
        """
        return provide_debian(cls.package)


def _installed(package: str) -> str:
    """Return the version of an installed Debian package, "" if it is not installed."""
    try:
        command = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Version}", package]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return ran.stdout[2:].strip() if ran.stdout.startswith("ii") else ""


def _epmds() -> set[int]:
    """Return the process ids of Erlang's port mappers."""
    found = set()
    for place in Path("/proc").glob("[0-9]*/comm"):
        try:
            if place.read_text().strip() == "epmd":
                found.add(int(place.parent.name))
        except (OSError, ValueError):
            continue
    return found


def provide_debian(package: str) -> str:
    """Install a Debian package if it is missing; return its version without Debian's part.

    Raises:
        NotHere: there is no apt, no permission, or no network.
    """
    if not _installed(package):
        if not bootstrap.may_install_debian_packages():
            raise NotHere(f"it is not installed, and only root may install it (Debian: apt install {package})")
        before = _epmds()
        done = bootstrap.install_debian_package(package)
        for pid in _epmds() - before:  # the installation starts Erlang, which leaves its port mapper running
            os.kill(pid, 15)
        if not done:
            raise NotHere(f"apt could not install {package}: is its archive reachable?")
    return _installed(package).split("-")[0].split("+")[0]


class Mosquitto(Kind):
    """Eclipse Mosquitto."""

    name, source = "mosquitto", "Debian"
    levels = (3, 4, 5)

    @classmethod
    def provide(cls) -> str:
        """See that it is installed; return its version."""
        if bootstrap.find_mosquitto() is None:
            provide_debian("mosquitto")
        ran = subprocess.run([bootstrap.find_mosquitto() or "", "-h"], capture_output=True, text=True, check=False)
        return ran.stdout.splitlines()[0].split()[-1]

    def _command(self) -> list[str]:
        passwords = self.directory / "passwords"
        if not passwords.exists():
            subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, USER, PASSWORD], check=True, capture_output=True)
            passwords.chmod(0o600)
        lines = ["allow_anonymous false", f"password_file {passwords}"]
        if self.certificate:
            lines += [
                f"listener {self.tls_port} 127.0.0.1",
                f"certfile {self.certificate.certificate}",
                f"keyfile {self.certificate.key}",
            ]
        self._extra = "\n".join(lines)
        return super()._command()


class Ejabberd(Kind):
    """ejabberd's mod_mqtt, on an Erlang node that no other node can reach."""

    name, source, package = "ejabberd", "Debian", "ejabberd"
    levels = (4, 5)
    user = f"{USER}@localhost"
    start_deadline_s = ERLANG_START_S

    def _command(self) -> list[str]:
        listeners = [{"port": self.port, "ip": "127.0.0.1", "module": "mod_mqtt", "max_payload_size": "infinity"}]
        configuration: dict[str, object] = {
            "hosts": ["localhost"],
            "loglevel": "warning",
            "auth_method": "internal",
            "listen": listeners,
            "modules": {
                "mod_mqtt": {
                    "max_queue": 100_000,
                    "access_publish": {"#": [{"allow": "all"}]},
                    "access_subscribe": {"#": [{"allow": "all"}]},
                }
            },
        }
        if self.certificate:
            pair = self.directory / "pair.pem"
            pair.write_text(self.certificate.key.read_text() + self.certificate.certificate.read_text())
            pair.chmod(0o600)
            configuration["certfiles"] = [str(pair)]
            listeners.append({**listeners[0], "port": self.tls_port, "tls": True})
        (self.directory / "ejabberd.yml").write_text(json.dumps(configuration))  # JSON is YAML, too
        register = f'ejabberd_auth:try_register(<<"{USER}">>, <<"localhost">>, <<"{PASSWORD}">>).'
        return [
            *("erl", "-noinput", "+K", "true", "-mnesia", "dir", json.dumps(str(self.directory / "spool"))),
            *("-s", "ejabberd", "-eval", register),
        ]

    def _environment(self) -> dict[str, str]:
        libraries = next(EJABBERD_LIBRARIES.glob("*/ejabberd-*"), EJABBERD_LIBRARIES / "erlang")
        return {
            "HOME": str(self.directory),
            "ERL_LIBS": str(libraries.parent),
            "ERL_CRASH_DUMP_BYTES": "0",
            "EJABBERD_CONFIG_PATH": str(self.directory / "ejabberd.yml"),
            "EJABBERD_LOG_PATH": str(self.directory / "server.log"),
            "CONTRIB_MODULES_PATH": str(self.directory / "modules"),
            "CONTRIB_MODULES_CONF_DIR": str(self.directory / "modules"),
        }


class RabbitMQ(Kind):
    """RabbitMQ's MQTT plugin. It needs a port mapper (epmd), which is a child of this process, too."""

    name, source, package = "rabbitmq", "Debian", "rabbitmq-server"
    levels = (3, 4)  # 5 came with RabbitMQ 3.13
    start_deadline_s = ERLANG_START_S

    def __init__(self, directory: Path, certificate: Certificate | None):
        super().__init__(directory, certificate)
        self._mapper_port = free_port()
        self._node_port = free_port()
        self._mapper: subprocess.Popen | None = None

    def start(self) -> Broker:
        """Start the port mapper, then the broker."""
        command = ["epmd", "-port", str(self._mapper_port), "-address", "127.0.0.1"]
        self._mapper = children.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return super().start()

    def stop(self) -> None:
        """End the broker, then the port mapper."""
        super().stop()
        self._end_mapper()

    def kill(self) -> None:
        """End the broker with SIGKILL, then the port mapper."""
        super().kill()
        self._end_mapper()

    def _end_mapper(self) -> None:
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None

    def _command(self) -> list[str]:
        lines = [
            "listeners.tcp = none",
            f"mqtt.listeners.tcp.1 = 127.0.0.1:{self.port}",
            "mqtt.allow_anonymous = false",
            f"default_user = {USER}",
            f"default_pass = {PASSWORD}",
            "log.console = true",
            "log.console.level = warning",
            "log.file = false",
        ]
        if self.certificate:
            lines += [
                f"mqtt.listeners.ssl.1 = 127.0.0.1:{self.tls_port}",
                f"ssl_options.certfile = {self.certificate.certificate}",
                f"ssl_options.keyfile = {self.certificate.key}",
                "ssl_options.verify = verify_none",
            ]
        (self.directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.directory / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
        return [str(RABBITMQ_SERVER)]

    def _environment(self) -> dict[str, str]:
        here = str(self.directory)
        return {
            "HOME": here,
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"flashmqtt{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": f"{here}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{here}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{here}/mnesia",
            "RABBITMQ_LOG_BASE": here,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": f"{here}/pid",
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the broker, so that the broker is a child of this process
            "RABBITMQ_SERVER_START_ARGS": "-noinput",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }


class Aedes(Kind):
    """aedes for Node.js, with its store on disk."""

    name, source = "aedes", "npm"
    levels = (3, 4)

    @classmethod
    def provide(cls) -> str:
        """See that it is installed; return its version."""
        folder = INSTALLED / "aedes"
        for program in ("node", "npm"):
            if shutil.which(program) is None:
                raise NotHere(f"it needs {program} (Node.js 20 or newer), which is not installed")
        stamp = folder / "packages"
        wanted = " ".join(NPM_PACKAGES)
        if not stamp.exists() or stamp.read_text() != wanted:
            folder.mkdir(parents=True, exist_ok=True)
            options = ("--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder))
            command = ["npm", "install", *options, *NPM_PACKAGES]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
            if ran.returncode:
                raise NotHere(f"npm could not install {wanted}: {ran.stderr.strip().splitlines()[-1:]}")
            stamp.write_text(wanted)
        return NPM_PACKAGES[0].partition("@")[2]

    def _command(self) -> list[str]:
        program = INSTALLED / "aedes" / "aedes.mjs"  # beside the packages, where Node.js looks for them
        program.write_text(Path(__file__).with_name("aedes.mjs").read_text())
        settings = {
            "directory": str(self.directory / "database"),
            "port": self.port,
            "user": USER,
            "password": PASSWORD,
            "tls_port": self.tls_port,
        }
        if self.certificate:
            settings |= {"certificate": str(self.certificate.certificate), "key": str(self.certificate.key)}
        return ["node", str(program), json.dumps(settings)]


class Amqtt(Kind):
    """amqtt for Python, which keeps everything in memory."""

    name, source = "amqtt", "PyPI"
    levels = (4,)

    @classmethod
    def provide(cls) -> str:
        """See that it is installed; return its version."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("amqtt")
        except PackageNotFoundError:
            raise NotHere("it is not in .venv: make setup") from None

    def _command(self) -> list[str]:
        from pwdlib.hashers.argon2 import Argon2Hasher

        passwords = self.directory / "passwords"
        passwords.write_text(f"{USER}:{Argon2Hasher(time_cost=1, memory_cost=64, parallelism=1).hash(PASSWORD)}\n")
        passwords.chmod(0o600)
        listeners: dict[str, dict] = {"default": {"type": "tcp", "bind": f"127.0.0.1:{self.port}"}}
        if self.certificate:
            listeners["tls"] = {
                "type": "tcp",
                "bind": f"127.0.0.1:{self.tls_port}",
                "ssl": True,
                "certfile": str(self.certificate.certificate),
                "keyfile": str(self.certificate.key),
            }
        plugin = "amqtt.plugins.authentication.FileAuthPlugin"
        configuration = {"listeners": listeners, "plugins": {plugin: {"password_file": str(passwords)}}}
        (self.directory / "amqtt.yaml").write_text(json.dumps(configuration))
        return [str(Path(sys.executable).parent / "amqtt"), "-c", str(self.directory / "amqtt.yaml")]


KINDS: dict[str, type[Kind]] = {kind.name: kind for kind in (Mosquitto, Ejabberd, RabbitMQ, Aedes, Amqtt)}
