"""The line protocol of README.md, shared by the Python programs."""

import json
import sys
import time
import zlib


class KafkaFailure(Exception):
    """An error of the library with Kafka's name for it, where it has one."""

    def __init__(self, cls, kafka, message):
        super().__init__(message)
        self.cls, self.kafka = cls, kafka


def serve(family, version, handlers, describe):
    """Answers commands from stdin with `handlers[op](command)`; `describe(error)` makes a failure of an exception."""
    out = sys.stdout
    sys.stdout = sys.stderr

    def write(value):
        out.write(json.dumps(value) + "\n")
        out.flush()

    write({"ready": {"family": family, "version": version}})
    for line in sys.stdin:
        command = json.loads(line)
        reply = {"id": command["id"]}
        try:
            handler = handlers.get(command["op"])
            if handler is None:
                raise KafkaFailure("Unsupported", None, "unsupported: " + command["op"])
            reply["ok"] = handler(command) or {}
        except Exception as error:  # every failure is the caller's to judge
            failure = error if isinstance(error, KafkaFailure) else describe(error)
            reply["error"] = {"class": failure.cls, "kafka": failure.kafka, "message": str(failure)}
        write(reply)
        if command["op"] == "close":
            break


def value_of(key, size):
    """The key, a colon and dots up to `size`; the same in every family."""
    return (key + b":").ljust(size, b".")


def numbers(command, begin=0):
    """(number, partition) of each record to write, paced by `rate`."""
    rate, start = command.get("rate", 0), time.monotonic()
    for i in range(command["count"]):
        if rate:
            time.sleep(max(0.0, start + i / rate - time.monotonic()))
        number = command.get("first", 0) + begin + i
        partition = command.get("partition")
        yield number, number % command.get("partitions", 1) if partition is None else partition


class Written:
    """Offsets written, by partition."""

    def __init__(self):
        self.delivered, self.partitions = 0, {}

    def add(self, partition, offset):
        self.delivered += 1
        tally = self.partitions.setdefault(str(partition), {"count": 0})
        tally["count"] += 1
        if offset is not None and offset >= 0:
            tally["first_offset"] = min(tally.get("first_offset", offset), offset)
            tally["last_offset"] = max(tally.get("last_offset", offset), offset)

    def result(self):
        return {"delivered": self.delivered, "partitions": self.partitions}


class Read:
    """Records read, by partition."""

    def __init__(self):
        self.count, self.duplicates, self.keys, self.partitions = 0, 0, set(), {}

    def add(self, partition, offset, key, value):
        self.count += 1
        self.duplicates += key in self.keys
        self.keys.add(key)
        tally = self.partitions.setdefault(
            str(partition), {"count": 0, "first_offset": offset, "in_order": True, "crc": 0, "last": -1}
        )
        tally["count"] += 1
        tally["last_offset"] = offset
        if key is not None and key.isdigit():
            tally["in_order"] &= int(key) > tally["last"]
            tally["last"] = int(key)
        for part in (key, value):
            tally["crc"] = zlib.crc32(b"\0", zlib.crc32(part or b"", tally["crc"]))

    def result(self):
        partitions = {}
        for partition, tally in self.partitions.items():
            shown = {k: v for k, v in tally.items() if k not in ("crc", "last")}
            partitions[partition] = {**shown, "checksum": "%08x" % tally["crc"]}
        return {
            "count": self.count,
            "distinct": len(self.keys),
            "duplicates": self.duplicates,
            "partitions": partitions,
        }
