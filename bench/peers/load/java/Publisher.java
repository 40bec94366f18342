import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * One connection that publishes. Its client's own thread brings the answers, and sends what the window allows then, so
 * there is no other thread to wake up.
 */
final class Publisher implements AutoCloseable {
    private final Settings set;
    private final Tally tally;
    private final String topic;
    private final KafkaProducer<byte[], byte[]> producer;
    private int open; // messages without an answer

    Publisher(Settings set, Tally tally, String topic) {
        this.set = set;
        this.tally = tally;
        this.topic = topic;
        // Everything is as by default (acks=all, idempotence), but nothing waits 5 ms for company: the load is what
        // says how many messages are sent together.
        Map<String, Object> config = Map.of("bootstrap.servers", set.servers(), "linger.ms", 0);
        producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
        producer.partitionsFor(topic); // it has a connection now
    }

    /** Send what the window allows: batches, of which `window` are on their way at most. */
    synchronized void pay() {
        while (open + set.batch <= set.window * set.batch) {
            long number = tally.take(set.batch);
            if (number < 0) {
                return;
            }
            for (int at = 0; at < set.batch; at++) {
                send(number + at, true);
            }
        }
    }

    /** Send one, whatever the window is. */
    synchronized void send() {
        long number = tally.take(1);
        if (number >= 0) {
            send(number, false);
        }
    }

    private void send(long number, boolean isPaced) {
        open++;
        producer.send(
                new ProducerRecord<>(topic, tally.body(number)),
                (told, error) -> {
                    if (error != null) {
                        tally.fail("not accepted: " + error);
                        return;
                    }
                    tally.accepted(number);
                    answered(isPaced);
                });
    }

    private synchronized void answered(boolean isPaced) {
        open--;
        if (isPaced) {
            pay();
        }
    }

    @Override
    public void close() {
        producer.close();
    }
}
