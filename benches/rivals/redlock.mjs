// The throughput of redlock: node redlock.mjs PACKAGE shared|own CLIENTS MILLISECONDS TTL PORT...
// Each client acquires and releases a key of its own, again and again. One connection to each server
// is shared by all, as its documentation has it, or each has its own, as clients on many machines do.
// Prints how many were acquired in a second.

import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(import.meta.url);
const [name, connections, clients, millis, ttl, ...ports] = process.argv.slice(2);
const { default: Redis } = await import("ioredis");
const loaded = require(name);
const Redlock = loaded.default ?? loaded;

const opened = [];
function connect() {
  const servers = ports.map((port) => new Redis(Number(port), "127.0.0.1"));
  opened.push(...servers);
  return new Redlock(servers, { retryCount: 0 });
}
const shared = connections === "shared" ? connect() : null;

const counted = { isOn: false, isOver: false, acquires: 0 };
async function run(n) {
  const redlock = shared ?? connect();
  // Version 4 calls it so.
  const acquire = (redlock.lock ?? redlock.acquire).bind(redlock);
  const release = async (lock) => (lock.unlock ?? lock.release).call(lock);
  const key = redlock.lock ? `redlock4:${n}` : [`redlock:${n}`];
  while (!counted.isOver) {
    const lock = await acquire(key, Number(ttl));
    if (counted.isOn) counted.acquires += 1;
    await release(lock);
  }
}

const runs = Array.from({ length: Number(clients) }, (_, n) => run(n));
await sleep(300);
counted.isOn = true;
const start = process.hrtime.bigint();
await sleep(Number(millis));
counted.isOn = false;
const seconds = Number(process.hrtime.bigint() - start) / 1e9;
counted.isOver = true;
await Promise.all(runs);
console.log((counted.acquires / seconds).toFixed(1));
opened.forEach((server) => server.disconnect());
