package turnout.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** `consume` and `share_consume`. */
final class Consuming {
    private final Properties properties = new Properties();
    private final JsonNode c;
    private final Map<Integer, Tally> tallies = new TreeMap<>();
    private final Set<String> keys = new HashSet<>();
    private long count;
    private long duplicates;

    /** What was read from one partition. */
    private static final class Tally {
        long count;
        long firstOffset = -1;
        long lastOffset = -1;
        long lastNumber = -1;
        boolean inOrder = true;
        final CRC32 checksum = new CRC32();
    }

    Consuming(Properties common, JsonNode command) {
        c = command;
        properties.putAll(common);
        properties.put("key.deserializer", ByteArrayDeserializer.class);
        properties.put("value.deserializer", ByteArrayDeserializer.class);
    }

    JsonNode run() {
        String mode = c.path("mode").asText("classic");
        properties.put("auto.offset.reset", c.path("from").asText("earliest"));
        properties.put("enable.auto.commit", "false");
        properties.put("isolation.level", c.path("isolation").asText("read_uncommitted"));
        if (!mode.equals("assign")) {
            properties.put("group.id", c.path("group").asText());
            properties.put("group.protocol", mode);
        }
        String topic = c.path("topic").asText();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
            if (mode.equals("assign")) {
                List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(p -> new TopicPartition(topic, p.partition())).toList();
                consumer.assign(partitions);
                if (c.path("from").asText("earliest").equals("earliest")) {
                    consumer.seekToBeginning(partitions);
                } else {
                    consumer.seekToEnd(partitions);
                }
            } else {
                consumer.subscribe(List.of(topic));
            }
            for (long end = end(); count < wanted() && System.currentTimeMillis() < end; ) {
                take(consumer.poll(Duration.ofMillis(200)));
            }
            if (c.path("commit").asBoolean(false)) {
                consumer.commitSync();
            }
        }
        return result();
    }

    JsonNode share() {
        properties.put("group.id", c.path("group").asText());
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(c.path("topic").asText()));
            for (long end = end(); count < wanted() && System.currentTimeMillis() < end; ) {
                take(consumer.poll(Duration.ofMillis(200)));
                consumer.commitSync();
            }
        }
        return result();
    }

    private long end() {
        return System.currentTimeMillis() + c.path("timeout_ms").asLong(30_000);
    }

    private long wanted() {
        return c.path("count").asLong(Long.MAX_VALUE);
    }

    private void take(ConsumerRecords<byte[], byte[]> records) {
        for (ConsumerRecord<byte[], byte[]> record : records) {
            Tally tally = tallies.computeIfAbsent(record.partition(), p -> new Tally());
            String key = record.key() == null ? "" : new String(record.key(), StandardCharsets.UTF_8);
            count++;
            tally.count++;
            if (tally.firstOffset < 0) {
                tally.firstOffset = record.offset();
            }
            tally.lastOffset = record.offset();
            long number = key.matches("\\d{1,18}") ? Long.parseLong(key) : -1;
            if (number >= 0) {
                tally.inOrder &= number > tally.lastNumber;
                tally.lastNumber = number;
            }
            if (!keys.add(key)) {
                duplicates++;
            }
            update(tally.checksum, record.key());
            update(tally.checksum, record.value());
        }
    }

    private static void update(CRC32 checksum, byte[] bytes) {
        if (bytes != null) {
            checksum.update(bytes);
        }
        checksum.update(0);
    }

    private JsonNode result() {
        ObjectNode result = Main.JSON.createObjectNode();
        result.put("count", count).put("distinct", keys.size()).put("duplicates", duplicates);
        ObjectNode partitions = result.putObject("partitions");
        tallies.forEach((partition, t) -> partitions.putObject(String.valueOf(partition))
            .put("count", t.count).put("first_offset", t.firstOffset).put("last_offset", t.lastOffset)
            .put("in_order", t.inOrder).put("checksum", String.format("%08x", t.checksum.getValue())));
        return result;
    }
}
