// The second implementation behind the golden vectors: npm's mqtt-packet. Reads one JSON request a line, answers one line each.
//   {"level": 5, "packet": {...}}  ->  {"hex": "..."}             what it writes
//   {"names": true}                ->  {"17": "sessionExpiryInterval", ...}    what it calls the properties
//   {"level": 5, "hex": "..."}     ->  {"packets": [...]} or {"error": "..."}   what it reads
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(process.argv[2] + "/");
const mqtt = require("mqtt-packet");
const { propertiesCodes } = require("mqtt-packet/constants");

function revive(value) {
  if (Array.isArray(value)) return value.map(revive);
  if (value && typeof value === "object") {
    if ("$hex" in value) return Buffer.from(value.$hex, "hex");
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, revive(one)]));
  }
  return value;
}

function show(key, value) {
  if (value && value.type === "Buffer") return { $hex: Buffer.from(value.data).toString("hex") };
  return value;
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let answer;
  try {
    if (request.names) {
      answer = propertiesCodes;
    } else if (request.packet) {
      answer = { hex: mqtt.generate(revive(request.packet), { protocolVersion: request.level }).toString("hex") };
    } else {
      const packets = [];
      const parser = mqtt.parser({ protocolVersion: request.level });
      let error = null;
      parser.on("packet", (packet) => packets.push(packet));
      parser.on("error", (e) => (error = e.message));
      const left = parser.parse(Buffer.from(request.hex, "hex"));
      answer = error ? { error } : { packets, left };
    }
  } catch (e) {
    answer = { error: e.message };
  }
  console.log(JSON.stringify(answer, show));
}
