"""Complete the golden vectors (`host_tests/vectors/*.jsonl`), and check them with another codec.

    python -m tools.proof.check.vectors            complete the files
    python -m tools.proof.check.vectors --check    report differences from the files; fail if there are any

A vector is a line that a person wrote from the standard: `valid.jsonl` has name, level, from (the sender), clause, put (the
function) and fields; `malformed.jsonl` has bytes and the reason. To add a valid vector, write these keys, a line for each
level, and run this tool: the bytes of valid packets come from npm's mqtt-packet, never from the code under test. If the
standard allows several forms (a reason code 0 may be omitted), `hex` is the shortest form and `also` has mqtt-packet's;
mqtt-packet must read both as the same packet. Packets that mqtt-packet does not write although the standard allows them (level
5's password without user, 3.1's PUBREL with DUP) are marked `by_hand`, with their `hex`. For malformed bytes, `second` is
mqtt-packet's result. This tool needs npm; the tests that use the files do not.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools import children
from tools.bootstrap import ROOT
from tools.command import exit_status, parser_of

FOLDER = ROOT / "host_tests" / "vectors"
NPM = ROOT / "build" / "npm"
MQTT_PACKET = "mqtt-packet@9.0.2"

Json = dict[str, Any]

BINARY = (0x09, 0x16)
# Our name of a field -> mqtt-packet's, of those with the same values.
SAME = {name: name for name in ("topic", "qos", "dup", "retain", "clean")}
SAME |= {"client_id": "clientId", "keep_alive_s": "keepalive", "user": "username"}
SAME |= {"packet_id": "messageId", "codes": "granted", "session_present": "sessionPresent"}
BOOLEAN = (0x01, 0x17, 0x19, 0x25, 0x28, 0x29, 0x2A)


def second_properties(properties: list, names: Json) -> Json:
    """Return properties in mqtt-packet's form; `names` are its names for them."""
    result: Json = {}
    for identifier, value in properties:
        key = names[str(identifier)]
        if identifier == 0x26:
            result.setdefault(key, {}).setdefault(value[0], []).append(value[1])
        elif identifier == 0x0B:
            result.setdefault(key, []).append(value)
        elif identifier in BINARY:
            result[key] = {"$hex": value}
        elif identifier in BOOLEAN:
            result[key] = bool(value)
        else:
            result[key] = value
    if len(result.get("subscriptionIdentifier", [])) == 1:
        result["subscriptionIdentifier"] = result["subscriptionIdentifier"][0]
    return result


def payload_hex(payload: "str | Json") -> str:
    """Return a vector's payload as one hex string."""
    return payload if isinstance(payload, str) else payload["repeat"] * payload["times"]


def second_packet(vector: Json, names: Json) -> Json:
    """Return the packet of a vector in mqtt-packet's form."""
    fields, level = vector["fields"], vector["level"]
    code = fields.get("code", 0)
    packet: Json = {"cmd": vector["put"], "reasonCode": code, "returnCode": code}
    packet |= {second: fields[first] for first, second in SAME.items() if first in fields}
    if "properties" in fields:
        packet["properties"] = second_properties(fields["properties"], names)
    if vector["put"] == "connect":
        protocol = {"protocolId": "MQIsdp" if level == 3 else "MQTT", "protocolVersion": level}
        packet = {"clean": True, "keepalive": 0} | protocol | packet
        if "password" in fields:
            packet["password"] = {"$hex": fields["password"]}
        if "will_topic" in fields:
            packet["will"] = {
                "topic": fields["will_topic"],
                "payload": {"$hex": fields.get("will_payload", "")},
                "qos": fields.get("will_qos", 0),
                "retain": fields.get("will_retain", False),
            }
            if "will_properties" in fields:
                packet["will"]["properties"] = second_properties(fields["will_properties"], names)
    elif vector["put"] == "publish":
        packet = {"qos": 0, "dup": 0, "retain": 0} | packet | {"payload": {"$hex": payload_hex(fields["payload"])}}
    elif vector["put"] == "subscribe":
        packet["subscriptions"] = [
            {"topic": topic, "qos": o & 3, "nl": bool(o & 4), "rap": bool(o & 8), "rh": o >> 4}
            for topic, o in fields["filters"]
        ]
    elif vector["put"] == "unsubscribe":
        packet["unsubscriptions"] = fields["filters"]
    return packet


def shortest(vector: Json, hexed: str) -> str:
    """Return the packet without what level 5 allows to be left out: an empty property length, then a code 0."""
    if vector["level"] != 5 or "properties" in vector["fields"]:
        return hexed
    body = bytes.fromhex(hexed)
    head = {"puback": 4, "pubrec": 4, "pubrel": 4, "pubcomp": 4, "disconnect": 2, "auth": 2}.get(vector["put"])
    if head is None or len(body) == head:
        return hexed
    code = vector["fields"].get("code", 0)
    tail = body[:head] + (bytes([code]) if code else b"")
    return bytes([tail[0], len(tail) - 2, *tail[2:]]).hex()


class Second:
    """npm's mqtt-packet in a process of its own."""

    def __init__(self) -> None:
        if not (NPM / "node_modules" / "mqtt-packet").exists():
            NPM.mkdir(parents=True, exist_ok=True)
            subprocess.run(["npm", "install", "--silent", "--no-save", "--prefix", str(NPM), MQTT_PACKET], check=True)
        node = ["node", str(Path(__file__).with_suffix(".mjs")), str(NPM)]
        self._node = children.popen(node, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request: Any) -> Json:
        """Return the answer to one request."""
        assert self._node.stdin is not None and self._node.stdout is not None
        self._node.stdin.write(json.dumps(request).encode() + b"\n")
        self._node.stdin.flush()
        return json.loads(self._node.stdout.readline())


def without_lengths(packets: list[Json]) -> list[Json]:
    """Return what mqtt-packet read, without what depends on the form of the packet."""
    return [
        {k: v for k, v in packet.items() if k not in ("length", "properties") or (k == "properties" and v)}
        for packet in packets
    ]


def section(first_byte: int, level: int) -> str:
    """Return the section about a packet's type: chapter 3 of 3.1.1 and 5 has one for each type, in their order."""
    kind = first_byte >> 4
    if kind == 0 or (kind == 15 and level < 5):
        return "2.1.2" if level == 5 else "2.2.1"  # reserved
    return f"3.{kind}"


def lines(name: str) -> list[Json]:
    """Return the vectors of a file."""
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def finish_valid(second: Second) -> list[Json]:
    """Give the valid vectors their bytes."""
    found = []
    names = second.ask(names=True)
    for line in lines("valid"):
        vector = {key: line[key] for key in ("name", "level", "from", "clause", "put", "fields")}
        found.append(vector)
        if line.get("by_hand"):
            vector |= {"by_hand": True, "hex": line["hex"]}
            continue
        answer = second.ask(level=vector["level"], packet=second_packet(vector, names))
        if "error" in answer:
            raise SystemExit(f"{vector['name']}: mqtt-packet does not write it: {answer['error']}")
        vector["hex"] = shortest(vector, answer["hex"])
        read = second.ask(level=vector["level"], hex=vector["hex"])
        if vector["hex"] != answer["hex"]:
            vector["also"] = [answer["hex"]]
            other = second.ask(level=vector["level"], hex=answer["hex"])
            if vector["put"] == "auth":  # §3.15.2.1 allows no code at all; mqtt-packet does not read that
                continue
            if "packets" not in read or without_lengths(read["packets"]) != without_lengths(other["packets"]):
                raise SystemExit(f"{vector['name']}: mqtt-packet reads the short form differently: {read} {other}")
        # mqtt-packet writes 3.1's DUP of a SUBSCRIBE, but does not read it.
        repeated = vector["level"] == 3 and vector["fields"].get("dup")
        if not repeated and (len(read.get("packets", ())) != 1 or read["left"]):
            raise SystemExit(f"{vector['name']}: mqtt-packet does not read it: {read}")
        if isinstance(vector["fields"].get("payload"), dict):  # too long for the file
            payload = payload_hex(vector["fields"]["payload"])
            assert vector["hex"].endswith(payload)
            vector["hex"] = vector["hex"][: -len(payload)]
            vector["then"] = vector["fields"]["payload"]
    for vector in found:
        vector["section"] = section(int(vector["hex"][:2], 16), vector["level"])
    return found


def finish_malformed(second: Second) -> list[Json]:
    """Add mqtt-packet's result to the malformed vectors."""
    for vector in (found := lines("malformed")):
        answer = second.ask(level=vector["level"], hex=vector["hex"].replace(" ", ""))
        vector["section"] = section(int(vector["hex"][:2], 16), vector["level"])
        vector["second"] = "refuses" if "error" in answer else "accepts" if answer["packets"] else "waits"
    return found


def main() -> int:
    """Write or check the files."""
    arguments = parser_of("tools.proof.check.vectors", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true")
    check = arguments.parse_args().check
    second = Second()
    differing = 0
    for name, vectors in (("valid", finish_valid(second)), ("malformed", finish_malformed(second))):
        path = FOLDER / f"{name}.jsonl"
        text = "".join(json.dumps(vector, ensure_ascii=False) + "\n" for vector in vectors)
        differs = check and path.read_text(encoding="utf-8") != text
        differing += differs
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {len(vectors)} vectors" + (", not these" if differs else ""))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(exit_status(main, stopped="stopped"))
