import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.BitSet;

/** What was sent, accepted and received. Threads of several connections share one, and main waits here for the end. */
final class Tally {
    private final Settings set;
    private final BitSet acked = new BitSet();
    private final BitSet missing = new BitSet();
    private final double[] took; // lat: microseconds of each message
    private long numbered;
    private long confirmed;
    private long received;
    private double first;
    private double last;
    private String fault = "";
    private boolean isClosed;
    private boolean isOver;

    Tally(Settings set) throws IOException {
        this.set = set;
        took = new double[set.mode.equals("lat") ? (int) (set.rate * set.seconds) + 16 : 0];
        if (set.expect != null) {
            missing.or(BitSet.valueOf(Files.readAllBytes(set.expect)));
        }
    }

    static double now() {
        return System.nanoTime() * 1e-9;
    }

    // Numbers and bodies

    /** Return the first of so many new numbers, or -1 when enough were given. */
    synchronized long take(int many) {
        if (isOver || (set.count > 0 && numbered >= set.count)) {
            return -1;
        }
        numbered += many;
        return numbered - many;
    }

    byte[] body(long number) {
        byte[] body = new byte[set.size];
        Arrays.fill(body, Settings.LEAST_SIZE, set.size, (byte) 'x');
        ByteBuffer.wrap(body).order(ByteOrder.LITTLE_ENDIAN).putLong(number).putDouble(now());
        return body;
    }

    // What threads report

    void accepted(long number) {
        boolean isFirst;
        synchronized (this) {
            isFirst = confirmed++ == 0;
            if (set.acked != null) {
                acked.set((int) number);
            }
            if (set.count > 0 && confirmed == set.count) {
                end();
            }
        }
        if (isFirst && set.mode.equals("pub")) {
            Load.say("accepted");
        }
    }

    synchronized void came(byte[] value) {
        if (value.length != set.size) {
            fail("a body of another size: " + value.length);
            return;
        }
        ByteBuffer body = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN);
        long number = body.getLong();
        last = now();
        if (received == 0) {
            first = last;
        }
        if (received < took.length) {
            took[(int) received] = (last - body.getDouble()) * 1e6;
        }
        received++;
        if (set.expect != null && number < Integer.MAX_VALUE) {
            missing.clear((int) number);
        }
        if (set.mode.equals("sub") && (received == set.count || (set.expect != null && missing.isEmpty()))) {
            end();
        }
    }

    synchronized void fail(String why) {
        fault = fault.isEmpty() ? why : fault;
        end();
    }

    synchronized void close() {
        isClosed = true;
        end();
    }

    synchronized void end() {
        isOver = true;
        notifyAll();
    }

    // What main asks

    /** Wait for the end, but no longer than until then. */
    synchronized void waitUntil(double time) throws InterruptedException {
        for (double left; !isOver && (left = time - now()) > 0; ) {
            wait(Math.max(1, (long) (left * 1000)));
        }
    }

    synchronized boolean isOver() {
        return isOver;
    }

    synchronized boolean isClosed() {
        return isClosed;
    }

    synchronized String fault() {
        return fault;
    }

    synchronized long numbered() {
        return numbered;
    }

    synchronized long confirmed() {
        return confirmed;
    }

    synchronized long received() {
        return received;
    }

    synchronized double first() {
        return first;
    }

    synchronized double last() {
        return last;
    }

    synchronized int missing() {
        return missing.cardinality();
    }

    /** Return a quantile in microseconds. It sorts, so it comes last. */
    synchronized double quantile(double part) {
        int many = (int) Math.min(received, took.length);
        Arrays.sort(took, 0, many);
        return many == 0 ? 0 : took[(int) ((many - 1) * part)];
    }

    synchronized void writeAcked() throws IOException {
        byte[] bits = acked.toByteArray();
        Files.write(set.acked, Arrays.copyOf(bits, Math.max(bits.length, 1)));
    }
}
