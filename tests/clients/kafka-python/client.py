"""kafka-python; properties are keyword arguments of its classes."""

import logging
import sys
import time

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, OffsetSpec, TopicPartition
from kafka.errors import BrokerResponseError, RebalanceInProgressError

from protocol import KafkaFailure, Read, Written, numbers, serve, value_of

COMMON = {}
MORE = {}
ADMIN = []


def describe(error):
    name = getattr(error, "message", None) if isinstance(error, BrokerResponseError) else None
    return KafkaFailure(type(error).__name__, name if name and name.isupper() else None, str(error))


def connect(c):
    for admin_client in ADMIN:
        admin_client.close()
    ADMIN.clear()
    COMMON.clear()
    MORE.clear()
    COMMON.update(bootstrap_servers=c["bootstrap"].split(","), client_id=c.get("client_id", "kafka-python"))
    sasl, tls = c.get("sasl"), c.get("tls_ca")
    COMMON["security_protocol"] = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")
    if sasl:
        COMMON.update(sasl_mechanism=sasl["mechanism"], sasl_plain_username=sasl["username"])
        COMMON["sasl_plain_password"] = sasl["password"]
    if tls:
        COMMON["ssl_cafile"] = tls
    MORE.update(c.get("properties") or {})


def config(cls, **own):
    """Of the properties given, those this class knows."""
    known = cls.DEFAULT_CONFIG
    return {**own, **COMMON, **{key: value for key, value in MORE.items() if key in known}}


def admin():
    if not ADMIN:
        ADMIN.append(KafkaAdminClient(**config(KafkaAdminClient)))
    return ADMIN[0]


def metadata(c):
    cluster = admin().describe_cluster()
    brokers = [{"id": b["broker_id"], "host": b["host"], "port": b["port"]} for b in cluster["brokers"]]
    topics = {}
    for topic in admin().describe_topics(c.get("topics") or []) if c.get("topics") else []:
        topics[topic["name"]] = {
            str(p["partition_index"]): {
                "leader": p["leader_id"],
                "replicas": p["replica_nodes"],
                "isr": sorted(p["isr_nodes"]),
            }
            for p in topic["partitions"]
        }
    return {
        "brokers": sorted(brokers, key=lambda b: b["id"]),
        "addresses": ["%s:%d" % (b["host"], b["port"]) for b in brokers],
        "controller": cluster.get("controller_id"),
        "cluster_id": cluster.get("cluster_id"),
        "topics": topics,
    }


def create_topics(c):
    admin().create_topics(
        {
            t["name"]: {
                "num_partitions": t.get("partitions", 1),
                "replication_factor": t.get("replication", -1),
                "configs": t.get("configs") or {},
            }
            for t in c["topics"]
        }
    )


def delete_topics(c):
    admin().delete_topics(c["topics"])


def producer(c, **more):
    acks = {"0": 0, "1": 1, "all": "all"}[c.get("acks", "all")]
    codec = c.get("codec", "none")
    own = {"linger_ms": 5, "acks": acks, "compression_type": None if codec == "none" else codec}
    own["enable_idempotence"] = c.get("idempotent", False)
    own["delivery_timeout_ms"] = 60000
    if c.get("size", 0) > 500_000:
        own.update(max_request_size=c["size"] + 100_000)
    return KafkaProducer(**{**config(KafkaProducer, **own), **more})


def send(p, c, written, begin=0):
    headers = [(key, value.encode()) for key, value in (c.get("headers") or {}).items()]
    sent = []
    for number, partition in numbers(c, begin):
        key = str(number).encode()
        value = value_of(key, c.get("size", 0))
        sent.append(p.send(c["topic"], value=value, key=key, headers=headers, partition=partition))
    p.flush(70)
    for future in sent:
        metadata_ = future.get(timeout=70)
        written.add(metadata_.partition, metadata_.offset)


def produce(c):
    p, written = producer(c), Written()
    try:
        send(p, c, written)
    finally:
        p.close(timeout=10)
    return written.result()


def transaction(c):
    p, written = producer(c, transactional_id=c["transactional_id"], enable_idempotence=True), Written()
    try:
        p.init_transactions()
        for index, outcome in enumerate(c["outcomes"]):
            p.begin_transaction()
            send(p, c, written, index * c["count"])
            p.commit_transaction() if outcome == "commit" else p.abort_transaction()
    finally:
        p.close(timeout=10)
    return {**written.result(), "outcomes": c["outcomes"]}


def partitions(c):
    found = admin().describe_topics([c["topic"]])
    return [TopicPartition(c["topic"], p["partition_index"]) for t in found for p in t["partitions"]]


def consume(c):
    own = {"enable_auto_commit": False, "auto_offset_reset": c.get("from", "earliest")}
    own["isolation_level"] = c.get("isolation", "read_uncommitted")
    mode = c.get("mode", "classic")
    if mode != "assign":
        own["group_id"] = c["group"]
        if mode == "consumer":
            own["group_protocol"] = "consumer"
    consumer = KafkaConsumer(**config(KafkaConsumer, **own))
    read, end = Read(), time.monotonic() + c.get("timeout_ms", 30000) / 1000
    next_offsets = {}
    try:
        if mode == "assign":
            assigned = partitions(c)
            consumer.assign(assigned)
            if c.get("from") == "earliest":
                consumer.seek_to_beginning(*assigned)
            else:
                consumer.seek_to_end(*assigned)
        else:
            # kafka-python 3.0.12 may join before it knows the topic, assign nothing, and never look again: the metadata
            # it compares with has come in between. Directly as well.
            consumer.partitions_for_topic(c["topic"])
            consumer.subscribe([c["topic"]])
        while read.count < c["count"] and time.monotonic() < end:
            for partition, records in consumer.poll(timeout_ms=200).items():
                for record in records:
                    read.add(record.partition, record.offset, record.key, record.value)
                    next_offsets[partition] = OffsetAndMetadata(record.offset + 1, "", -1)
        while c.get("commit") and read.count:
            try:
                consumer.commit(next_offsets)
                break
            except RebalanceInProgressError:
                # The group forms once more where the leader's metadata had changed since it assigned. The remedy is
                # the one that the error names: poll, and commit again.
                if time.monotonic() > end:
                    raise
                consumer.poll(timeout_ms=200)
    finally:
        consumer.close(autocommit=False)
    return read.result()


def commit(c):
    offsets = {TopicPartition(c["topic"], int(p)): OffsetAndMetadata(o, "", -1) for p, o in c["offsets"].items()}
    for error in admin().alter_group_offsets(c["group"], offsets).values():
        if getattr(error, "errno", 0) != 0:
            raise error()


def committed(c):
    found = admin().list_group_offsets([c["group"]])[c["group"]]
    return {"offsets": {str(tp.partition): o.offset for tp, o in found.items() if tp.topic == c["topic"] and o.offset >= 0}}


def list_offsets(c):
    at = OffsetSpec.EARLIEST if c.get("at") == "earliest" else OffsetSpec.LATEST
    found = admin().list_partition_offsets({tp: at for tp in partitions(c)})
    return {"offsets": {str(tp.partition): o.offset for tp, o in found.items()}}


def close(c):
    for admin_client in ADMIN:
        admin_client.close()


# A failing test prints the end of it.
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")

serve(
    "kafka-python",
    kafka.__version__,
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
        "close": close,
    },
    describe,
)
