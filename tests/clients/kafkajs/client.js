// kafkajs behind the line protocol. `properties` are fields of its top-level configuration.
'use strict';

const fs = require('node:fs');
const readline = require('node:readline');
const zlib = require('node:zlib');
const { Kafka, CompressionTypes, logLevel } = require('kafkajs');
const { version } = require('kafkajs/package.json');

const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP };
// kafkajs sends one request a partition list; smaller sends keep a slow cluster within its request timeout.
const SEND_AT_ONCE = 200;

let kafka;
let admin;

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

function connect(c) {
  const config = {
    clientId: c.client_id || 'kafkajs',
    brokers: c.bootstrap.split(','),
    logLevel: logLevel.ERROR,
    logCreator: () => ({ label, log }) => process.stderr.write(`${label} ${log.message} ${log.error || ''}\n`),
    connectionTimeout: 5000,
    requestTimeout: 20000,
    retry: { initialRetryTime: 100, maxRetryTime: 2000, retries: 20 },
    ...c.properties,
  };
  if (c.sasl) {
    config.sasl = {
      mechanism: c.sasl.mechanism.toLowerCase(), username: c.sasl.username, password: c.sasl.password,
    };
  }
  if (c.tls_ca) {
    config.ssl = { ca: [fs.readFileSync(c.tls_ca, 'utf8')] };
  }
  kafka = new Kafka(config);
  const previous = admin;
  admin = undefined;
  return previous && previous.disconnect();
}

async function connected() {
  if (!admin) {
    const fresh = kafka.admin();
    await fresh.connect();
    admin = fresh;
  }
  return admin;
}

async function metadata(c) {
  const client = await connected();
  const cluster = await client.describeCluster();
  const brokers = cluster.brokers.map((b) => ({ id: b.nodeId, host: b.host, port: b.port }));
  const topics = {};
  if (c.topics && c.topics.length > 0) {
    const found = await client.fetchTopicMetadata({ topics: c.topics });
    for (const topic of found.topics) {
      topics[topic.name] = {};
      for (const p of topic.partitions) {
        topics[topic.name][p.partitionId] = { leader: p.leader, replicas: p.replicas, isr: p.isr.slice().sort() };
      }
    }
  }
  return {
    brokers: brokers.sort((a, b) => a.id - b.id),
    addresses: brokers.map((b) => `${b.host}:${b.port}`),
    controller: cluster.controller,
    cluster_id: cluster.clusterId,
    topics,
  };
}

async function createTopics(c) {
  const topics = c.topics.map((t) => ({
    topic: t.name,
    numPartitions: t.partitions || 1,
    replicationFactor: t.replication === undefined ? -1 : t.replication,
    configEntries: Object.entries(t.configs || {}).map(([name, value]) => ({ name, value: String(value) })),
  }));
  const made = await (await connected()).createTopics({ topics, timeout: 15000, waitForLeaders: true });
  if (!made) {
    throw Object.assign(new Error('the topic exists already'), { type: 'TOPIC_ALREADY_EXISTS' });
  }
}

async function deleteTopics(c) {
  await (await connected()).deleteTopics({ topics: c.topics });
}

class Written {
  constructor() {
    this.delivered = 0;
    this.partitions = {};
  }

  add(partition, baseOffset, count) {
    this.delivered += count;
    const tally = this.partitions[partition] || (this.partitions[partition] = { count: 0 });
    tally.count += count;
    if (baseOffset >= 0) {
      tally.first_offset = Math.min(tally.first_offset ?? baseOffset, baseOffset);
      tally.last_offset = Math.max(tally.last_offset ?? 0, baseOffset + count - 1);
    }
  }
}

async function send(target, c, begin, written) {
  const acks = { 0: 0, 1: 1, all: -1 }[c.acks || 'all'];
  const compression = CODECS[c.codec || 'none'];
  if (compression === undefined) {
    throw new Error(`unsupported: codec ${c.codec}`);
  }
  const perSend = c.rate ? Math.max(1, Math.min(SEND_AT_ONCE, Math.floor(c.rate / 10))) : SEND_AT_ONCE;
  const atOnce = Math.max(1, Math.min(perSend, Math.floor(4_000_000 / Math.max(1, c.size || 0))));
  const start = Date.now();
  for (let i = 0; i < c.count; i += atOnce) {
    if (c.rate) {
      await sleep(Math.max(0, start + (i * 1000) / c.rate - Date.now()));
    }
    const messages = [];
    const counts = {};
    for (let j = i; j < Math.min(c.count, i + atOnce); j++) {
      const number = (c.first || 0) + begin + j;
      const partition = c.partition ?? number % (c.partitions || 1);
      const key = String(number);
      messages.push({ partition, key, value: `${key}:`.padEnd(c.size || 0, '.'), headers: c.headers || {} });
      counts[partition] = (counts[partition] || 0) + 1;
    }
    const answers = await target.send({ topic: c.topic, acks, compression, messages, timeout: 20000 });
    const offsets = {};
    for (const answer of answers || []) {
      offsets[answer.partition] = Number(answer.baseOffset);
    }
    for (const [partition, count] of Object.entries(counts)) {
      written.add(partition, offsets[partition] ?? -1, count);
    }
  }
}

async function produce(c) {
  const producer = kafka.producer({ idempotent: Boolean(c.idempotent), allowAutoTopicCreation: false });
  const written = new Written();
  await producer.connect();
  try {
    await send(producer, c, 0, written);
  } finally {
    await producer.disconnect();
  }
  return written;
}

async function transaction(c) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId: c.transactional_id });
  const written = new Written();
  await producer.connect();
  try {
    for (const [index, outcome] of c.outcomes.entries()) {
      const open = await producer.transaction();
      await send(open, c, index * c.count, written);
      await (outcome === 'commit' ? open.commit() : open.abort());
    }
  } finally {
    await producer.disconnect();
  }
  return { ...written, outcomes: c.outcomes };
}

class Read {
  constructor() {
    this.count = 0;
    this.duplicates = 0;
    this.keys = new Set();
    this.partitions = {};
  }

  add(partition, offset, key, value) {
    const text = key === null ? null : key.toString();
    this.count += 1;
    this.duplicates += this.keys.has(text) ? 1 : 0;
    this.keys.add(text);
    const tally = this.partitions[partition]
      || (this.partitions[partition] = { count: 0, first_offset: offset, in_order: true, crc: 0, last: -1 });
    tally.count += 1;
    tally.last_offset = offset;
    if (/^\d{1,15}$/.test(text || '')) {
      tally.in_order = tally.in_order && Number(text) > tally.last;
      tally.last = Number(text);
    }
    for (const part of [key || Buffer.alloc(0), Buffer.alloc(1), value || Buffer.alloc(0), Buffer.alloc(1)]) {
      tally.crc = zlib.crc32(part, tally.crc);
    }
  }

  result() {
    const partitions = {};
    for (const [partition, { crc, last, ...shown }] of Object.entries(this.partitions)) {
      partitions[partition] = { ...shown, checksum: crc.toString(16).padStart(8, '0') };
    }
    return { count: this.count, distinct: this.keys.size, duplicates: this.duplicates, partitions };
  }
}

async function consume(c) {
  // kafkajs has no consumer without a group: reading all partitions is a group of its own.
  const assign = c.mode === 'assign';
  const groupId = assign ? `assign-${process.pid}-${Date.now()}` : c.group;
  const consumer = kafka.consumer({
    groupId, maxWaitTimeInMs: 500, readUncommitted: c.isolation !== 'read_committed', sessionTimeout: 20000,
    allowAutoTopicCreation: false,
  });
  const read = new Read();
  const next = {};
  await consumer.connect();
  try {
    await consumer.subscribe({ topics: [c.topic], fromBeginning: c.from !== 'latest' });
    const enough = new Promise((done, fail) => {
      setTimeout(done, c.timeout_ms || 30000);
      consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || fail(payload.error));
      consumer.run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          if (read.count < c.count) {
            read.add(partition, Number(message.offset), message.key, message.value);
            next[partition] = String(Number(message.offset) + 1);
          }
          if (read.count >= c.count) {
            done();
          }
        },
      }).catch(fail);
    });
    await enough;
    if (c.commit && read.count > 0) {
      const offsets = Object.entries(next).map(([partition, offset]) => (
        { topic: c.topic, partition: Number(partition), offset }
      ));
      await consumer.commitOffsets(offsets);
    }
  } finally {
    await consumer.disconnect();
    if (assign) {
      await (await connected()).deleteGroups([groupId]).catch(() => {});
    }
  }
  return read.result();
}

async function commit(c) {
  const partitions = Object.entries(c.offsets).map(([partition, offset]) => (
    { partition: Number(partition), offset: String(offset) }
  ));
  await (await connected()).setOffsets({ groupId: c.group, topic: c.topic, partitions });
}

async function committed(c) {
  const found = await (await connected()).fetchOffsets({ groupId: c.group, topics: [c.topic] });
  const offsets = {};
  for (const { partition, offset } of found[0].partitions) {
    if (Number(offset) >= 0) {
      offsets[partition] = Number(offset);
    }
  }
  return { offsets };
}

async function listOffsets(c) {
  const offsets = {};
  for (const { partition, high, low } of await (await connected()).fetchTopicOffsets(c.topic)) {
    offsets[partition] = Number(c.at === 'earliest' ? low : high);
  }
  return { offsets };
}

const handlers = {
  connect, metadata, create_topics: createTopics, delete_topics: deleteTopics, produce, transaction, consume, commit,
  committed, list_offsets: listOffsets, close: () => admin && admin.disconnect(),
};

function describe(error) {
  let cause = error;
  while (!cause.type && (cause.cause || (cause.errors && cause.errors[0]))) {
    cause = cause.cause || cause.errors[0];
  }
  return { class: cause.name || 'Error', kafka: cause.type || null, message: String(cause.message) };
}

function write(value) {
  process.stdout.write(`${JSON.stringify(value)}\n`);
}

async function main() {
  write({ ready: { family: 'kafkajs', version } });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    const reply = { id: command.id };
    try {
      const handler = handlers[command.op];
      if (!handler) {
        throw new Error(`unsupported: ${command.op}`);
      }
      reply.ok = (await handler(command)) || {};
    } catch (error) {
      reply.error = describe(error);
    }
    write(reply);
    if (command.op === 'close') {
      break;
    }
  }
  process.exit(0);
}

main();
