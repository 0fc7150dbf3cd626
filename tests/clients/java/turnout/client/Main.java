package turnout.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.utils.AppInfoParser;

/** The line protocol of tests/clients/README.md over stdin and stdout. */
public final class Main {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        ObjectNode hello = JSON.createObjectNode();
        hello.putObject("ready").put("family", "java").put("version", AppInfoParser.getVersion());
        out.println(hello);
        Session session = new Session();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode command = JSON.readTree(line);
            ObjectNode reply = JSON.createObjectNode();
            reply.put("id", command.path("id").asLong());
            try {
                reply.set("ok", session.run(command));
            } catch (Throwable error) {
                reply.set("error", describe(error));
            }
            out.println(reply);
            if (command.path("op").asText().equals("close")) {
                break;
            }
        }
        // Threads of clients that are stuck must not keep the process.
        Runtime.getRuntime().halt(0);
    }

    /** An error as the protocol has it: the family's class, Kafka's name for it where there is one, the words. */
    static ObjectNode describe(Throwable error) {
        Throwable cause = error;
        while (cause.getCause() != null && !(cause instanceof ApiException)) {
            cause = cause.getCause();
        }
        ObjectNode node = JSON.createObjectNode();
        node.put("class", cause.getClass().getSimpleName());
        Errors known = Errors.forException(cause);
        if (known != Errors.UNKNOWN_SERVER_ERROR) {
            node.put("kafka", known.name());
        }
        node.put("message", String.valueOf(cause.getMessage()));
        return node;
    }

    private Main() {}
}
