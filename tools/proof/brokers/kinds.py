"""The brokers: where each comes from, its version, its configuration, and how to run it.

Every broker has its files in one folder and runs on loopback, as a child of this process without a service manager, and requires
one user's password. It stays installed: Debian's packages on the machine, npm's and PyPI's packages in folders of the project.
This module knows no MQTT.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from string import Template

import psutil  # type: ignore[import-untyped]

from tools import bootstrap
from tools.bootstrap import ROOT
from tools.command import Failure
from tools.proof.broker import Broker, free_port

CONFIGURATIONS = Path(__file__).parent / "configurations"
INSTALLED = ROOT / "build" / "brokers"
USER, PASSWORD = "board", "secret"
ERLANG_START_S = 90.0  # RabbitMQ takes 20 s on a quiet machine
INSTALL_S = 600
NPM_PACKAGES = ("aedes@1.2.0", "aedes-persistence-level@9.2.0", "classic-level@3.0.0")
EJABBERD_LIBRARIES = Path("/usr/lib")
RABBITMQ_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class NotHere(Exception):
    """This broker can't be installed here; the text says why, and what to do."""


def make_certificate(directory: Path) -> None:
    """Make a self-signed certificate for the name `localhost`: certificate.pem; pair.pem has its key, too.

    Raises:
        Failure: there is no openssl.
    """
    if shutil.which("openssl") is None:
        raise Failure("openssl, which makes the brokers' certificate, is not installed. Debian: apt install openssl.")
    certificate, pair = directory / "certificate.pem", directory / "pair.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(pair), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    pair.write_text(pair.read_text() + certificate.read_text())
    pair.chmod(0o600)


class Kind(Broker):
    """One kind of broker; an instance is one process. Its configuration files are templates in the folder `configurations`.

    Args:
        directory: the folder of its files; the one above has the files of `make_certificate`.

    Attributes:
        name: as in the table.
        source: where it comes from.
        levels: the protocol levels that it supports.
        user: the user name that its clients need.
        tls_port: its port for TLS.
        certificate: the file with its certificate.
        package: Debian's, if that is its source.
    """

    name = source = package = ""
    levels: tuple[int, ...] = ()
    user = USER

    def __init__(self, directory: Path):
        super().__init__(directory, kind=self.name)
        self.tls_port = free_port()
        self.ports += [self.tls_port]
        self.certificate = directory.parent / "certificate.pem"
        self._values = {"directory": directory, "port": self.port, "tls_port": self.tls_port, "user": USER}
        self._values |= {"password": PASSWORD, "certificate": self.certificate, "pair": directory.parent / "pair.pem"}

    @classmethod
    def provide(cls) -> str:
        """Install it if it is missing; return its version.

        Raises:
            NotHere: it can't be installed.
        """
        return provide_debian(cls.package)

    def _filled(self, name: str) -> str:
        """Return a configuration file's content."""
        return Template((CONFIGURATIONS / name).read_text()).substitute(self._values)

    def _write(self, name: str) -> str:
        """Write a configuration file; return its path."""
        path = self.directory / name
        path.write_text(self._filled(name))
        return str(path)

    def _environment(self) -> dict[str, str]:
        """Return the variables of the file that ends in `.env`, if there is one."""
        has = (CONFIGURATIONS / f"{self.name}.env").exists()
        return dict(line.split("=", 1) for line in self._filled(f"{self.name}.env").splitlines()) if has else {}


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
    return {process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "epmd"}


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
        self._extra = self._filled("mosquitto.conf")
        return super()._command()


class Ejabberd(Kind):
    """ejabberd's mod_mqtt, on an Erlang node that no other node can reach."""

    name, source, package = "ejabberd", "Debian", "ejabberd"
    levels = (4, 5)
    user = f"{USER}@localhost"
    start_deadline_s = ERLANG_START_S

    def _command(self) -> list[str]:
        self._write("ejabberd.yml")
        libraries = next(EJABBERD_LIBRARIES.glob("*/ejabberd-*"), EJABBERD_LIBRARIES / "erlang")
        self._values["libraries"] = libraries.parent
        register = f'ejabberd_auth:try_register(<<"{USER}">>, <<"localhost">>, <<"{PASSWORD}">>).'
        return [
            *("erl", "-noinput", "+K", "true", "-mnesia", "dir", json.dumps(str(self.directory / "spool"))),
            *("-s", "ejabberd", "-eval", register),
        ]


class RabbitMQ(Kind):
    """RabbitMQ's MQTT plugin. It needs a port mapper (epmd), which is a child of the same process."""

    name, source, package = "rabbitmq", "Debian", "rabbitmq-server"
    levels = (3, 4)  # 5 came with RabbitMQ 3.13
    start_deadline_s = ERLANG_START_S

    def __init__(self, directory: Path):
        super().__init__(directory)
        self._values |= {"mapper_port": free_port(), "node_port": free_port()}

    def _command(self) -> list[str]:
        self._write("rabbitmq.conf")
        self._write("enabled_plugins")
        mapper = f"epmd -port {self._values['mapper_port']} -address 127.0.0.1"
        return ["sh", "-c", f"{mapper} & exec {RABBITMQ_SERVER}"]


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
        program.write_text((CONFIGURATIONS / "aedes.mjs").read_text())
        return ["node", str(program), self._filled("aedes.json")]


class Amqtt(Kind):
    """amqtt for Python, which keeps everything in memory."""

    name, source = "amqtt", "PyPI"
    levels = (4,)

    @classmethod
    def provide(cls) -> str:
        """See that it is installed; return its version."""
        return metadata.version("amqtt")

    def _command(self) -> list[str]:
        from pwdlib.hashers.argon2 import Argon2Hasher

        passwords = self.directory / "passwords"
        passwords.write_text(f"{USER}:{Argon2Hasher(time_cost=1, memory_cost=64, parallelism=1).hash(PASSWORD)}\n")
        passwords.chmod(0o600)
        return [str(Path(sys.executable).parent / "amqtt"), "-c", self._write("amqtt.yaml")]


KINDS: dict[str, type[Kind]] = {kind.name: kind for kind in (Mosquitto, Ejabberd, RabbitMQ, Aedes, Amqtt)}
