import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** One member of the topic's share group, in a thread of its own. It acknowledges each message; the next poll says so. */
final class Consumer extends Thread {
    private final Tally tally;
    private final CountDownLatch all; // open once the whole group is there
    private final KafkaShareConsumer<byte[], byte[]> consumer;

    Consumer(Settings set, Tally tally, String topic, CountDownLatch all) {
        this.tally = tally;
        this.all = all;
        Map<String, Object> config = Map.of(
                "bootstrap.servers", set.servers(), "group.id", topic, "max.poll.records", set.window,
                "share.acknowledgement.mode", "explicit"); // as a poll may bring more than are still wanted
        consumer = new KafkaShareConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic));
        setDaemon(true);
        start();
    }

    @Override
    public void run() {
        try {
            while (!tally.isOver()) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    if (tally.isOver()) {
                        break; // the rest goes back to the group
                    }
                    tally.came(record.value());
                    consumer.acknowledge(record);
                }
                if (!records.isEmpty()) {
                    all.await(); // the first member doesn't take it all
                }
            }
            if (!tally.isClosed()) {
                consumer.commitSync();
            }
        } catch (Exception error) {
            tally.fail("consumer: " + error);
        }
    }

    /** Wait for its thread, and leave the group. */
    void leave() throws InterruptedException {
        join(20_000);
        if (isAlive()) {
            tally.fail("a consumer did not end in 20 seconds");
            return;
        }
        consumer.close(Duration.ofSeconds(5));
    }
}
