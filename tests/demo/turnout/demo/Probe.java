package turnout.demo;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends single records to one partition, by turns directly and through the gateway, and measures how long each waits for
 * its acknowledgement. The same leader and the same moment for both: what differs is the way.
 */
final class Probe implements Runnable {
    private static final long INTERVAL_NANOS = 10_000_000;
    private static final int WARM = 100;

    private final Traffic traffic;
    private final String topic;
    private final Way direct;
    private final Way gateway;
    private final CountDownLatch warm = new CountDownLatch(1);

    Probe(Traffic traffic, String direct, String gateway, String topic) {
        this.traffic = traffic;
        this.topic = topic;
        this.direct = new Way(direct);
        this.gateway = new Way(gateway);
    }

    void awaitWarm() throws Exception {
        if (!warm.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no latency was measured within a minute: " + traffic.lastError.get());
        }
    }

    @Override
    public void run() {
        byte[] value = new byte[100];
        try (direct.producer; gateway.producer) {
            long due = System.nanoTime();
            for (int n = 0; !traffic.stopping; n++) {
                for (Way way : new Way[] {direct, gateway}) {
                    due = Math.max(due + INTERVAL_NANOS, System.nanoTime());
                    TimeUnit.NANOSECONDS.sleep(due - System.nanoTime());
                    long begin = System.nanoTime();
                    way.producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
                    if (n >= WARM) {
                        way.add((System.nanoTime() - begin) / 1000);
                    }
                }
                if (n == WARM) {
                    warm.countDown();
                }
            }
        } catch (Exception error) {
            traffic.failed("measuring latency", error);
        }
    }

    /** Percentiles since the last call. */
    void recent(ObjectNode line) {
        direct.write(line.putObject("direct"), true);
        gateway.write(line.putObject("gateway"), true);
    }

    /** Percentiles of the whole run. */
    void all(ObjectNode line) {
        direct.write(line.putObject("direct"), false);
        gateway.write(line.putObject("gateway"), false);
    }

    private static final class Way {
        final KafkaProducer<byte[], byte[]> producer;
        private long[] micros = new long[1024];
        private int count;
        private int told;

        Way(String bootstrap) {
            Properties properties = Traffic.common(bootstrap);
            properties.put("key.serializer", ByteArraySerializer.class);
            properties.put("value.serializer", ByteArraySerializer.class);
            properties.put("acks", "all");
            properties.put("linger.ms", "0");
            producer = new KafkaProducer<>(properties);
        }

        synchronized void add(long value) {
            if (count == micros.length) {
                micros = Arrays.copyOf(micros, count * 2);
            }
            micros[count++] = value;
        }

        synchronized void write(ObjectNode node, boolean onlyRecent) {
            long[] sorted = Arrays.copyOfRange(micros, onlyRecent ? told : 0, count);
            told = count;
            Arrays.sort(sorted);
            node.put("p50_us", at(sorted, 50)).put("p99_us", at(sorted, 99));
        }

        private static long at(long[] sorted, int percent) {
            return sorted.length == 0 ? 0 : sorted[Math.max(0, (sorted.length * percent + 99) / 100 - 1)];
        }
    }
}
