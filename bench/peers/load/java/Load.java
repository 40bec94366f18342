import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.locks.LockSupport;

/**
 * The loads of ../load.c for Kafka, by its own Java client and a share group. Modes, keys, output and exit statuses are
 * those at the head of load.c, with these differences:
 *
 * warm=S     pub, sub, lat: S seconds of publishing and consuming on another topic come first, as Java compiles what it
 *            has run for a while
 * client_us  pub, sub: microseconds of processor time that this process has taken for a message, in all its threads
 *
 * lat sleeps between messages, and its client's wake-ups are part of each time.
 */
final class Load {
    static final double PATIENCE = 20; // seconds for a server to greet us, and to send its first message
    private static final double BEHIND = 0.5; // lat: seconds' worth of messages on their way, from which on it ends
    private static final int DONE = 0, WRONG = 2, CLOSED = 3, SHORT = 4, NOT_READY = 5;
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final Settings set;
    private final Cluster cluster;
    private boolean isReady;

    private Load(Settings set) {
        this.set = set;
        this.cluster = new Cluster(set);
    }

    public static void main(String[] words) {
        Locale.setDefault(Locale.ROOT);
        int status;
        Load load = null;
        try {
            Settings set = new Settings(words);
            watchPort(set, null);
            load = new Load(set);
            status = load.run();
        } catch (IllegalArgumentException error) {
            System.err.println("load: " + error.getMessage() + "; usage: see the head of load.c");
            status = WRONG;
        } catch (Exception error) {
            System.err.println("load: " + error);
            status = load != null && load.isReady ? WRONG : NOT_READY;
        }
        System.out.flush();
        Runtime.getRuntime().halt(status); // clients would wait for answers
    }

    static void say(String word) {
        System.out.println(word);
        System.out.flush();
    }

    private int run() throws Exception {
        if (set.warm > 0) {
            warmUp();
        }
        return switch (set.mode) {
            case "declare" -> declare();
            case "depth" -> depth();
            case "pub" -> publish();
            case "sub" -> consume();
            case "lat" -> latency();
            default -> throw new IllegalArgumentException("unknown mode");
        };
    }

    // Modes

    private int declare() throws Exception {
        cluster.declare(set.queue);
        System.out.println("mode=declare ready=1");
        return DONE;
    }

    private int depth() throws Exception {
        System.out.println("mode=depth depth=" + cluster.depth(set.queue));
        return DONE;
    }

    private int publish() throws Exception {
        Tally tally = new Tally(set);
        watchPort(set, tally);
        List<Publisher> publishers = new ArrayList<>();
        for (int at = 0; at < set.conns; at++) {
            publishers.add(new Publisher(set, tally, set.queue));
        }
        begin();
        double began = Tally.now(), busy = processorSeconds();
        publishers.forEach(Publisher::pay);
        tally.waitUntil(began + set.seconds);
        double took = Tally.now() - began;
        busy = processorSeconds() - busy;
        tally.end();
        long msgs = tally.confirmed();
        if (set.acked != null) {
            tally.writeAcked();
        }
        System.out.printf(
                "mode=pub conns=%d batch=%d size=%d window=%d seconds=%.4f sent=%d msgs=%d msgs_per_s=%.1f closed=%d"
                        + " client_us=%.2f%n",
                set.conns, set.batch, set.size, set.window, took, tally.numbered(), msgs, msgs / took,
                tally.isClosed() ? 1 : 0, busy * 1e6 / Math.max(1, msgs));
        return status(tally, set.count > 0 && msgs < set.count);
    }

    private int consume() throws Exception {
        Tally tally = new Tally(set);
        watchPort(set, tally);
        List<Consumer> consumers = join(set.conns, tally, set.queue);
        double began = Tally.now(), busy = processorSeconds();
        long early = tally.received(); // came while the group gathered
        while (!tally.isOver() && Tally.now() < consumesUntil(tally, began) && !isSilent(tally, began)) {
            tally.waitUntil(Tally.now() + 0.01);
        }
        double ended = Tally.now();
        busy = processorSeconds() - busy;
        long msgs = tally.received();
        boolean isShort = (set.count > 0 && msgs < set.count) || (tally.missing() > 0 && !isSilent(tally, began));
        // A server that stalls has not been quick.
        double took = Math.max(1e-9, (isShort ? ended : tally.last()) - began);
        long counted = msgs - early;
        tally.end();
        if (!tally.isClosed()) {
            for (Consumer consumer : consumers) {
                consumer.leave();
            }
        }
        System.out.printf(
                "mode=sub conns=%d window=%d seconds=%.4f msgs=%d msgs_per_s=%.1f closed=%d missing=%d client_us=%.2f%n",
                set.conns, set.window, took, msgs, counted > 0 ? counted / took : 0, tally.isClosed() ? 1 : 0,
                tally.missing(), busy * 1e6 / Math.max(1, counted));
        return status(tally, isShort);
    }

    private double consumesUntil(Tally tally, double began) {
        return tally.received() > 0 ? tally.first() + set.seconds : began + Math.max(set.seconds, PATIENCE);
    }

    private boolean isSilent(Tally tally, double began) {
        return set.quiet > 0 && Tally.now() - Math.max(began, tally.last()) > set.quiet;
    }

    private int latency() throws Exception {
        Tally tally = new Tally(set);
        watchPort(set, tally);
        Publisher publisher = new Publisher(set, tally, set.queue);
        join(1, tally, set.queue);
        double began = Tally.now(), end = began + set.seconds, now;
        boolean isBehind = false;
        while (((now = Tally.now()) < end || tally.received() < tally.numbered())
                && now < end + 1 && !tally.isOver() && !isBehind) {
            while (now < end && tally.numbered() < (now - began) * set.rate) {
                publisher.send();
            }
            isBehind = tally.numbered() - tally.received() > set.rate * BEHIND;
            LockSupport.parkNanos((long) Math.min(1e6, 1e9 / set.rate));
        }
        long sent = tally.numbered(), received = tally.received();
        isBehind |= received < sent;
        tally.end();
        if (received > sent) {
            throw new IllegalStateException("more messages came than were sent: the queue was not empty");
        }
        System.out.printf(
                "mode=lat rate=%.0f size=%d behind=%d sent=%d confirmed=%d received=%d p50_us=%.1f p99_us=%.1f"
                        + " p999_us=%.1f max_us=%.1f closed=%d%n",
                set.rate, set.size, isBehind ? 1 : 0, sent, tally.confirmed(), received, tally.quantile(.5),
                tally.quantile(.99), tally.quantile(.999), tally.quantile(1), tally.isClosed() ? 1 : 0);
        return status(tally, received < sent);
    }

    /** Publish and consume on a topic of its own, in batches: broker and client are compiled by then. */
    private void warmUp() throws Exception {
        String topic = set.queue + "_warm";
        String[] words = {
            "pub", "kafka", "" + set.port, topic, "size=" + set.size, "batch=10", "window=10", "seconds=" + set.warm
        };
        Settings warm = new Settings(words);
        Tally tally = new Tally(warm);
        cluster.declare(topic);
        try (Publisher publisher = new Publisher(warm, tally, topic)) {
            List<Consumer> consumers = join(1, tally, topic);
            publisher.pay();
            tally.waitUntil(Tally.now() + set.warm);
            tally.end();
            for (Consumer consumer : consumers) {
                consumer.leave();
            }
        }
        if (!tally.fault().isEmpty()) {
            throw new IOException(tally.fault());
        }
    }

    // What modes share

    private List<Consumer> join(int many, Tally tally, String topic) throws ExecutionException, InterruptedException {
        CountDownLatch all = new CountDownLatch(1);
        List<Consumer> consumers = new ArrayList<>();
        for (int at = 0; at < many; at++) {
            consumers.add(new Consumer(set, tally, topic, all));
        }
        cluster.waitForMembers(topic, many, tally);
        if (topic.equals(set.queue)) {
            begin();
        }
        all.countDown();
        return consumers;
    }

    private void begin() {
        isReady = true;
        say("ready");
    }

    private int status(Tally tally, boolean isShort) {
        if (!tally.fault().isEmpty()) {
            System.err.println("load: " + tally.fault());
            return WRONG;
        }
        return tally.isClosed() ? CLOSED : isShort ? SHORT : DONE;
    }

    private static double processorSeconds() {
        return SYSTEM.getProcessCpuTime() * 1e-9;
    }

    /**
     * Tell when the broker dies: Kafka's clients would try again for minutes. Without a tally only see that somebody
     * listens.
     */
    private static void watchPort(Settings set, Tally tally) throws IOException {
        Socket socket = new Socket(InetAddress.getLoopbackAddress(), set.port);
        if (tally == null) {
            socket.close();
            return;
        }
        Thread watch = new Thread(() -> {
            try (socket) {
                while (socket.getInputStream().read() >= 0) {}
            } catch (IOException error) {
                // it is gone, too
            }
            tally.close();
        });
        watch.setDaemon(true);
        watch.start();
    }
}
