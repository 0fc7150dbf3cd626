package turnout.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;

/** What one `connect` set, and the operations that need an Admin client or only dispatch. */
final class Session {
    private final Properties common = new Properties();
    private Admin admin;

    JsonNode run(JsonNode c) throws Exception {
        switch (c.path("op").asText()) {
            case "connect": return connect(c);
            case "metadata": return metadata(c);
            case "create_topics": return createTopics(c);
            case "delete_topics": return deleteTopics(c);
            case "produce": return new Producing(common, c).run();
            case "transaction": return new Producing(common, c).transactions();
            case "consume": return new Consuming(common, c).run();
            case "share_consume": return new Consuming(common, c).share();
            case "commit": return commit(c);
            case "committed": return committed(c);
            case "list_offsets": return listOffsets(c);
            case "admin": return new AdminSweep(common, admin(), c).run();
            case "close": return close();
            default: throw new UnsupportedOperationException("unsupported: " + c.path("op").asText());
        }
    }

    private JsonNode connect(JsonNode c) {
        common.clear();
        common.put("bootstrap.servers", c.path("bootstrap").asText());
        common.put("client.id", c.path("client_id").asText("java"));
        common.put("default.api.timeout.ms", "30000");
        common.put("request.timeout.ms", "15000");
        JsonNode sasl = c.path("sasl");
        boolean tls = c.hasNonNull("tls_ca");
        if (sasl.isObject()) {
            String mechanism = sasl.path("mechanism").asText();
            String module = mechanism.equals("PLAIN")
                ? "org.apache.kafka.common.security.plain.PlainLoginModule"
                : "org.apache.kafka.common.security.scram.ScramLoginModule";
            common.put("sasl.mechanism", mechanism);
            common.put("sasl.jaas.config", String.format("%s required username=\"%s\" password=\"%s\";",
                module, sasl.path("username").asText(), sasl.path("password").asText()));
        }
        common.put("security.protocol", (sasl.isObject() ? "SASL_" : "") + (tls ? "SSL" : "PLAINTEXT"));
        if (tls) {
            common.put("ssl.truststore.type", "PEM");
            common.put("ssl.truststore.location", c.path("tls_ca").asText());
        }
        c.path("properties").fields().forEachRemaining(e -> common.put(e.getKey(), e.getValue().asText()));
        if (admin != null) {
            admin.close(java.time.Duration.ofSeconds(2));
            admin = null;
        }
        return Main.JSON.createObjectNode();
    }

    private Admin admin() {
        if (admin == null) {
            Properties properties = new Properties();
            properties.putAll(common);
            // Off by default; on, the sweep also covers the telemetry requests of KIP-714.
            properties.putIfAbsent("enable.metrics.push", "true");
            admin = Admin.create(properties);
        }
        return admin;
    }

    private JsonNode metadata(JsonNode c) throws Exception {
        ObjectNode result = Main.JSON.createObjectNode();
        ArrayNode addresses = result.putArray("addresses");
        ArrayNode brokers = result.putArray("brokers");
        var cluster = admin().describeCluster();
        List<Node> nodes = new ArrayList<>(get(cluster.nodes()));
        Node controller = get(cluster.controller());
        nodes.sort((a, b) -> Integer.compare(a.id(), b.id()));
        for (Node node : nodes) {
            brokers.addObject().put("id", node.id()).put("host", node.host()).put("port", node.port())
                .put("rack", node.rack());
            addresses.add(node.host() + ":" + node.port());
        }
        result.put("controller", controller.id());
        result.put("cluster_id", get(cluster.clusterId()));
        ObjectNode topics = result.putObject("topics");
        List<String> names = new ArrayList<>();
        c.path("topics").forEach(t -> names.add(t.asText()));
        for (Map.Entry<String, TopicDescription> e : get(admin().describeTopics(names).allTopicNames()).entrySet()) {
            ObjectNode partitions = topics.putObject(e.getKey());
            for (TopicPartitionInfo p : e.getValue().partitions()) {
                ObjectNode partition = partitions.putObject(String.valueOf(p.partition()));
                partition.put("leader", p.leader() == null ? -1 : p.leader().id());
                ArrayNode replicas = partition.putArray("replicas");
                p.replicas().forEach(r -> replicas.add(r.id()));
                ArrayNode isr = partition.putArray("isr");
                p.isr().stream().mapToInt(Node::id).sorted().forEach(isr::add);
                p.replicas().stream().filter(r -> !r.isEmpty() && r.port() > 0)
                    .forEach(r -> addresses.add(r.host() + ":" + r.port()));
            }
        }
        return result;
    }

    private JsonNode createTopics(JsonNode c) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (JsonNode t : c.path("topics")) {
            Map<String, String> configs = new HashMap<>();
            t.path("configs").fields().forEachRemaining(e -> configs.put(e.getKey(), e.getValue().asText()));
            topics.add(new NewTopic(t.path("name").asText(), t.path("partitions").asInt(1),
                (short) t.path("replication").asInt(-1)).configs(configs));
        }
        get(admin().createTopics(topics).all());
        return Main.JSON.createObjectNode();
    }

    private JsonNode deleteTopics(JsonNode c) throws Exception {
        List<String> names = new ArrayList<>();
        c.path("topics").forEach(t -> names.add(t.asText()));
        get(admin().deleteTopics(names).all());
        return Main.JSON.createObjectNode();
    }

    private JsonNode commit(JsonNode c) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        c.path("offsets").fields().forEachRemaining(e -> offsets.put(
            new TopicPartition(c.path("topic").asText(), Integer.parseInt(e.getKey())),
            new OffsetAndMetadata(e.getValue().asLong())));
        get(admin().alterConsumerGroupOffsets(c.path("group").asText(), offsets).all());
        return Main.JSON.createObjectNode();
    }

    private JsonNode committed(JsonNode c) throws Exception {
        ObjectNode result = Main.JSON.createObjectNode();
        ObjectNode offsets = result.putObject("offsets");
        get(admin().listConsumerGroupOffsets(c.path("group").asText()).partitionsToOffsetAndMetadata())
            .forEach((tp, offset) -> {
                if (tp.topic().equals(c.path("topic").asText()) && offset != null) {
                    offsets.put(String.valueOf(tp.partition()), offset.offset());
                }
            });
        return result;
    }

    private JsonNode listOffsets(JsonNode c) throws Exception {
        OffsetSpec at = c.path("at").asText("latest").equals("earliest") ? OffsetSpec.earliest() : OffsetSpec.latest();
        Map<TopicPartition, OffsetSpec> wanted = new HashMap<>();
        String topic = c.path("topic").asText();
        get(admin().describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions()
            .forEach(p -> wanted.put(new TopicPartition(topic, p.partition()), at));
        ObjectNode result = Main.JSON.createObjectNode();
        ObjectNode offsets = result.putObject("offsets");
        get(admin().listOffsets(wanted).all())
            .forEach((tp, offset) -> offsets.put(String.valueOf(tp.partition()), offset.offset()));
        return result;
    }

    private JsonNode close() {
        if (admin != null) {
            admin.close(java.time.Duration.ofSeconds(5));
        }
        return Main.JSON.createObjectNode();
    }

    static <T> T get(KafkaFuture<T> future) throws Exception {
        return future.get(40, TimeUnit.SECONDS);
    }
}
