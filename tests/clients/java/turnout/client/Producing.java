package turnout.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** `produce` and `transaction`. */
final class Producing {
    private final Properties properties = new Properties();
    private final JsonNode c;
    private final Map<Integer, long[]> offsets = new TreeMap<>();
    private long delivered;

    Producing(Properties common, JsonNode command) {
        c = command;
        properties.putAll(common);
        properties.put("key.serializer", ByteArraySerializer.class);
        properties.put("value.serializer", ByteArraySerializer.class);
        properties.putIfAbsent("linger.ms", "5");
        properties.putIfAbsent("delivery.timeout.ms", "60000");
        properties.put("acks", c.path("acks").asText("all"));
        properties.put("compression.type", c.path("codec").asText("none"));
        properties.put("enable.idempotence", String.valueOf(c.path("idempotent").asBoolean(false)));
        int size = c.path("size").asInt(0);
        if (size > 500_000) {
            properties.putIfAbsent("max.request.size", String.valueOf(size + 100_000));
            properties.putIfAbsent("buffer.memory", String.valueOf(Math.max(33_554_432L, 3L * size)));
        }
    }

    JsonNode run() throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties)) {
            send(producer, c.path("first").asLong(0));
            return result();
        }
    }

    JsonNode transactions() throws Exception {
        properties.put("enable.idempotence", "true");
        properties.put("acks", "all");
        properties.put("transactional.id", c.path("transactional_id").asText());
        properties.putIfAbsent("max.block.ms", "40000");
        ArrayNode outcomes = Main.JSON.createArrayNode();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties)) {
            producer.initTransactions();
            long first = c.path("first").asLong(0);
            for (JsonNode outcome : c.path("outcomes")) {
                producer.beginTransaction();
                send(producer, first);
                first += c.path("count").asLong();
                if (outcome.asText().equals("commit")) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                outcomes.add(outcome.asText());
            }
        }
        ObjectNode result = result();
        result.set("outcomes", outcomes);
        return result;
    }

    private void send(KafkaProducer<byte[], byte[]> producer, long first) throws Exception {
        String topic = c.path("topic").asText();
        long count = c.path("count").asLong();
        int partitions = c.path("partitions").asInt(1);
        long rate = c.path("rate").asLong(0);
        long begin = System.nanoTime();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (long i = 0; i < count; i++) {
            if (rate > 0) {
                long due = begin + i * 1_000_000_000L / rate;
                while (System.nanoTime() < due) {
                    LockSupport.parkNanos(due - System.nanoTime());
                }
            }
            long number = first + i;
            int partition = c.hasNonNull("partition") ? c.path("partition").asInt() : (int) (number % partitions);
            byte[] key = String.valueOf(number).getBytes(StandardCharsets.UTF_8);
            ProducerRecord<byte[], byte[]> record =
                new ProducerRecord<>(topic, partition, key, value(key, c.path("size").asInt(0)));
            c.path("headers").fields().forEachRemaining(e ->
                record.headers().add(e.getKey(), e.getValue().asText().getBytes(StandardCharsets.UTF_8)));
            sent.add(producer.send(record));
            if (sent.size() >= 10_000) {
                settle(sent);
            }
        }
        producer.flush();
        settle(sent);
    }

    private void settle(List<Future<RecordMetadata>> sent) throws Exception {
        for (Future<RecordMetadata> future : sent) {
            RecordMetadata metadata;
            try {
                metadata = future.get(70, TimeUnit.SECONDS);
            } catch (ExecutionException error) {
                throw (Exception) error.getCause();
            }
            delivered++;
            long[] range = offsets.computeIfAbsent(metadata.partition(), p -> new long[] {Long.MAX_VALUE, -1, 0});
            // acks=0 tells no offset.
            if (metadata.hasOffset()) {
                range[0] = Math.min(range[0], metadata.offset());
                range[1] = Math.max(range[1], metadata.offset());
            }
            range[2]++;
        }
        sent.clear();
    }

    private ObjectNode result() {
        ObjectNode result = Main.JSON.createObjectNode();
        result.put("delivered", delivered);
        ObjectNode partitions = result.putObject("partitions");
        offsets.forEach((partition, range) -> {
            ObjectNode node = partitions.putObject(String.valueOf(partition)).put("count", range[2]);
            if (range[1] >= 0) {
                node.put("first_offset", range[0]).put("last_offset", range[1]);
            }
        });
        return result;
    }

    /** The key, a colon and dots up to the size; the same in every family. */
    static byte[] value(byte[] key, int size) {
        byte[] value = new byte[Math.max(size, key.length + 1)];
        Arrays.fill(value, (byte) '.');
        System.arraycopy(key, 0, value, 0, key.length);
        value[key.length] = ':';
        return value;
    }
}
