// Build one target through the daemon and print every event as a line of JSON. Written from protocol/SPEC.md alone: the
// proof that it is enough. Section numbers below are its.
//
//   node client.mjs RUNTIME_FOLDER_OR_ENDPOINT_FILE PROJECT TARGET [--status] [--cancel-after N] [--profile TOP]
//
// RUNTIME_FOLDER is BASE/PLACE; "-" finds it by the rules of section 1. Exits by the outcome (section 8, done).

import { createHash, randomUUID } from "node:crypto";
import { existsSync, lstatSync, readFileSync, statSync } from "node:fs";
import { tmpdir, userInfo } from "node:os";
import { dirname, isAbsolute, join } from "node:path";
import { fileURLToPath } from "node:url";
import { connect } from "./wire.mjs";

const VERSION = 1;
const EXIT = { built: 0, failed: 1, cancelled: 1, refused: 2, daemon_error: 3 };

class Failure extends Error {}

// ---- section 1: finding the daemon

function bootId() {
  try {
    return readFileSync("/proc/sys/kernel/random/boot_id", "ascii").trim();
  } catch {
    return "";
  }
}

export function namespace(name) {
  try {
    return statSync(`/proc/self/ns/${name}`).ino;
  } catch {
    return 0;
  }
}

function base() {
  const explicit = process.env.BUILDD_RUNTIME_DIR;
  if (explicit) {
    if (!isAbsolute(explicit) || Buffer.byteLength(explicit) > 77) throw new Failure("BUILDD_RUNTIME_DIR cannot be used");
    return explicit;
  }
  const session = process.env.XDG_RUNTIME_DIR;
  if (session && isAbsolute(session) && Buffer.byteLength(session) <= 70 && existsSync(session)) {
    const status = lstatSync(session);
    const ours = status.isDirectory() && status.uid === process.geteuid() && (status.mode & 0o077) === 0;
    const stays = dirname(session) !== "/run/user" || existsSync(`/var/lib/systemd/linger/${userInfo().username}`);
    if (ours && stays) return join(session, "buildd");
  }
  return join(existsSync("/tmp") ? "/tmp" : tmpdir(), `buildd-${process.geteuid()}`);
}

function place() {
  const text = `${bootId()}|${namespace("mnt")}|${namespace("pid")}`;
  return createHash("sha256").update(text, "ascii").digest("hex").slice(0, 12);
}

export function startTicks(pid) {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, "latin1");
    const fields = text.slice(text.lastIndexOf(")") + 1).trim().split(/\s+/);
    return "ZX".includes(fields[0]) ? 0 : Number(fields[19]);
  } catch {
    return 0;
  }
}

function alive(endpoint) {
  return endpoint.boot_id === bootId() && endpoint.start_ticks > 0 && startTicks(endpoint.pid) === endpoint.start_ticks;
}

export function findEndpoint(where) {
  const folder = where === "-" ? join(base(), place()) : where;
  const file = folder.endsWith(".json") ? folder : join(folder, "endpoint.json");
  if (!existsSync(file)) throw new Failure(`no daemon: ${file} is not there`);
  const endpoint = JSON.parse(readFileSync(file, "utf8"));
  if (!alive(endpoint)) throw new Failure(`no daemon: the one of ${file} has ended`);
  return endpoint;
}

// ---- sections 3 to 5: transport, frames, handshake

// A connection that knows when the daemon has ended.
class Connection {
  static async to(address) {
    const made = new Connection();
    made.wire = await connect(address);
    return made;
  }

  send(message) {
    this.wire.send(message);
  }

  // The next message, or null where the daemon has ended.
  async receive(endpoint) {
    try {
      return await this.wire.receive();
    } catch (error) {
      if (!alive(endpoint)) return null;
      throw error;
    }
  }

  close() {
    this.wire.close();
  }
}

async function shakeHands(connection, endpoint) {
  connection.send({
    type: "hello",
    version: VERSION,
    client: "node-spec-client/1.0.0",
    pid: process.pid,
    start_ticks: startTicks(process.pid),
    user: userInfo().username,
    namespaces: { mount: namespace("mnt"), pid: namespace("pid"), user: namespace("user") },
  });
  const reply = await connection.receive(endpoint);
  if (reply === null) throw new Failure("the daemon ended during the handshake");
  if (reply.type === "refused") throw new Failure(`refused (${reply.code}): ${reply.message}`);
  if (reply.type !== "welcome") throw new Failure(`unexpected ${reply.type} in the handshake`);
  if (Number(reply.version) !== VERSION) throw new Failure(`the daemon speaks version ${reply.version}`);
  return reply;
}

function print(value) {
  console.log(JSON.stringify(value, (_, item) => (typeof item === "bigint" ? item.toString() : item)));
}

async function askControl(endpoint, message) {
  const control = await Connection.to(endpoint.control);
  try {
    control.send(message);
    return await control.receive(endpoint);
  } finally {
    control.close();
  }
}

// ---- section 6: a build

async function build(endpoint, project, target, cancelAfter, top) {
  const work = await Connection.to(endpoint.work);
  try {
    print(await shakeHands(work, endpoint));
    const requestId = randomUUID();
    const names = ["PATH", "HOME", "CUDA_HOME", "TMPDIR"].filter((name) => process.env[name] !== undefined);
    work.send({
      type: "submit",
      request: {
        request_id: requestId,
        build_id: randomUUID(),
        project,
        targets: target ? [target] : [],
        environment: Object.fromEntries(names.map((name) => [name, process.env[name]])),
        on_disconnect: "cancel",
        ...(top ? { mode: "profile", profile: { top } } : {}),
      },
    });
    let last = 0;
    for (;;) {
      const message = await work.receive(endpoint);
      if (message === null) throw new Failure(`the daemon ended; the last event was ${last}`);
      if (message.type === "error") {
        print(message);
        return 3;
      }
      if (message.type !== "event" || message.request_id !== requestId) continue;
      const sequence = Number(message.sequence);
      const missing = message.body.type === "lagged" ? Number(message.body.first) : sequence;
      if (missing !== last + 1) throw new Failure(`event ${missing} after ${last}`);
      last = sequence;
      print(message);
      if (message.body.type === "done") {
        work.send({ type: "bye" });
        return EXIT[message.body.outcome] ?? 3;
      }
      if (last === cancelAfter) print(await askControl(endpoint, { type: "cancel", request_id: requestId }));
    }
  } finally {
    work.close();
  }
}

async function main() {
  const words = process.argv.slice(2);
  const takesValue = ["--cancel-after", "--profile"];
  const [where, project, target] = words.filter((word, at) => !word.startsWith("--") && !takesValue.includes(words[at - 1]));
  const profileAt = words.indexOf("--profile");
  const cancelAt = words.indexOf("--cancel-after");
  if (!where) throw new Failure("usage: client.mjs RUNTIME_FOLDER_OR_ENDPOINT_FILE PROJECT TARGET");
  const endpoint = findEndpoint(where);
  if (words.includes("--status")) {
    print(await askControl(endpoint, { type: "status_request" }));
    return 0;
  }
  return build(endpoint, project, target, cancelAt < 0 ? -1 : Number(words[cancelAt + 1]), profileAt < 0 ? 0 : Number(words[profileAt + 1]));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    process.exitCode = await main();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    console.error(error.message);
    process.exitCode = 3;
  }
}
