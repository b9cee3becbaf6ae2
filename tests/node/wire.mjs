// ZMTP 3.0 (RFC 23, mechanism NULL) and MessagePack by hand, with Node's standard library only. Knows frames and values;
// no message of buildd.

import { createConnection } from "node:net";

export const MAGIC = Buffer.from("buildd1");

// ---- MessagePack

export function encode(value) {
  const parts = [];
  put(value, parts);
  return Buffer.concat(parts);
}

function put(value, parts) {
  if (value === null || value === undefined) parts.push(Buffer.of(0xc0));
  else if (typeof value === "boolean") parts.push(Buffer.of(value ? 0xc3 : 0xc2));
  else if (typeof value === "bigint" || Number.isInteger(value)) parts.push(integer(BigInt(value)));
  else if (typeof value === "number") {
    const bytes = Buffer.alloc(9, 0xcb);
    bytes.writeDoubleBE(value, 1);
    parts.push(bytes);
  } else if (typeof value === "string") {
    const text = Buffer.from(value);
    parts.push(head(text.length, 0xdb), text);
  } else if (Buffer.isBuffer(value)) parts.push(head(value.length, 0xc6), value);
  else if (Array.isArray(value)) {
    parts.push(head(value.length, 0xdd));
    for (const item of value) put(item, parts);
  } else {
    const entries = Object.entries(value);
    parts.push(head(entries.length, 0xdf));
    for (const [key, item] of entries) {
      put(key, parts);
      put(item, parts);
    }
  }
}

function head(length, code) {
  const bytes = Buffer.alloc(5, code);
  bytes.writeUInt32BE(length, 1);
  return bytes;
}

function integer(value) {
  if (value >= 0n && value < 128n) return Buffer.of(Number(value));
  const bytes = Buffer.alloc(9, value < 0n ? 0xd3 : 0xcf);
  if (value < 0n) bytes.writeBigInt64BE(value, 1);
  else bytes.writeBigUInt64BE(value, 1);
  return bytes;
}

export function decode(bytes) {
  const reader = new Reader(bytes);
  const value = reader.value();
  if (reader.at !== bytes.length) throw new Error("bytes are left behind a value");
  return value;
}

const safe = (big) => (big >= -(2n ** 53n) && big <= 2n ** 53n ? Number(big) : big);

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(count) {
    this.at += count;
    if (this.at > this.bytes.length) throw new Error("a value is cut");
    return this.bytes.subarray(this.at - count, this.at);
  }

  size(width) {
    return this.take(width).readUIntBE(0, width);
  }

  value() {
    const code = this.size(1);
    if (code < 0x80) return code;
    if (code < 0x90) return this.table(code & 15);
    if (code < 0xa0) return this.list(code & 15);
    if (code < 0xc0) return this.take(code & 31).toString();
    if (code >= 0xe0) return code - 256;
    switch (code) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return this.take(this.size(1 << (code - 0xc4)));
      case 0xca: return this.take(4).readFloatBE();
      case 0xcb: return this.take(8).readDoubleBE();
      case 0xcc: case 0xcd: case 0xce: return this.size(1 << (code - 0xcc));
      case 0xcf: return safe(this.take(8).readBigUInt64BE());
      case 0xd0: case 0xd1: case 0xd2: return this.take(1 << (code - 0xd0)).readIntBE(0, 1 << (code - 0xd0));
      case 0xd3: return safe(this.take(8).readBigInt64BE());
      case 0xd9: case 0xda: case 0xdb: return this.take(this.size(1 << (code - 0xd9))).toString();
      case 0xdc: case 0xdd: return this.list(this.size(code === 0xdc ? 2 : 4));
      case 0xde: case 0xdf: return this.table(this.size(code === 0xde ? 2 : 4));
      default: throw new Error(`MessagePack byte ${code} is not in use`);
    }
  }

  list(count) {
    return Array.from({ length: count }, () => this.value());
  }

  table(count) {
    const found = {};
    for (let left = count; left > 0; left--) {
      const key = this.value();
      found[key] = this.value();
    }
    return found;
  }
}

// ---- ZMTP

const GREETING_BYTES = 64;
const [MORE, LONG, COMMAND] = [1, 2, 4];

function greeting() {
  const bytes = Buffer.alloc(GREETING_BYTES);
  bytes[0] = 0xff;
  bytes[9] = 0x7f;
  bytes[10] = 3; // version 3.0
  bytes.write("NULL", 12);
  return bytes;
}

function frame(flags, body) {
  if (body.length < 256) return Buffer.concat([Buffer.of(flags, body.length), body]);
  const head = Buffer.alloc(9, flags | LONG);
  head.writeBigUInt64BE(BigInt(body.length), 1);
  return Buffer.concat([head, body]);
}

function ready(socketType) {
  const property = (name, value) => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(value.length);
    return Buffer.concat([Buffer.of(name.length), Buffer.from(name), length, Buffer.from(value)]);
  };
  const body = [Buffer.of(5), Buffer.from("READY"), property("Socket-Type", socketType)];
  if (socketType === "DEALER") body.push(property("Identity", ""));
  return frame(COMMAND, Buffer.concat(body));
}

// A connection to an "ipc://" address, ready for messages. Each side waits for the other's greeting and READY: libzmq
// drops messages that come earlier.
export async function connect(address, socketType = "DEALER") {
  const socket = createConnection(address.replace("ipc://", ""));
  const connection = new Connection(socket);
  socket.write(greeting());
  const theirs = await connection.bytes(GREETING_BYTES);
  if (theirs[0] !== 0xff || theirs[10] < 3) throw new Error("the peer does not speak ZMTP 3");
  socket.write(ready(socketType));
  const { flags, body } = await connection.frame();
  if (!(flags & COMMAND) || body.toString("latin1", 1, 1 + body[0]) !== "READY") throw new Error("no READY");
  return connection;
}

class Connection {
  constructor(socket) {
    this.socket = socket;
    this.buffer = Buffer.alloc(0);
    this.wake = () => {};
    this.closed = false;
    this.messages = [];
    socket.on("data", (data) => {
      this.buffer = Buffer.concat([this.buffer, data]);
      this.wake();
    });
    socket.on("error", () => {});
    socket.on("close", () => {
      this.closed = true;
      this.wake();
    });
  }

  async bytes(count) {
    while (this.buffer.length < count) {
      if (this.closed) throw new Error("the connection was closed");
      await new Promise((resolve) => (this.wake = resolve));
    }
    const taken = this.buffer.subarray(0, count);
    this.buffer = this.buffer.subarray(count);
    return taken;
  }

  async frame() {
    const flags = (await this.bytes(1))[0];
    const size = flags & LONG ? Number((await this.bytes(8)).readBigUInt64BE()) : (await this.bytes(1))[0];
    return { flags, body: Buffer.from(await this.bytes(size)) };
  }

  sendFrames(frames) {
    frames.forEach((body, at) => this.socket.write(frame(at < frames.length - 1 ? MORE : 0, body)));
  }

  // The frames of the next message.
  async receiveFrames() {
    const frames = [];
    for (;;) {
      const { flags, body } = await this.frame();
      if (flags & COMMAND) continue;
      frames.push(body);
      if (!(flags & MORE)) return frames;
    }
  }

  send(message) {
    this.sendFrames([MAGIC, encode(message)]);
  }

  async receive() {
    const frames = await this.receiveFrames();
    if (frames.length !== 2 || !frames[0].equals(MAGIC)) throw new Error("the daemon does not speak framing buildd1");
    return decode(frames[1]);
  }

  close() {
    this.socket.end();
  }

  cut() {
    this.socket.destroy();
  }
}
