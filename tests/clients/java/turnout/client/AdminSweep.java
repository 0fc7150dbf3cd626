package turnout.client;

import static org.apache.kafka.clients.admin.ScramMechanism.SCRAM_SHA_256;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Runs every method of the Admin client on resources of its own and returns each result, or error, normalised, so that
 * two runs against the same cluster (directly and through a gateway) can be compared.
 */
final class AdminSweep {
    private final Properties common;
    private final Admin admin;
    private final String prefix;
    private final Normal normal;
    private final Map<String, JsonNode> results = new LinkedHashMap<>();

    AdminSweep(Properties common, Admin admin, JsonNode c) {
        this.common = common;
        this.admin = admin;
        this.prefix = c.path("prefix").asText();
        this.normal = new Normal(prefix);
    }

    JsonNode run() throws Exception {
        String topic = prefix + "-topic";
        String group = prefix + "-group";
        String share = prefix + "-share";
        String transactional = prefix + "-transactional";
        TopicPartition p0 = new TopicPartition(topic, 0);
        List<Node> nodes = new ArrayList<>(Session.get(admin.describeCluster().nodes()));
        List<Integer> ids = nodes.stream().map(Node::id).sorted().toList();
        ConfigResource topicResource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        ConfigResource brokerResource = new ConfigResource(ConfigResource.Type.BROKER, ids.get(0).toString());

        step("createTopics", () -> {
            CreateTopicsResult created = admin.createTopics(List.of(new NewTopic(topic, Map.of(0, ids, 1, ids))));
            created.all().get();
            return List.of(Session.get(created.numPartitions(topic)), Session.get(created.replicationFactor(topic)),
                Session.get(created.topicId(topic)));
        });
        seed(topic, transactional);
        step("listTopics", () -> once(() -> own(Session.get(admin.listTopics().listings())), all -> !all.isEmpty()));
        step("describeTopics",
            () -> once(() -> Session.get(admin.describeTopics(List.of(topic)).allTopicNames()), all -> true));
        step("describeTopics by id", () -> {
            Uuid id = Session.get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).topicId();
            return admin.describeTopics(org.apache.kafka.common.TopicCollection.ofTopicIds(List.of(id))).allTopicIds();
        });
        step("describeCluster", () -> {
            DescribeClusterResult cluster =
                admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
            return Arrays.asList(Session.get(cluster.nodes()), Session.get(cluster.clusterId()),
                Session.get(cluster.authorizedOperations()));
        });
        AclBinding acl = new AclBinding(new ResourcePattern(ResourceType.TOPIC, topic, PatternType.LITERAL),
            new AccessControlEntry("User:nobody", "*", AclOperation.READ, AclPermissionType.ALLOW));
        step("createAcls", () -> admin.createAcls(List.of(acl)).all());
        step("describeAcls",
            () -> once(() -> Session.get(admin.describeAcls(acl.toFilter()).values()), all -> !all.isEmpty()));
        step("deleteAcls", () -> admin.deleteAcls(List.of(acl.toFilter())).all());
        step("describeConfigs", () -> admin.describeConfigs(List.of(topicResource, brokerResource)).all());
        step("incrementalAlterConfigs", () -> admin.incrementalAlterConfigs(Map.of(topicResource,
            List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "86400000"), AlterConfigOp.OpType.SET)))).all());
        step("alterReplicaLogDirs", () -> admin.alterReplicaLogDirs(
            Map.of(new TopicPartitionReplica(topic, 0, ids.get(0)), "/nowhere")).all());
        step("describeLogDirs", () -> {
            Map<Integer, List<String>> found = new TreeMap<>();
            Session.get(admin.describeLogDirs(ids).allDescriptions()).forEach((id, dirs) ->
                found.put(id, dirs.values().stream().flatMap(d -> d.replicaInfos().keySet().stream())
                    .map(TopicPartition::toString).filter(t -> t.startsWith(prefix)).sorted().toList()));
            return found;
        });
        step("describeReplicaLogDirs", () -> admin.describeReplicaLogDirs(
            List.of(new TopicPartitionReplica(topic, 0, ids.get(0)))).all());
        step("createPartitions", () -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
        step("listOffsets", () -> offsets(Session.get(admin.listOffsets(Map.of(p0, OffsetSpec.latest())).all())));
        step("listOffsets max timestamp",
            () -> offsets(Session.get(admin.listOffsets(Map.of(p0, OffsetSpec.maxTimestamp())).all())));
        step("deleteRecords", () -> {
            long mark = Session.get(admin.deleteRecords(Map.of(p0, RecordsToDelete.beforeOffset(3))).all()
                .thenApply(v -> 3L));
            return List.of(mark, offsets(Session.get(admin.listOffsets(Map.of(p0, OffsetSpec.earliest())).all())));
        });
        step("createDelegationToken", () -> admin.createDelegationToken().delegationToken());
        step("renewDelegationToken", () -> admin.renewDelegationToken(new byte[] {1}).expiryTimestamp());
        step("expireDelegationToken", () -> admin.expireDelegationToken(new byte[] {1}).expiryTimestamp());
        step("describeDelegationToken", () -> admin.describeDelegationToken().delegationTokens());
        groups(topic, group, share, p0);
        step("electLeaders", () -> {
            var elected = Session.get(admin.electLeaders(ElectionType.PREFERRED, Set.of(p0)).partitions());
            return elected;
        });
        step("alterPartitionReassignments", () -> admin.alterPartitionReassignments(
            Map.of(p0, Optional.of(new NewPartitionReassignment(ids)))).all());
        step("listPartitionReassignments", () -> admin.listPartitionReassignments(Set.of(p0)).reassignments());
        quotasAndUsers();
        step("describeFeatures", () -> admin.describeFeatures().featureMetadata());
        step("updateFeatures", () -> admin.updateFeatures(
            Map.of("no.such.feature", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE)),
            new UpdateFeaturesOptions().validateOnly(true)).all());
        step("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo());
        step("unregisterBroker", () -> admin.unregisterBroker(9999).all());
        step("addRaftVoter", () -> admin.addRaftVoter(9999, Uuid.ONE_UUID,
            Set.of(new RaftVoterEndpoint("CONTROLLER", "localhost", 1))).all());
        step("removeRaftVoter", () -> admin.removeRaftVoter(9999, Uuid.ONE_UUID).all());
        transactions(transactional, p0);
        step("listConfigResources", () -> own(Session.get(admin.listConfigResources().all())));
        step("listClientMetricsResources", () -> admin.listClientMetricsResources().all());
        step("clientInstanceId", () -> admin.clientInstanceId(Duration.ofMillis(500)));
        step("deleteTopics", () -> admin.deleteTopics(List.of(topic)).all());
        return result();
    }

    /** Ten records in each of two partitions, and one committed transaction. */
    private void seed(String topic, String transactional) {
        Properties properties = new Properties();
        properties.putAll(common);
        properties.put("key.serializer", ByteArraySerializer.class);
        properties.put("value.serializer", ByteArraySerializer.class);
        properties.put("transactional.id", transactional);
        properties.put("max.block.ms", "40000");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties)) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int i = 0; i < 20; i++) {
                byte[] key = String.valueOf(i).getBytes();
                producer.send(new ProducerRecord<>(topic, i % 2, 1_700_000_000_000L + i, key, key));
            }
            producer.commitTransaction();
        }
    }

    @SuppressWarnings("removal")
    private void groups(String topic, String group, String share, TopicPartition p0) throws Exception {
        step("alterConsumerGroupOffsets",
            () -> admin.alterConsumerGroupOffsets(group, Map.of(p0, new OffsetAndMetadata(5))).all());
        step("listConsumerGroupOffsets", () -> admin.listConsumerGroupOffsets(group).all());
        step("describeConsumerGroups", () -> admin.describeConsumerGroups(List.of(group)).all());
        step("describeClassicGroups", () -> admin.describeClassicGroups(List.of(group)).all());
        step("listConsumerGroups", () -> own(Session.get(admin.listConsumerGroups().all())));
        step("listGroups", () -> own(Session.get(admin.listGroups().all())));
        step("removeMembersFromConsumerGroup", () -> admin.removeMembersFromConsumerGroup(group,
            new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("nobody")))).all());
        step("deleteConsumerGroupOffsets", () -> admin.deleteConsumerGroupOffsets(group, Set.of(p0)).all());
        step("deleteConsumerGroups", () -> admin.deleteConsumerGroups(List.of(group)).all());
        step("alterShareGroupOffsets", () -> admin.alterShareGroupOffsets(share, Map.of(p0, 5L)).all());
        step("listShareGroupOffsets",
            () -> admin.listShareGroupOffsets(Map.of(share, new ListShareGroupOffsetsSpec())).all());
        step("describeShareGroups", () -> admin.describeShareGroups(List.of(share)).all());
        step("deleteShareGroupOffsets", () -> admin.deleteShareGroupOffsets(share, Set.of(topic)).all());
        step("deleteShareGroups", () -> admin.deleteShareGroups(List.of(share)).all());
        String streams = prefix + "-streams";
        step("alterStreamsGroupOffsets",
            () -> admin.alterStreamsGroupOffsets(streams, Map.of(p0, new OffsetAndMetadata(5))).all());
        step("listStreamsGroupOffsets",
            () -> admin.listStreamsGroupOffsets(Map.of(streams, new ListStreamsGroupOffsetsSpec())).all());
        step("describeStreamsGroups", () -> admin.describeStreamsGroups(List.of(streams)).all());
        step("deleteStreamsGroupOffsets", () -> admin.deleteStreamsGroupOffsets(streams, Set.of(p0)).all());
        step("deleteStreamsGroups", () -> admin.deleteStreamsGroups(List.of(streams)).all());
    }

    private void quotasAndUsers() throws Exception {
        ClientQuotaEntity entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, prefix + "-quota"));
        step("alterClientQuotas", () -> admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity,
            List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1e9))))).all());
        ClientQuotaFilter ofClient = ClientQuotaFilter.contains(List.of(
            org.apache.kafka.common.quota.ClientQuotaFilterComponent.ofEntity(
                ClientQuotaEntity.CLIENT_ID, prefix + "-quota")));
        step("describeClientQuotas",
            () -> once(() -> Session.get(admin.describeClientQuotas(ofClient).entities()), all -> !all.isEmpty()));
        step("alterClientQuotas remove", () -> admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity,
            List.of(new ClientQuotaAlteration.Op("producer_byte_rate", null))))).all());
        String user = prefix + "-user";
        step("alterUserScramCredentials", () -> admin.alterUserScramCredentials(List.of(
            new UserScramCredentialUpsertion(user, new ScramCredentialInfo(SCRAM_SHA_256, 4096), "secret"))).all());
        // A broker that has not read the change yet may also answer with a user without credentials.
        step("describeUserScramCredentials",
            () -> once(() -> Session.get(admin.describeUserScramCredentials(List.of(user)).all()),
                found -> !found.get(user).credentialInfos().isEmpty()));
        step("alterUserScramCredentials remove", () -> admin.alterUserScramCredentials(List.of(
            new UserScramCredentialDeletion(user, SCRAM_SHA_256))).all());
    }

    private void transactions(String transactional, TopicPartition p0) throws Exception {
        step("describeProducers", () ->
            Session.get(admin.describeProducers(List.of(p0)).all()).get(p0).activeProducers().size());
        step("listTransactions", () -> own(Session.get(admin.listTransactions().all())));
        step("describeTransactions", () -> admin.describeTransactions(List.of(transactional)).all());
        step("abortTransaction", () -> admin.abortTransaction(new AbortTransactionSpec(p0, 7_000_000_000_000L, (short) 0, 0)).all());
        step("fenceProducers", () -> admin.fenceProducers(List.of(transactional)).all());
        step("forceTerminateTransaction", () -> admin.forceTerminateTransaction(transactional).result());
    }

    private void step(String name, Callable<Object> call) {
        long begin = System.nanoTime();
        JsonNode outcome;
        try {
            Object value = call.call();
            if (value instanceof KafkaFuture<?> future) {
                value = Session.get(future);
            }
            outcome = normal.of(value);
        } catch (Throwable error) {
            outcome = Main.JSON.createObjectNode().set("error", Main.describe(error).without(List.of("message")));
        }
        System.err.printf("%s took %d ms%n", name, (System.nanoTime() - begin) / 1_000_000);
        results.put(name, outcome);
    }

    /**
     * Asks until the answer is there, for some seconds: a change is seen once the broker that is asked has read it in
     * the metadata log, and which broker that is is the client's choice.
     */
    private static <T> T once(Callable<T> ask, Predicate<T> isThere) throws Exception {
        for (int i = 0; i < 50; i++) {
            try {
                T answer = ask.call();
                if (isThere.test(answer)) {
                    return answer;
                }
            } catch (Exception notYet) {
                // Asked again below.
            }
            Thread.sleep(100);
        }
        return ask.call();
    }

    /** Only what this run made: others may use the cluster at the same time. */
    private List<Object> own(Collection<?> all) {
        return all.stream().filter(item -> item.toString().contains(prefix)).collect(Collectors.toList());
    }

    private static Map<String, Long> offsets(Map<TopicPartition, ListOffsetsResult.ListOffsetsResultInfo> found) {
        Map<String, Long> offsets = new TreeMap<>();
        found.forEach((tp, info) -> offsets.put(String.valueOf(tp.partition()), info.offset()));
        return offsets;
    }

    private JsonNode result() {
        ObjectNode result = Main.JSON.createObjectNode();
        ObjectNode methods = result.putObject("methods");
        results.forEach(methods::set);
        ArrayNode addresses = result.putArray("addresses");
        normal.addresses.forEach(addresses::add);
        // Methods of the interface that no step is named after: a newer client has more than this sweep knows.
        Set<String> missing = new TreeSet<>();
        Arrays.stream(Admin.class.getMethods()).forEach(m -> missing.add(m.getName()));
        results.keySet().forEach(name -> missing.remove(name.split(" ")[0]));
        missing.removeAll(Set.of("create", "close", "metrics", "registerMetricForSubscription",
            "unregisterMetricFromSubscription"));
        ArrayNode left = result.putArray("missing");
        missing.forEach(left::add);
        return result;
    }
}
