"""librdkafka through confluent-kafka; properties are librdkafka's."""

import time

import confluent_kafka
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from protocol import KafkaFailure, Read, Written, numbers, serve, value_of

COMMON = {}
# One Admin client for each `connect`: its futures fail when it is collected before they are done.
ADMIN = []


def describe(error):
    kafka = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(kafka, confluent_kafka.KafkaError):
        return KafkaFailure(type(error).__name__, None, str(error))
    name = kafka.name()
    # Codes below zero are librdkafka's own, e.g. _TRANSPORT.
    return KafkaFailure(name, name if kafka.code() > 0 else None, kafka.str())


def connect(c):
    COMMON.clear()
    ADMIN.clear()
    COMMON.update({"bootstrap.servers": c["bootstrap"], "client.id": c.get("client_id", "librdkafka")})
    sasl, tls = c.get("sasl"), c.get("tls_ca")
    COMMON["security.protocol"] = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")
    if sasl:
        COMMON.update({"sasl.mechanism": sasl["mechanism"], "sasl.username": sasl["username"]})
        COMMON["sasl.password"] = sasl["password"]
    if tls:
        COMMON["ssl.ca.location"] = tls
    COMMON.update(c.get("properties") or {})


def admin():
    if not ADMIN:
        ADMIN.append(AdminClient(COMMON))
    return ADMIN[0]


def wait(futures):
    return {key: future.result(timeout=40) for key, future in futures.items()}


def metadata(c):
    found = admin().list_topics(timeout=30)
    brokers = [{"id": b.id, "host": b.host, "port": b.port} for b in found.brokers.values()]
    topics = {
        name: {
            str(p.id): {"leader": p.leader, "replicas": p.replicas, "isr": sorted(p.isrs)}
            for p in found.topics[name].partitions.values()
        }
        for name in c.get("topics", [])
        if name in found.topics
    }
    return {
        "brokers": sorted(brokers, key=lambda b: b["id"]),
        "addresses": ["%s:%d" % (b["host"], b["port"]) for b in brokers],
        "controller": found.controller_id,
        "cluster_id": found.cluster_id,
        "topics": topics,
    }


def create_topics(c):
    wait(
        admin().create_topics(
            [
                NewTopic(t["name"], t.get("partitions", 1), t.get("replication", -1), config=t.get("configs") or {})
                for t in c["topics"]
            ]
        )
    )


def delete_topics(c):
    wait(admin().delete_topics(c["topics"]))


def producer(c, **more):
    config = {"linger.ms": 5, "delivery.timeout.ms": 60000, "acks": c.get("acks", "all")}
    config["compression.type"] = c.get("codec", "none")
    config["enable.idempotence"] = c.get("idempotent", False)
    if c.get("size", 0) > 500_000:
        config["message.max.bytes"] = min(1_000_000_000, c["size"] + 100_000)
    return Producer({**config, **COMMON, **more})


def send(p, c, written, begin=0):
    failures = []

    def done(error, message):
        if error is not None:
            failures.append(error)
        else:
            written.add(message.partition(), message.offset())

    headers = list((c.get("headers") or {}).items())
    for number, partition in numbers(c, begin):
        key = str(number).encode()
        value = value_of(key, c.get("size", 0))
        while True:
            try:
                p.produce(c["topic"], value, key, partition, on_delivery=done, headers=headers)
                break
            except BufferError:
                p.poll(0.1)
        p.poll(0)
    if p.flush(70) > 0:
        raise KafkaFailure("FlushTimeout", None, "records are still queued after 70 s")
    if failures:
        raise KafkaException(failures[0])


def produce(c):
    written = Written()
    send(producer(c), c, written)
    return written.result()


def transaction(c):
    p, written = producer(c, **{"transactional.id": c["transactional_id"]}), Written()
    p.init_transactions(40)
    for index, outcome in enumerate(c["outcomes"]):
        p.begin_transaction()
        send(p, c, written, index * c["count"])
        p.commit_transaction(40) if outcome == "commit" else p.abort_transaction(40)
    return {**written.result(), "outcomes": c["outcomes"]}


def partitions(c):
    found = admin().list_topics(c["topic"], timeout=30).topics[c["topic"]]
    if found.error is not None:
        raise KafkaException(found.error)
    return sorted(found.partitions)


def consume(c):
    config = {"enable.auto.commit": False, "auto.offset.reset": c.get("from", "earliest")}
    config["isolation.level"] = c.get("isolation", "read_uncommitted")
    config["group.id"] = c.get("group") or "unused"
    mode = c.get("mode", "classic")
    if mode != "assign":
        config["group.protocol"] = mode
    consumer = Consumer({**config, **COMMON})
    read, end = Read(), time.monotonic() + c.get("timeout_ms", 30000) / 1000
    try:
        if mode == "assign":
            at = confluent_kafka.OFFSET_BEGINNING if c.get("from") == "earliest" else confluent_kafka.OFFSET_END
            consumer.assign([TopicPartition(c["topic"], p, at) for p in partitions(c)])
        else:
            consumer.subscribe([c["topic"]])
        while read.count < c["count"] and time.monotonic() < end:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                # Passing troubles are librdkafka's to get over; it reports them all the same.
                if message.error().code() > 0 and not message.error().retriable():
                    raise KafkaException(message.error())
                continue
            read.add(message.partition(), message.offset(), message.key(), message.value())
        if c.get("commit") and read.count:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return read.result()


def commit(c):
    offsets = [TopicPartition(c["topic"], int(p), o) for p, o in c["offsets"].items()]
    wait(admin().alter_consumer_group_offsets([ConsumerGroupTopicPartitions(c["group"], offsets)]))


def committed(c):
    found = wait(admin().list_consumer_group_offsets([ConsumerGroupTopicPartitions(c["group"])]))
    listed = [p for group in found.values() for p in group.topic_partitions]
    return {"offsets": {str(p.partition): p.offset for p in listed if p.topic == c["topic"] and p.offset >= 0}}


def list_offsets(c):
    spec = OffsetSpec.earliest() if c.get("at") == "earliest" else OffsetSpec.latest()
    found = wait(admin().list_offsets({TopicPartition(c["topic"], p): spec for p in partitions(c)}))
    return {"offsets": {str(p.partition): info.offset for p, info in found.items()}}


serve(
    "librdkafka",
    "%s (confluent-kafka %s)" % (confluent_kafka.libversion()[0], confluent_kafka.version()),
    {
        "connect": connect,
        "metadata": metadata,
        "create_topics": create_topics,
        "delete_topics": delete_topics,
        "produce": produce,
        "transaction": transaction,
        "consume": consume,
        "commit": commit,
        "committed": committed,
        "list_offsets": list_offsets,
        "close": lambda c: {},
    },
    describe,
)
