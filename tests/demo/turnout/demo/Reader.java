package turnout.demo;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads as a member of a group and checks that each partition's numbers come one after the other. */
final class Reader implements Runnable {
    final AtomicLong read = new AtomicLong();
    final AtomicLong bytes = new AtomicLong();
    final AtomicLong duplicates = new AtomicLong();
    final AtomicLong outOfOrder = new AtomicLong();

    private final Traffic traffic;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final String topic;
    /** The number that comes next. */
    private final long[] next;
    private final CountDownLatch assigned = new CountDownLatch(1);

    Reader(Traffic traffic, String bootstrap, String topic, int partitions) {
        this.traffic = traffic;
        this.topic = topic;
        next = new long[partitions];
        Properties properties = Traffic.common(bootstrap);
        properties.put("key.deserializer", ByteArrayDeserializer.class);
        properties.put("value.deserializer", ByteArrayDeserializer.class);
        properties.put("group.id", topic + "-readers");
        properties.put("auto.offset.reset", "earliest");
        consumer = new KafkaConsumer<>(properties);
    }

    void awaitAssignment() throws Exception {
        if (!assigned.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the reader got no partitions within a minute");
        }
    }

    void stop() {
        consumer.wakeup();
    }

    @Override
    public void run() {
        try (consumer) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    assigned.countDown();
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}
            });
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    check(record);
                }
            }
        } catch (WakeupException end) {
            // Asked to stop.
        } catch (Exception error) {
            traffic.failed("the reader", error);
        }
    }

    private void check(ConsumerRecord<byte[], byte[]> record) {
        bytes.addAndGet(record.value().length);
        String[] parts = new String(record.value(), StandardCharsets.US_ASCII).split(":", 3);
        int partition = Integer.parseInt(parts[0]);
        long sequence = Long.parseLong(parts[1]);
        byte[] expected = Writer.value(partition, sequence, record.value().length);
        if (partition != record.partition() || !Arrays.equals(record.value(), expected)) {
            traffic.failed("reading", new IllegalStateException(
                "partition " + record.partition() + " offset " + record.offset() + " holds another record's content"));
            return;
        }
        if (sequence < next[partition]) {
            // Either it came before, or one with a higher number overtook it and was counted then.
            duplicates.incrementAndGet();
            return;
        }
        if (sequence > next[partition]) {
            outOfOrder.incrementAndGet();
        }
        next[partition] = sequence + 1;
        read.incrementAndGet();
    }

    /** Records that were written and not read. To be called when both threads have ended. */
    long missing(long[] written) {
        return Arrays.stream(written).sum() - read.get();
    }
}
