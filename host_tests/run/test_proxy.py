"""The proxy cuts, delays and traces connections as requested."""

import asyncio
import random

import pytest

from tools.proof.packets import publish
from tools.proof.proxy import INSIDE, Cut, Proxy
from wire import whole_packets

PINGREQ = b"\xc0\x00"
PUBLISH = b"\x32\x07\x00\x03a/b\x00\x0a"
PATIENCE_S = 30  # deadline for expected bytes, on a busy machine
QUIET_S = 0.2  # how long to wait for bytes that must not arrive
LONG = b"\x30\xc8\x01" + b"\x00\x01a" + bytes(197)


@pytest.mark.parametrize(
    "packets", [[], [PINGREQ], [PINGREQ, PUBLISH], [LONG]], ids=["none", "one", "two", "a long one"]
)
@pytest.mark.parametrize(
    "rest", [b"", b"\xc0", PUBLISH[:-1], b"\x30\xff"], ids=["whole", "head", "cut", "half a length"]
)
def test_split_returns_whole_packets_and_the_incomplete_rest(packets, rest):
    assert whole_packets(b"".join(packets) + rest) == (packets, rest)


def test_cut_inside_a_packet_is_never_at_a_packet_boundary():
    rng = random.Random(1)
    places = {Cut("up", 1, INSIDE, "rst").passes(len(PUBLISH), rng) for _ in range(500)}
    assert places == set(range(1, len(PUBLISH)))


async def _echo(reader, writer):
    try:
        while data := await reader.read(100):
            writer.write(data)
    except OSError:
        pass
    writer.close()


async def _through_a_proxy(scenario):
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    proxy = await Proxy(server.sockets[0].getsockname()[1]).start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(PUBLISH)
        assert await reader.readexactly(len(PUBLISH)) == PUBLISH
        await scenario(proxy, reader, writer)
        writer.close()
    finally:
        await proxy.stop()
        server.close()


def test_cut_resets_the_connection():
    async def scenario(proxy, reader, writer):
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE_S)
        assert proxy.cuts == 1

    asyncio.run(_through_a_proxy(scenario))


def test_stop_waits_for_a_pending_connection_and_resets_it(monkeypatch):
    async def scenario(proxy, *_):
        connecting, go_on = asyncio.Event(), asyncio.Event()
        connect = asyncio.open_connection

        async def slowly(host, port):
            if port == proxy.target:
                connecting.set()
                await go_on.wait()
            return await connect(host, port)

        monkeypatch.setattr(asyncio, "open_connection", slowly)
        reader, _writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await connecting.wait()
        stopping = asyncio.create_task(proxy.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        go_on.set()
        await stopping
        assert not proxy.connected
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE_S)

    asyncio.run(_through_a_proxy(scenario))


def test_packet_whose_length_has_no_end_is_passed_on_as_it_comes():
    async def scenario(proxy, reader, writer):
        writer.write(PUBLISH + b"\x30\x80\x80\x80")
        assert await reader.readexactly(len(PUBLISH)) == PUBLISH
        writer.write(b"\x80\x80")
        assert await asyncio.wait_for(reader.readexactly(6), 5) == b"\x30" + b"\x80" * 5

    asyncio.run(_through_a_proxy(scenario))


def test_cut_inside_a_packet_passes_a_part_and_then_resets():
    async def scenario(proxy, reader, writer):
        proxy.cut_inside_a_packet()
        writer.write(PUBLISH)
        came = b""
        with pytest.raises(ConnectionResetError):
            while True:
                piece = await asyncio.wait_for(reader.read(100), PATIENCE_S)
                assert piece, "a reset was expected, not an end"
                came += piece
        assert len(came) < len(PUBLISH)
        assert PUBLISH.startswith(came)
        assert proxy.cuts_inside_a_packet == 1

    asyncio.run(_through_a_proxy(scenario))


def test_black_hole_passes_nothing_and_stays_open():
    async def scenario(proxy, reader, writer):
        proxy.swallow()
        writer.write(PUBLISH)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(1), QUIET_S)
        assert proxy.connected

    asyncio.run(_through_a_proxy(scenario))


def _planned(*cuts, passed, **more):
    """Let a client send PUBLISH twice through a proxy to an echo; return the received bytes, the kind of end, and the proxy.

    It waits PATIENCE_S for expected bytes and for the end of a cut connection, but only QUIET_S to find that no more bytes come.
    """
    silent = any(cut.endswith(".hole") for cut in cuts)

    async def run():
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        proxy = await Proxy(server.sockets[0].getsockname()[1], plan=[Cut.parse(cut) for cut in cuts], **more).start()
        came, end = b"", "open"
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            for _ in range(2):
                writer.write(PUBLISH)
                wanted = len(came) + len(PUBLISH)
                while end == "open" and len(came) < wanted:
                    try:
                        patience_s = QUIET_S if silent and len(came) >= passed else PATIENCE_S
                        piece = await asyncio.wait_for(reader.read(100), patience_s)
                        came += piece
                        end = end if piece else "fin"
                    except ConnectionResetError:
                        end = "rst"
                    except TimeoutError:
                        end = "hole"
            writer.close()
        finally:
            await proxy.stop()
            server.close()
        return came, end, proxy

    return asyncio.run(run())


@pytest.mark.parametrize("manner", ["fin", "rst", "hole"])
@pytest.mark.parametrize(
    ("cut", "passed"),
    [
        ("up1.before", 0),
        ("up1.middle", 0),
        ("up2.before", 9),
        ("up2.last", 9),
        ("down1.before", 0),
        ("down1.first", 1),
        ("down1.middle", 4),
        ("down2.last", 17),
        ("down2.after", 18),
    ],
)
def test_planned_cut_passes_exactly_the_bytes_before_its_place(cut, passed, manner):
    came, end, proxy = _planned(f"{cut}.{manner}", passed=passed)
    assert came == (PUBLISH + PUBLISH)[:passed]
    assert end == ("open" if passed == 18 else manner)
    assert [str(made) for made in proxy.made] == [f"{cut}.{manner}"]


def test_proxy_trace_lists_the_passed_packets():
    trace = []
    _planned("up9.before.rst", passed=18, watch=trace.append)
    assert [(seen.direction, seen.type, seen.passed, seen.connection) for seen in trace] == [
        ("up", 3, 9, 1),
        ("down", 3, 9, 1),
    ] * 2


@pytest.mark.parametrize("cut", ["up1.nowhere.rst", "up1.before.softly", "sideways1.before.rst"])
def test_cut_with_invalid_syntax_is_refused(cut):
    with pytest.raises(ValueError):
        Cut.parse(cut)


def test_delay_adds_twice_its_value_to_a_round_trip():
    async def run():
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        proxy = await Proxy(server.sockets[0].getsockname()[1], delay_s=0.02).start()
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        times = []
        while not times or (min(times) >= 0.06 and len(times) < 50):  # on a busy machine only some round trips are fast
            started = loop.time()
            writer.write(PUBLISH)
            await reader.readexactly(len(PUBLISH))
            times.append(loop.time() - started)
        many = b"".join(publish("a", bytes([n]) * n) for n in range(256))
        writer.write(many)
        assert await reader.readexactly(len(many)) == many
        writer.close()
        await proxy.stop()
        server.close()
        return min(times)

    assert 0.04 <= asyncio.run(run()) < 0.06
