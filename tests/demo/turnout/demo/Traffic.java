package turnout.demo;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.Node;

/**
 * The demo's client: writes numbered records through the gateway, reads them back through it, checks them, and meanwhile
 * compares the latency of single records sent directly and through the gateway.
 *
 * <p>Arguments: direct bootstrap, gateway bootstrap, topic, partitions, seconds, records a second, record size. Writes a
 * JSON object a second to stdout, and one with the outcome at the end.
 */
public final class Traffic {
    static final ObjectMapper JSON = new ObjectMapper();
    /** How long the reader may lag behind when the writer has ended. */
    private static final long CATCH_UP_SECONDS = 30;

    final AtomicLong errors = new AtomicLong();
    final AtomicReference<String> lastError = new AtomicReference<>();
    volatile boolean stopping;

    public static void main(String[] args) throws Exception {
        new Traffic().run(args);
        // A client thread that hangs in its close must not keep the program.
        System.exit(0);
    }

    private void run(String[] args) throws Exception {
        String direct = args[0];
        String gateway = args[1];
        String topic = args[2];
        int partitions = Integer.parseInt(args[3]);
        int seconds = Integer.parseInt(args[4]);
        int rate = Integer.parseInt(args[5]);
        int size = Integer.parseInt(args[6]);
        String probeTopic = topic + "-latency";

        TreeSet<String> told = new TreeSet<>();
        try (Admin admin = Admin.create(common(gateway))) {
            admin.createTopics(List.of(
                new NewTopic(topic, partitions, (short) 3), new NewTopic(probeTopic, 1, (short) 3)))
                .all().get(60, TimeUnit.SECONDS);
            for (Node node : admin.describeCluster().nodes().get(60, TimeUnit.SECONDS)) {
                told.add(node.host() + ":" + node.port());
            }
        }

        Writer writer = new Writer(this, gateway, topic, partitions, rate, size);
        Reader reader = new Reader(this, gateway, topic, partitions);
        Probe probe = new Probe(this, direct, gateway, probeTopic);
        Thread reading = start(reader, "reader");
        Thread probing = start(probe, "probe");
        reader.awaitAssignment();
        probe.awaitWarm();
        Thread writing = start(writer, "writer");

        long begin = System.nanoTime();
        for (int second = 1; second <= seconds; second++) {
            TimeUnit.NANOSECONDS.sleep(begin + second * 1_000_000_000L - System.nanoTime());
            ObjectNode line = totals(writer, reader);
            line.put("seconds", second);
            probe.recent(line);
            print(line);
        }
        stopping = true;
        writing.join();
        probing.join();
        long until = System.nanoTime() + CATCH_UP_SECONDS * 1_000_000_000L;
        while (reader.read.get() < writer.acknowledged.get() && System.nanoTime() < until) {
            Thread.sleep(20);
        }
        // Long enough for a record that came twice to show.
        Thread.sleep(500);
        reader.stop();
        reading.join(10_000);

        ObjectNode line = totals(writer, reader);
        line.put("seconds", seconds);
        probe.all(line);
        ObjectNode outcome = line.putObject("outcome");
        outcome.put("missing", reader.missing(writer.sequences()));
        outcome.put("duplicates", reader.duplicates.get());
        outcome.put("out_of_order", reader.outOfOrder.get());
        ArrayNode addresses = outcome.putArray("addresses");
        told.forEach(addresses::add);
        print(line);
    }

    private ObjectNode totals(Writer writer, Reader reader) {
        ObjectNode line = JSON.createObjectNode();
        line.put("sent", writer.acknowledged.get());
        line.put("read", reader.read.get());
        line.put("bytes", reader.bytes.get());
        line.put("errors", errors.get());
        if (lastError.get() != null) {
            line.put("last_error", lastError.get());
        }
        return line;
    }

    void failed(String what, Throwable error) {
        errors.incrementAndGet();
        lastError.set(what + ": " + error);
    }

    static Properties common(String bootstrap) {
        Properties properties = new Properties();
        properties.putAll(Map.of("bootstrap.servers", bootstrap, "client.id", "turnout-demo"));
        return properties;
    }

    private static Thread start(Runnable job, String name) {
        Thread thread = new Thread(job, name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void print(ObjectNode line) {
        System.out.println(line);
        System.out.flush();
    }
}
