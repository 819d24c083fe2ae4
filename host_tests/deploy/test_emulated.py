"""`make deploy` to an emulated Pico W under MicroPython's own firmware, and to a plain Pico with ROMFS.

Also the interfaces of the emulator that we use.
"""

import asyncio
import inspect
import os
import time
import warnings
from pathlib import Path

import pytest

from host_tests.deploy.emulated import HOST, EmulatedPicoW, EmulatorFailed, map_to_loopback
from tools.deploy import __main__ as deploy
from tools.deploy import build, romfs
from tools.deploy.link import Link
from tools.proof.broker import Broker

UF2 = os.environ.get("FLASHMQTT_UF2", "")
WITHOUT = (
    "NOT RUN: no firmware for the emulated Pico W. Fetch the .uf2 (1.24 or newer) from micropython.org/download/RPI_PICO_W "
    "and run: FLASHMQTT_UF2=that-file.uf2 make test PYTEST_ARGS=host_tests/deploy/test_emulated.py"
)

UF2_ROMFS = os.environ.get("FLASHMQTT_UF2_ROMFS", "")
WITHOUT_ROMFS = (
    "NOT RUN: no plain Pico's firmware with ROMFS. boards/IMAGES.md tells how to build it (BOARD=pico ROMFS=256); then "
    "run: FLASHMQTT_UF2_ROMFS=that-file.uf2 make test PYTEST_ARGS=host_tests/deploy/test_emulated.py"
)
# A plain Pico has no network: with this board module a deployment runs to its end, where nothing is delivered.
OWN_BOARD = """
from machine import reset
class Region:
    sectors, sector_bytes = 16, 4096
def journal_region(sectors, feed=None):
    return Region()
def led(on):
    pass
def watchdog_off():
    pass
"""
WHERE = """
import sys
sys.path.append('/lib')
import app.configuration as a, flashmqtt.errors as e
print((a.__file__, e.__file__))
"""


@pytest.mark.req("B1", "B3")
@pytest.mark.timeout(3600)
def test_deployment_to_an_emulated_pico_w_ends_with_a_delivered_reading(tmp_path, capsys):
    pytest.importorskip("rp2040py", reason="NOT RUN: rp2040py is not installed (requirements-dev.txt has it)")
    if not UF2:
        warnings.warn(WITHOUT, stacklevel=1)
        pytest.skip(WITHOUT)
    assert Path(UF2).is_file(), f"FLASHMQTT_UF2 names no file: {UF2}"
    with Broker(tmp_path / "broker") as broker, EmulatedPicoW(UF2, tmp_path / "emulator") as pico:
        (tmp_path / "config.toml").write_text(
            f'[wifi]\nssid = "home"\n[broker]\nhost = "{HOST}"\nport = {broker.port}\nkeep_alive_s = 600\n'
            "[device]\nwatchdog_s = 0\nstatus_s = 1\n[journal]\nkib = 32\n[readings]\ninterval_s = 5\n"
        )
        (tmp_path / "config.local.toml").write_text('[wifi]\npassword = "emulated"\n')
        words = ("--port", pico.path, "--config", str(tmp_path), "--timeout", "1800")
        for _ in range(20):  # the firmware makes its file system at its first start, and does not answer meanwhile
            status = deploy.main(["deploy", "--board", "pico_w", *words])
            said = capsys.readouterr()
            if "does not answer" not in said.err:
                break
            time.sleep(5)
        if "the board is a Raspberry Pi Pico with" in said.err:  # the image that the other tests of the chip need
            warnings.warn(WITHOUT, stacklevel=1)
            pytest.skip(WITHOUT)
        assert status == 0 and "delivered" in said.out, (
            said.out + said.err + pico.log.read_text(errors="replace")[-2000:]
        )
        assert "MicroPython" in said.out and "pinned in the file system" in said.out


@pytest.mark.req("B3")
@pytest.mark.timeout(3600)
def test_deployment_to_an_emulated_pico_uses_its_romfs(tmp_path, capsys, monkeypatch):
    pytest.importorskip("rp2040py", reason="NOT RUN: rp2040py is not installed (requirements-dev.txt has it)")
    if not UF2_ROMFS:
        warnings.warn(WITHOUT_ROMFS, stacklevel=1)
        pytest.skip(WITHOUT_ROMFS)
    assert Path(UF2_ROMFS).is_file(), f"FLASHMQTT_UF2_ROMFS names no file: {UF2_ROMFS}"
    monkeypatch.setattr("tools.deploy.link.RESET_S", 8)  # an emulated board is slow to reset
    own = tmp_path / "own.py"
    own.write_text(OWN_BOARD)
    (tmp_path / "config.toml").write_text(f'[wifi]\nssid = "home"\n[broker]\nhost = "{HOST}"\n')
    (tmp_path / "config.local.toml").write_text('[wifi]\npassword = "emulated"\n')
    modules = len(romfs.part(build.image("", "armv6m", False, own)))
    with EmulatedPicoW(UF2_ROMFS, tmp_path / "emulator") as pico:
        words = ("--port", pico.path, "--config", str(tmp_path), "--timeout", "1", "--board-file", str(own))
        for told in ("KB to write", "as it is"):
            for _ in range(20):  # the firmware makes its file system at its first start, and does not answer meanwhile
                status = deploy.main(["deploy", *words])
                said = capsys.readouterr()
                if "does not answer" not in said.err:
                    break
                time.sleep(5)
            assert status == 1 and "nothing was delivered" in said.err, said.out + said.err
            assert f"romfs      {modules} modules of the library and the application; " in said.out
            assert told in said.out
        with Link(pico.path) as link:
            assert link.literal(WHERE, 60) == ("/rom/app/configuration.mpy", "/rom/lib/flashmqtt/errors.mpy")
            assert "app" not in link.literal("import os; print(os.listdir('/'))")


@pytest.fixture
def emulator(monkeypatch):
    pytest.importorskip("rp2040py", reason="rp2040py is not installed: no emulated Pico W")
    from rp2040py.external.cyw43 import nat

    monkeypatch.setattr(nat.TcpReflector, "__init__", nat.TcpReflector.__init__)  # restored afterwards
    return nat


@pytest.mark.req("B3")
def test_emulator_opens_a_serial_port_or_fails_with_an_error(tmp_path):
    pytest.importorskip("rp2040py", reason="rp2040py is not installed: no emulated Pico W")
    (tmp_path / "no.uf2").write_bytes(b"")
    with EmulatedPicoW(tmp_path / "no.uf2", tmp_path) as pico:
        assert Path(pico.path).is_char_device()
    with pytest.raises(EmulatorFailed), EmulatedPicoW(tmp_path / "missing.uf2", tmp_path):
        pass


@pytest.mark.req("B3")
def test_emulated_connections_to_the_host_reach_its_loopback(emulator):
    from rp2040py.boards import build_rp2040

    assert "connect_fn" in inspect.signature(emulator.TcpReflector).parameters
    map_to_loopback()
    bridge = emulator.NatBridge(build_rp2040("pico_w"), lambda frame: None)

    async def talk() -> bytes:
        async def greet(reader, writer):
            writer.write(b"broker")
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        reader, writer = await bridge._tcp._connect_fn(HOST, server.sockets[0].getsockname()[1])
        heard = await reader.read()
        writer.close()
        server.close()
        return heard

    assert asyncio.run(talk()) == b"broker"
