package turnout.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.node.TextNode;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.Uuid;

/**
 * Turns what the Admin client returns into JSON that is equal for equal answers: brokers become their node ids (their
 * addresses are gathered apart), topic ids and names of this run become placeholders, collections are sorted, times
 * and positions that move by themselves are left out.
 */
final class Normal {
    private static final Set<String> VOLATILE = Set.of(
        "logEndOffset", "lastFetchTimestamp", "lastCaughtUpTimestamp", "highWatermark", "leaderEpoch",
        "finalizedFeaturesEpoch", "size", "totalBytes", "usableBytes", "offsetLag", "timestamp", "lastTimestamp",
        "producerId", "coordinatorId", "transactionStartTimeMs", "currentTransactionStartOffset", "coordinatorEpoch", "coordinator",
        "hashCode", "toString", "getClass", "notify", "notifyAll", "wait", "clone", "toHtml", "iterator", "stream",
        "documentation", "endpoints", "leaderId", "partitionsById");

    final Set<String> addresses = new TreeSet<>();
    private final String prefix;

    Normal(String prefix) {
        this.prefix = prefix;
    }

    JsonNode of(Object value) {
        return of(value, 0);
    }

    private JsonNode of(Object value, int depth) {
        if (value == null) {
            return Main.JSON.nullNode();
        } else if (value instanceof Optional<?> optional) {
            return of(optional.orElse(null), depth);
        } else if (value instanceof OptionalInt optional) {
            return of(optional.isPresent() ? optional.getAsInt() : null, depth);
        } else if (value instanceof OptionalLong optional) {
            return of(optional.isPresent() ? optional.getAsLong() : null, depth);
        } else if (value instanceof Node node) {
            if (!node.isEmpty() && node.port() >= 0) {
                addresses.add(node.host() + ":" + node.port());
            }
            return text("node " + node.id() + " rack " + node.rack());
        } else if (value instanceof Uuid) {
            return text("uuid");
        } else if (value instanceof Throwable error) {
            return Main.describe(error).without(List.of("message"));
        } else if (value instanceof Number || value instanceof Boolean) {
            return Main.JSON.valueToTree(value);
        } else if (value instanceof CharSequence || value instanceof Enum<?> || value instanceof Class<?>) {
            return text(value.toString());
        } else if (value instanceof byte[] bytes) {
            return text("bytes " + bytes.length);
        } else if (value instanceof Object[] array) {
            return of(Arrays.asList(array), depth);
        } else if (value instanceof Map<?, ?> map) {
            Map<String, JsonNode> sorted = new TreeMap<>();
            map.forEach((k, v) -> sorted.put(key(k), of(v, depth + 1)));
            ObjectNode node = Main.JSON.createObjectNode();
            sorted.forEach(node::set);
            return node;
        } else if (value instanceof Collection<?> collection) {
            List<JsonNode> items = new ArrayList<>();
            collection.forEach(item -> items.add(of(item, depth + 1)));
            items.sort(Comparator.comparing(JsonNode::toString));
            ArrayNode node = Main.JSON.createArrayNode();
            items.forEach(node::add);
            return node;
        }
        return depth > 8 ? text(value.toString()) : getters(value, depth);
    }

    private String key(Object key) {
        return text(key instanceof Uuid ? "uuid" : String.valueOf(key)).asText();
    }

    private TextNode text(String text) {
        return TextNode.valueOf(text.replace(prefix, "P"));
    }

    /** Every value an object shows by a public method without parameters. */
    private JsonNode getters(Object value, int depth) {
        ObjectNode node = Main.JSON.createObjectNode();
        Method[] methods = value.getClass().getMethods();
        Arrays.sort(methods, Comparator.comparing(Method::getName));
        for (Method method : methods) {
            boolean shows = method.getParameterCount() == 0 && method.getReturnType() != void.class
                && !Modifier.isStatic(method.getModifiers()) && !VOLATILE.contains(method.getName());
            if (method.getName().equals("coordinator") && method.getParameterCount() == 0) {
                // Which broker it is depends on the name's hash; that its address is the gateway's does not.
                try {
                    method.setAccessible(true);
                    of(method.invoke(value), depth + 1);
                } catch (ReflectiveOperationException | RuntimeException error) {
                    node.put("coordinator", "not readable");
                }
            }
            if (!shows) {
                continue;
            }
            try {
                method.setAccessible(true);
                node.set(method.getName(), of(method.invoke(value), depth + 1));
            } catch (ReflectiveOperationException | RuntimeException error) {
                node.put(method.getName(), "not readable");
            }
        }
        return node;
    }
}
