package turnout.demo;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Writes records to the partitions in turn; each tells its partition and its number within it. */
final class Writer implements Runnable {
    final AtomicLong acknowledged = new AtomicLong();

    private final Traffic traffic;
    private final Properties properties;
    private final String topic;
    private final int rate;
    private final int size;
    private final long[] next;

    Writer(Traffic traffic, String bootstrap, String topic, int partitions, int rate, int size) {
        this.traffic = traffic;
        this.topic = topic;
        this.rate = rate;
        this.size = size;
        next = new long[partitions];
        properties = Traffic.common(bootstrap);
        properties.put("key.serializer", ByteArraySerializer.class);
        properties.put("value.serializer", ByteArraySerializer.class);
        properties.put("acks", "all");
        properties.put("enable.idempotence", "true");
    }

    @Override
    public void run() {
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties)) {
            long begin = System.nanoTime();
            for (long n = 0; !traffic.stopping; n++) {
                long wait = begin + n * 1_000_000_000L / rate - System.nanoTime();
                if (wait > 0) {
                    LockSupport.parkNanos(wait);
                }
                int partition = (int) (n % next.length);
                byte[] value = value(partition, next[partition]++, size);
                producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
                    if (error == null) {
                        acknowledged.incrementAndGet();
                    } else {
                        traffic.failed("writing", error);
                    }
                });
            }
            producer.flush();
        } catch (Exception error) {
            traffic.failed("the writer", error);
        }
    }

    /** Records written to each partition. To be read when the thread has ended. */
    long[] sequences() {
        return next.clone();
    }

    /** `partition:sequence:` and dots up to the size. */
    static byte[] value(int partition, long sequence, int size) {
        byte[] head = (partition + ":" + sequence + ":").getBytes(StandardCharsets.US_ASCII);
        byte[] value = Arrays.copyOf(head, Math.max(size, head.length));
        Arrays.fill(value, head.length, value.length, (byte) '.');
        return value;
    }
}
