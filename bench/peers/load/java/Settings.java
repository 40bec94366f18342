import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/** The command line, which is that of ../load.c. */
final class Settings {
    static final int LEAST_SIZE = 16;

    final String mode;
    final int port;
    final String queue;
    final int conns;
    final int batch;
    final int window;
    final int size;
    final long count; // 0: no end
    final double seconds;
    final double quiet; // 0: never stop because it is quiet
    final double rate;
    final double warm; // seconds of the same kind of work before what counts, on a topic of its own
    final Path acked;
    final Path expect;

    private final Map<String, String> given = new HashMap<>();

    Settings(String[] words) {
        if (words.length < 4) {
            throw new IllegalArgumentException("too few arguments");
        }
        mode = words[0];
        port = Integer.parseInt(words[2]);
        queue = words[3];
        for (int at = 4; at < words.length; at++) {
            String[] pair = words[at].split("=", 2);
            if (pair.length < 2) {
                throw new IllegalArgumentException(words[at]);
            }
            given.put(pair[0], pair[1]);
        }
        conns = (int) number("conns", 1);
        batch = (int) number("batch", 1);
        window = (int) number("window", 1);
        size = (int) number("size", 200);
        long wanted = (long) number("count", 0);
        count = mode.equals("pub") ? (wanted + batch - 1) / batch * batch : wanted;
        seconds = number("seconds", 1);
        quiet = number("quiet", 0);
        rate = number("rate", 0);
        warm = number("warm", 0);
        acked = path("acked");
        expect = path("expect");
        if (!given.isEmpty()) {
            throw new IllegalArgumentException(given.keySet().iterator().next());
        }
        if (conns < 1 || batch < 1 || window < 1 || size < LEAST_SIZE || (mode.equals("lat") && rate <= 0)) {
            throw new IllegalArgumentException("see the head of load.c for what may be asked");
        }
    }

    String servers() {
        return "127.0.0.1:" + port;
    }

    private double number(String key, double usual) {
        String value = given.remove(key);
        return value == null ? usual : Double.parseDouble(value);
    }

    private Path path(String key) {
        String value = given.remove(key);
        return value == null ? null : Path.of(value);
    }
}
