// nsq-client, unmodified: publishes what stdin says, consumes it, and tells on stdout what came. See other_clients.py.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.github.brainlag.nsq.NSQConfig;
import com.github.brainlag.nsq.NSQConsumer;
import com.github.brainlag.nsq.NSQMessage;
import com.github.brainlag.nsq.NSQProducer;
import com.github.brainlag.nsq.lookup.DefaultNSQLookup;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

public class Peer {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final List<Object[]> arrived = new ArrayList<>();
    private final Set<String> left = new HashSet<>();
    private final CountDownLatch done = new CountDownLatch(1);
    private final long began = System.nanoTime();

    public static void main(String[] arguments) throws Exception {
        System.exit(new Peer().run(JSON.readTree(System.in)));
    }

    private int run(JsonNode plan) throws Exception {
        String topic = plan.get("topic").asText();
        plan.get("expected").forEach(body -> left.add(body.asText()));
        publish(plan, topic);
        DefaultNSQLookup lookup = new DefaultNSQLookup();
        lookup.addLookupAddress(plan.get("host").asText(), plan.get("lookupd").asInt());
        NSQConfig config = new NSQConfig();
        config.setMaxInFlight(200);
        NSQConsumer consumer = new NSQConsumer(lookup, topic, "channel", this::handle, config);
        consumer.start();
        boolean isDone = done.await(60, TimeUnit.SECONDS);
        Thread.sleep(200); // until the last answer is sent
        consumer.shutdown();
        synchronized (this) {
            System.out.println(JSON.writeValueAsString(arrived));
        }
        return isDone ? 0 : 1;
    }

    private static void publish(JsonNode plan, String topic) throws Exception {
        NSQProducer producer = new NSQProducer();
        producer.addAddress(plan.get("host").asText(), plan.get("port").asInt()).start();
        for (JsonNode body : plan.get("pub")) {
            producer.produce(topic, bytes(body));
        }
        for (JsonNode bodies : plan.get("mpub")) {
            List<byte[]> batch = new ArrayList<>();
            bodies.forEach(body -> batch.add(bytes(body)));
            producer.produceMulti(topic, batch);
        }
        producer.shutdown();
    }

    private synchronized void handle(NSQMessage message) {
        String body = new String(message.getMessage(), StandardCharsets.UTF_8);
        arrived.add(new Object[] {body, message.getAttempts(), (System.nanoTime() - began) / 1e9});
        if (body.startsWith("requeue") && message.getAttempts() == 1) {
            message.requeue(100);
            return;
        }
        if (body.startsWith("touch")) {
            message.touch();
        }
        message.finished();
        left.remove(body);
        if (left.isEmpty()) {
            done.countDown();
        }
    }

    private static byte[] bytes(JsonNode body) {
        return body.asText().getBytes(StandardCharsets.UTF_8);
    }
}
