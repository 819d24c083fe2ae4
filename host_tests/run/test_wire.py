"""The wire audit finds flows and violations in captured bytes, with any TCP segmentation."""

import asyncio
import json
import random
import struct

import pyarrow.parquet as pq
import pytest

from tools.command import Failure
from tools.proof import packets as p
from tools.proof.broker import Broker
from tools.proof.proxy import Proxy
from tools.proof.wire import __main__ as wire
from tools.proof.wire import capture, flows

UP, DOWN = capture.UP, capture.DOWN
CLIENT, BROKER = ("10.0.0.7", 50_000), ("10.0.0.1", 1883)


def connect(client="board-1", clean=False, level=4):
    return p.connect(client, level, clean, 60)


def connack(session=False):
    return p.connack(4, session)


def publish(number, qos=1, dup=False, payload=b"x", topic="t"):
    return p.publish(topic, payload, qos, number, dup=dup)


def ack(kind, number):
    return p.ack(getattr(p, kind), number)


def pieces(*talk, connection="c", start_us=1_000_000):
    """Return the pieces of a conversation: (direction, bytes), 1 ms apart."""
    at = {UP: 0, DOWN: 0}
    found = []
    for n, (direction, content) in enumerate(talk):
        found.append(capture.Piece(connection, direction, start_us + n * 1000, at[direction], False, content))
        at[direction] += len(content)
    return found


def audited(*conversations):
    packets = []
    for n, talk in enumerate(conversations):
        packets += flows.packets_of(pieces(*talk, connection=f"c{n}", start_us=1_000_000 * (n + 1)))
    return flows.audit(packets)


HELLO = [(UP, connect()), (DOWN, connack())]
AGAIN = [(UP, connect()), (DOWN, connack(session=True))]


def stories(found):
    return [(flow["packet_id"], flow["steps"], flow["complete"], flow["connections"]) for flow in found.flows]


def test_qos_1_and_2_flows_are_followed_to_their_end():
    talk = [*HELLO, (UP, publish(1)), (UP, publish(2, qos=2)), (DOWN, ack("PUBACK", 1)), (DOWN, ack("PUBREC", 2))]
    talk += [(UP, ack("PUBREL", 2)), (DOWN, ack("PUBCOMP", 2)), (UP, publish(0, qos=0)), (DOWN, publish(1))]
    found = audited(talk)
    assert stories(found) == [
        (1, "PUBLISH PUBACK", True, 1),
        (2, "PUBLISH PUBREC PUBREL PUBCOMP", True, 1),
        (1, "PUBLISH", False, 1),
    ]
    assert found.violations == []


def test_flow_continues_in_the_next_connection():
    found = audited(
        [*HELLO, (UP, publish(1)), (UP, publish(2, qos=2)), (DOWN, ack("PUBREC", 2)), (UP, ack("PUBREL", 2))],
        [
            *AGAIN,
            (UP, publish(1, dup=True)),
            (UP, ack("PUBREL", 2)),
            (DOWN, ack("PUBACK", 1)),
            (DOWN, ack("PUBCOMP", 2)),
        ],
    )
    assert stories(found) == [
        (1, "PUBLISH PUBLISH+DUP PUBACK", True, 2),
        (2, "PUBLISH PUBREC PUBREL PUBREL PUBCOMP", True, 2),
    ]
    assert found.violations == []


def test_resend_after_a_lost_acknowledgement_is_allowed():
    found = audited(
        [*HELLO, (UP, publish(1, 2)), (DOWN, ack("PUBREC", 1)), (UP, publish(2)), (DOWN, ack("PUBACK", 2))],
        [
            *AGAIN,
            *(
                (UP, publish(1, 2, dup=True)),
                (DOWN, ack("PUBREC", 1)),
                (UP, ack("PUBREL", 1)),
                (DOWN, ack("PUBCOMP", 1)),
            ),
            *(
                (UP, publish(2, dup=True)),
                (UP, publish(2, dup=True)),
                (DOWN, ack("PUBACK", 2)),
                (DOWN, ack("PUBACK", 2)),
            ),
        ],
    )
    assert found.violations == []
    assert [flow["complete"] for flow in found.flows] == [True] * 3


def test_resends_keep_their_order_over_two_reconnects():
    found = audited(
        [*HELLO, (UP, publish(1)), (UP, publish(2, payload=b"y")), (DOWN, ack("PUBACK", 1))],
        *([*AGAIN, (UP, publish(1, dup=True)), (UP, publish(2, dup=True, payload=b"y"))] for _ in range(2)),
    )
    assert found.violations == []


@pytest.mark.parametrize(
    ("talk", "clause"),
    [
        ([[(UP, publish(1))]], "MQTT-3.1.0-1"),
        ([[*HELLO, (UP, connect())]], "MQTT-3.1.0-2"),
        ([[*HELLO, (UP, bytes((0xE0, 0))), (UP, bytes((0xC0, 0)))]], "MQTT-3.14.4-2"),
        ([[(UP, connect()), (DOWN, bytes((0xD0, 0)))]], "MQTT-3.2.0-1"),
        ([[*HELLO, (UP, b"\x36\x00")]], "MQTT-4.8.0-1"),
        ([[*HELLO, (UP, publish(1)), (UP, publish(1, payload=b"y"))]], "MQTT-2.3.1-2"),
        ([[*HELLO, (UP, publish(1))], [*AGAIN, (UP, publish(1))]], "MQTT-3.3.1-1"),
        ([[*HELLO, (UP, publish(1, 2)), (DOWN, ack("PUBREC", 1)), (UP, publish(1, 2, dup=True))]], "MQTT-4.3.3-1"),
        ([[*HELLO, (UP, publish(1, 2)), (UP, ack("PUBREL", 1))]], "MQTT-4.3.3-1"),
        ([[*HELLO, (UP, publish(1, 2)), (DOWN, ack("PUBACK", 1))]], "MQTT-4.3.3-2"),
        ([[*HELLO, (DOWN, ack("PUBACK", 9))]], "MQTT-4.3.2-2"),
        (
            [
                [*HELLO, (UP, publish(1)), (UP, publish(2))],
                [*AGAIN, (UP, publish(2, dup=True)), (UP, publish(1, dup=True))],
            ],
            "MQTT-4.6.0-1",
        ),
        ([[*HELLO, (UP, publish(1, 2)), (DOWN, ack("PUBREC", 1)), (DOWN, ack("PUBCOMP", 1))]], "MQTT-4.3.3-2"),
        (
            [
                [
                    *((UP, connect(level=5)), (DOWN, p.connack(5))),
                    *((UP, p.publish("t", b"x", 1, 1, 5, dup=dup)) for dup in (False, True)),
                ]
            ],
            "MQTT-4.4.0-1",
        ),
    ],
)
def test_violation_is_reported_with_its_clause(talk, clause):
    assert [one["clause"] for one in audited(*talk).violations] == [clause]


def test_session_lost_by_the_server_ends_its_flows():
    found = audited([*HELLO, (UP, publish(1))], [*HELLO, (UP, publish(1, payload=b"new")), (DOWN, ack("PUBACK", 1))])
    assert stories(found) == [(1, "PUBLISH", False, 1), (1, "PUBLISH PUBACK", True, 1)]
    assert found.violations == []


# --- TCP and files ---


def frame(direction, position, content, flags=0x18, link=b"\0" * 12 + b"\x08\x00"):
    source, target = (CLIENT, BROKER) if direction == UP else (BROKER, CLIENT)
    tcp = struct.pack(">HHIIBBHHH", source[1], target[1], position & 0xFFFFFFFF, 0, 0x50, flags, 8192, 0, 0) + content
    addresses = bytes(map(int, ".".join((source[0], target[0])).split(".")))
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + addresses
    return link + ip + tcp


def pcap(frames, link=1):
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, link)
    bodies = [
        struct.pack("<IIII", time_us // 1_000_000, time_us % 1_000_000, len(body), len(body)) + body
        for time_us, body in frames
    ]
    return head + b"".join(bodies)


def tcp_frames(talk, seed, begin=0xFFFFFF00):
    """Return frames of a conversation split anywhere, some sent twice, with sequence numbers that wrap."""
    rng = random.Random(seed)
    at = {UP: begin, DOWN: begin}
    time_us = 1_000_000_000
    frames = [(time_us, frame(UP, begin - 1, b"", 2)), (time_us, frame(DOWN, begin - 1, b"", 0x12))]
    for direction, content in talk:
        while content:
            size = rng.randint(1, len(content))
            time_us += 1000
            frames.append((time_us, frame(direction, at[direction], content[:size])))
            if rng.random() < 0.3:
                frames.append((time_us + 300, frame(direction, at[direction], content[:size])))
            at[direction] += size
            content = content[size:]
    return frames


TALK = [*HELLO, (UP, publish(1, payload=b"p" * 200)), (DOWN, ack("PUBACK", 1)), (UP, publish(2, 2))]
TALK += [(DOWN, ack("PUBREC", 2)), (UP, ack("PUBREL", 2)), (DOWN, ack("PUBCOMP", 2))]
FLOWS = [(1, "PUBLISH PUBACK", True, 1), (2, "PUBLISH PUBREC PUBREL PUBCOMP", True, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_split_repeated_and_wrapped_tcp_segments_are_reassembled(tmp_path, seed):
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(tcp_frames(TALK, seed)))
    _, audits = flows.audits(wire.pieces(tmp_path, [1883]))
    assert stories(audits["board-1"]) == FLOWS


@pytest.mark.parametrize(
    ("kind", "link"),
    [(1, b"\0" * 12 + b"\x81\x00\0\x07\x08\x00"), (113, bytes(16)), (276, bytes(20)), (0, bytes(4)), (101, b"")],
    ids=["VLAN", "tcpdump -i any", "newer tcpdump -i any", "BSD's loopback", "raw IP"],
)
def test_capture_of_any_kind_of_link_is_read(tmp_path, kind, link):
    at = {UP: 1, DOWN: 1}
    frames = []
    for direction, content in TALK:
        frames.append((1000 * len(frames), frame(direction, at[direction], content, link=link)))
        at[direction] += len(content)
    (tmp_path / "x.pcap").write_bytes(pcap(frames, kind))
    _, audits = flows.audits(wire.pieces(tmp_path, [1883]))
    assert stories(audits["board-1"]) == FLOWS


def test_ipv6_is_read_and_what_is_no_tcp_segment_of_the_broker_is_skipped(tmp_path):
    hosts = {UP: (b"\xfe" * 16, b"\xfd" * 16), DOWN: (b"\xfd" * 16, b"\xfe" * 16)}
    at, frames = {UP: 1, DOWN: 1}, []
    for direction, content in TALK:
        tcp = frame(direction, at[direction], content)[34:]
        ip = struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64) + b"".join(hosts[direction])
        frames.append((1000 * len(frames), bytes(12) + b"\x86\xdd" + ip + tcp))
        at[direction] += len(content)
    one = frame(UP, 1, b"other")
    skipped = [bytes(12) + b"\x08\x06" + bytes(28)]  # ARP
    skipped += [
        one[:23] + b"\x11" + one[24:],
        one[:20] + b"\x00\x01" + one[22:],
        one[:40],
    ]  # UDP, a later fragment, half a head
    skipped += [one[:36] + b"\x1f\x90" + one[38:]]  # another port
    frames += [(1000 * len(frames), body) for body in skipped]
    (tmp_path / "x.pcap").write_bytes(pcap([*frames, (2_000_000, one)])[:-1])  # the last frame is incomplete
    packets, audits = flows.audits(wire.pieces(tmp_path, [1883]))
    assert stories(audits["board-1"]) == FLOWS
    assert len(packets) == len(TALK)


def test_second_connection_of_the_same_ports_is_another_one(tmp_path):
    frames = tcp_frames(TALK, 3)
    later = [(time_us + 1_000_000_000, body) for time_us, body in tcp_frames(TALK, 4, begin=77)]
    (tmp_path / "x.pcap").write_bytes(pcap([*frames, *later]))
    packets, audits = flows.audits(wire.pieces(tmp_path, [1883]))
    assert len({one["connection"] for one in packets}) == 2
    assert [story[:3] for story in stories(audits["board-1"])] == [story[:3] for story in FLOWS] * 2


def test_missing_tcp_bytes_are_reported_as_lost_not_malformed():
    frames = tcp_frames(TALK, 3)
    up = [n for n, (_, body) in enumerate(frames) if body[36:38] == b"\x07\x5b" and len(body) > 54]
    del frames[up[2]]
    found = []
    for time_us, body in frames:
        piece = capture._piece(capture.ETHERNET, body, time_us, frozenset([1883]))
        if piece:
            found.append(piece)
    kinds = [one["kind"] for one in flows.packets_of(found)]
    assert "LOST" in kinds
    assert "MALFORMED" not in kinds


def test_invalid_lines_of_a_capture_are_skipped(tmp_path):
    good = {"t": 1, "c": "1", "d": "up", "b": connect().hex()}
    bad = ['{"t":1e999,"c":"1","d":"up","b":""}', json.dumps(good | {"d": []}), "[]", "7", json.dumps(good)[:-9]]
    file = tmp_path / "capture.jsonl"
    file.write_text("\n".join([json.dumps(good), *bad]))
    with file.open("rb") as opened:
        assert [piece.content for piece in capture.read(opened, file.name, [1883])] == [connect()]


def test_file_that_is_no_capture_is_refused(tmp_path):
    for content, text in ((b"\x0a\x0d\x0d\x0a" + b"\0" * 30, "editcap"), (b"hello", "neither a pcap")):
        path = tmp_path / "x"
        path.write_bytes(content)
        with path.open("rb") as file, pytest.raises(Failure, match=text):
            list(capture.read(file, "x", [1883]))


def test_audit_joins_files_of_a_connection_and_connections_of_a_client(tmp_path, capsys):
    captures = tmp_path / "captures"
    captures.mkdir()
    frames = tcp_frames(TALK[:5], 5)
    (captures / "a.pcap").write_bytes(pcap(frames[:7]))
    (captures / "b.pcap").write_bytes(pcap(frames[7:]))
    later = [*AGAIN, (UP, publish(2, 2, dup=True)), (DOWN, ack("PUBREC", 2))]
    lines = [{"t": 2_000_000_000 + n, "c": "proxied", "d": way, "b": body.hex()} for n, (way, body) in enumerate(later)]
    (captures / "proxy.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"t": 20')
    assert wire.main(["--captures", str(captures), "--out", str(tmp_path / "out")]) == 0
    assert "9 packets, 0 violations" in capsys.readouterr().out
    tables = {name: pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in ("packets", "flows", "violations")}
    rows = tables["flows"].select(["client", "packet_id", "steps", "complete"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("board-1", 1, "PUBLISH PUBACK", True),
        ("board-1", 2, "PUBLISH PUBLISH+DUP PUBREC", False),
    ]
    assert len(tables["violations"]) == 0
    assert len(tables["packets"]) == 9


def test_violations_and_missing_captures_set_message_and_exit_status(tmp_path, capsys):
    captures = tmp_path / "captures"
    command = ["--captures", str(captures), "--out", str(tmp_path / "out")]
    assert wire.main(command) == 2
    assert "there are no captures. Make one: tcpdump" in capsys.readouterr().err
    captures.mkdir()
    talk = [*HELLO, (UP, publish(1)), (UP, b"\x36\x00")]
    lines = [{"t": n, "c": "proxied", "d": way, "b": body.hex()} for n, (way, body) in enumerate(talk)]
    (captures / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert wire.main(command) == 1
    assert "violation by the client of board-1: PUBLISH with flags 0110 [MQTT-4.8.0-1]" in capsys.readouterr().out
    assert wire.main([*command[:-1], "/proc/x"]) == 2
    assert capsys.readouterr().err == "wire: /proc/x: No such file or directory: check the path\n"


# --- the proxy's capture of our client with a real broker ---


def publish_through(port, count):
    from flashmqtt.client import Client

    client = Client("127.0.0.1", port, "board", keep_alive_s=10)
    client.connect(60)
    for number in range(count):
        client.publish("flashmqtt/board/readings", b"%d" % number, qos=1 + number % 2)
        client.poll()
    client.drain(60)
    client.disconnect()


def test_proxy_capture_of_our_client_has_no_violations(tmp_path):
    async def scenario(broker_port, watch):
        proxy = await Proxy(broker_port, random.Random(1), watch=watch).start()
        publishing = asyncio.ensure_future(asyncio.to_thread(publish_through, proxy.port, 60))
        for cut in (proxy.cut, proxy.cut_inside_a_packet, proxy.cut):
            while not publishing.done() and not proxy.connected:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.01)
            cut()
        await publishing
        await proxy.stop()
        return proxy.connections

    file = tmp_path / "captures" / "run.jsonl"
    with Broker(tmp_path / "broker") as broker, capture.written(file) as watch:
        connections = asyncio.run(scenario(broker.port, watch))
    with open(file, "rb") as opened:
        found = list(capture.read(opened, file.name, []))
    assert len({one.connection for one in found}) <= connections
    told = flows.audits(wire.pieces(file.parent, []))[1]["board"]
    assert told.violations == []
    done = [flow for flow in told.flows if flow["complete"]]
    assert len({(flow["qos"], flow["packet_id"]) for flow in done}) == 60
    assert {flow["qos"] for flow in done} == {1, 2}
