/* The same work for brokers of several protocols: one thread, one epoll, as little work for each message as possible,
 * so that the server is what is measured.  cc -O2 -D_GNU_SOURCE -o load *.c
 *
 *   load declare PROTOCOL PORT QUEUE [key=value...]   makes the queue (topic, stream, tube) and who reads from it
 *   load depth   PROTOCOL PORT QUEUE [key=value...]   prints how many messages it holds
 *   load pub     PROTOCOL PORT QUEUE [key=value...]   publishes; an answer is waited for, and checked, for each message
 *   load sub     PROTOCOL PORT QUEUE [key=value...]   consumes and acknowledges
 *   load lat     PROTOCOL PORT QUEUE [key=value...]   one publisher at a steady rate; microseconds from send to receipt
 *
 * PROTOCOL: nsq, redis, nats, amqp, beanstalk.
 *
 * keys
 *   conns=N      connections (1)              window=N   batches in flight on each; sub and lat: messages at a consumer (1)
 *   batch=N      messages sent together (1)   size=N     bytes of a body, at least 16 (200)
 *   seconds=S    stop after so long (1)       count=N    pub, sub: stop after so many; `seconds` is then the limit
 *   rate=R       lat: messages a second       consumers=N  lat: connections that consume (1)
 *   quiet=S      sub: stop when nothing has come for S seconds
 *   kind=K       amqp: x-queue-type (classic)
 *   acked=FILE   pub: writes a bit for each body's number: whether it was accepted
 *   expect=FILE  sub: such a file; stops when all these have come, and prints how many are missing
 *
 * Rates count from when all connections are ready, that of sub to the last message that came, or to the limit if that
 * came first. sub waits for its first message at least 20 seconds, and then goes on for `seconds`.
 * lat never sleeps: its own wake-up is not the server's. A message's time counts from when it is queued for sending.
 * It ends when half a second's worth of messages is on its way: behind=1 says that the server did not keep pace.
 *
 * Prints `ready` when all connections are, `accepted` when the first message is, and at the end one line of key=value
 * pairs. Exit status: 0 done; 2 wrong usage, system error, or an answer that is an error; 3 the server closed a
 * connection (the line is printed all the same); 4 the limit came before the count, or before all that was expected while
 * messages still came; 5 as 2 or 3, before all connections were ready: nothing has been done. */
#include "load.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE = 20 }; /* seconds for a server to greet us, and to send its first message */
enum { EVENTS = 256, READ_ROOM = 1 << 18, LEAST_SIZE = 16, LARGEST_SIZE = 65536, BITS = 1 << 28 };

static const double BEHIND = 0.5; /* lat: seconds' worth of messages on their way, from which on it ends */

settings set = {.kind = "classic", .conns = 1, .consumers = 1, .batch = 1, .size = 200, .window = 1, .seconds = 1};
static const protocol *speaks;
static int epoll;
static bool server_closed;
static conn *conns;
static int nconns, ready;

static struct {
    uint64_t numbered, confirmed, received, depth;
    double began, first, last;
    double *took; /* lat: microseconds of each message */
    uint64_t room_for;
    uint8_t *template, *acked, *expected, *seen;
    uint64_t expected_bits, missing;
} told;

/* small things */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(2);
}
static void usage(const char *what) {
    fprintf(stderr, "load: %s; usage: see the head of load.c\n", what);
    exit(2);
}
void refused(const char *what, const void *said, size_t n) {
    const uint8_t *text = said;
    fprintf(stderr, "load: %s: ", what);
    for (size_t i = 0; i < n && i < 300; i++) fputc(text[i] < 32 || text[i] > 126 ? '.' : text[i], stderr);
    fputc('\n', stderr);
    exit(ready < nconns ? 5 : 2);
}
static void say(const char *word) { /* at once: somebody waits for it */
    puts(word);
    fflush(stdout);
}
static void *need(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) fail("memory");
    return memory;
}
static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double quantile(double q) { return told.received ? told.took[(uint64_t)((double)(told.received - 1) * q)] : 0; }
static bool mode_is(const char *mode) { return !strcmp(set.mode, mode); }

/* bits by number */

static bool has_bit(const uint8_t *bits, uint64_t number) { return bits[number / 8] >> number % 8 & 1; }
static void set_bit(uint8_t *bits, uint64_t number) { bits[number / 8] |= (uint8_t)(1 << number % 8); }
static void read_expected(void) {
    FILE *file = fopen(set.expect, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail(set.expect);
    size_t size = (size_t)ftell(file);
    rewind(file);
    told.expected = need(size, 1), told.seen = need(size, 1), told.expected_bits = size * 8;
    if (fread(told.expected, 1, size, file) != size) fail(set.expect);
    fclose(file);
    for (uint64_t i = 0; i < told.expected_bits; i++) told.missing += has_bit(told.expected, i);
}
static void write_acked(void) {
    FILE *file = fopen(set.acked, "wb");
    uint64_t size = told.numbered / 8 + 1;
    if (!file || fwrite(told.acked, 1, size, file) != size || fclose(file)) fail(set.acked);
}
/* connections */

static void dial(conn *c, int index, role role) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)set.port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    int one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->index = index, c->role = role;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0) fail("socket");
    if (connect(c->fd, (void *)&address, sizeof address)) refused("cannot connect", strerror(errno), strlen(strerror(errno)));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event)) fail("epoll_ctl");
    uint64_t most = role == PUBLISHES ? told.room_for : 1;
    c->numbers = need(most, sizeof *c->numbers), c->is_open = need(most, sizeof *c->is_open);
    speaks->hello(c);
}
static void want_writable(conn *c, bool wanted) { /* EPOLLOUT tells when the rest can go */
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
    if (wanted == c->writable_wanted) return;
    if (epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event)) fail("epoll_ctl");
    c->writable_wanted = wanted;
}
static void flush(conn *c) {
    buffer *out = &c->out;
    while (out->off < out->len) {
        ssize_t n = send(c->fd, out->data + out->off, out->len - out->off, MSG_NOSIGNAL);
        if (n >= 0) out->off += (size_t)n;
        else if (errno == EPIPE || errno == ECONNRESET) { server_closed = true; break; }
        else if (errno == EAGAIN) break;
        else if (errno != EINTR) fail("send");
    }
    if (out->off == out->len) out->off = out->len = 0;
    want_writable(c, out->len > 0);
}
static void fill(conn *c) {
    room(&c->in, READ_ROOM);
    ssize_t n = recv(c->fd, c->in.data + c->in.len, c->in.cap - c->in.len, 0);
    if (n > 0) c->in.len += (size_t)n;
    else if (n == 0 || errno == ECONNRESET) server_closed = true;
    else if (errno != EAGAIN && errno != EINTR) fail("recv");
}
static void read_frames(conn *c) {
    speaks->read(c);
    if (c->in.off == c->in.len) c->in.off = c->in.len = 0;
}
static void leave(conn *c) {
    double end = now() + PATIENCE;
    for (speaks->leave(c); !c->left && !server_closed && now() < end; usleep(500)) flush(c), fill(c), read_frames(c);
    if (!c->left && !server_closed) refused("the server did not take all that was sent in 20 seconds", "", 0);
}
static void hang_up(conn *c) { /* lets the server read our last bytes: close() with unread input resets */
    static uint8_t sink[65536];
    flush(c);
    if (speaks->leave) leave(c);
    shutdown(c->fd, SHUT_WR);
    double end = now() + 1;
    for (ssize_t n; now() < end && ((n = recv(c->fd, sink, sizeof sink, 0)) > 0 || (n < 0 && errno == EAGAIN));)
        if (n < 0) usleep(500);
    close(c->fd);
}

/* what a protocol tells */

void is_ready(conn *c) { ready += !c->ready, c->ready = true; }
void depth_is(uint64_t depth) { told.depth = depth; }
void has_left(conn *c) { c->left = true; }
static void count_confirmed(conn *c, uint64_t sent) {
    uint64_t slot = sent % told.room_for;
    if (sent >= c->sent || sent < c->open || !c->is_open[slot]) refused("an answer for what was not sent", "", 0);
    c->is_open[slot] = false;
    told.confirmed++;
    if (told.acked) set_bit(told.acked, c->numbers[slot]);
}
static void close_up(conn *c) { /* finds the oldest that still waits */
    while (c->open < c->sent && !c->is_open[c->open % told.room_for]) c->open++;
}
void confirm(conn *c, uint64_t sent) {
    count_confirmed(c, sent);
    close_up(c);
}
void confirm_next(conn *c, uint64_t n) {
    for (; n; n--) confirm(c, c->open);
}
void confirm_up_to(conn *c, uint64_t sent) {
    while (c->open <= sent) confirm(c, c->open);
}
static void check_number(uint64_t number) {
    if (number >= told.expected_bits) return; /* sent when the server died, and nobody was told that it was accepted */
    told.missing -= has_bit(told.expected, number) && !has_bit(told.seen, number);
    set_bit(told.seen, number);
}
void message_came(const uint8_t *body, size_t size) {
    uint64_t number;
    double stamp;
    if (size != (size_t)set.size) refused("a body of another size", body, size < 40 ? size : 40);
    memcpy(&number, body, sizeof number);
    memcpy(&stamp, body + sizeof number, sizeof stamp);
    if (told.expected) check_number(number);
    if (told.took && told.received < told.room_for) told.took[told.received] = (now() - stamp) * 1e6;
    told.received++;
}

/* publishing */

void put_body(conn *c) {
    double stamp = told.took ? now() : 0;
    if (told.acked && told.numbered == BITS) refused("too many messages to note which were accepted", "", 0);
    uint64_t slot = c->sent % told.room_for, number = told.numbered++;
    memcpy(told.template, &number, sizeof number);
    memcpy(told.template + sizeof number, &stamp, sizeof stamp);
    add(&c->out, told.template, (size_t)set.size);
    c->numbers[slot] = number, c->is_open[slot] = true;
    c->sent++;
}
static void pay(conn *c) { /* sends what the window allows; it begins with the oldest message without an answer */
    uint64_t most = (uint64_t)set.window * (uint64_t)set.batch;
    while (c->sent - c->open + (uint64_t)set.batch <= most && (!set.count || told.numbered < set.count)) speaks->publish(c, set.batch);
}

/* the loop that all modes share */

static void wait_and_read(int timeout_ms, void (*after)(conn *c)) {
    struct epoll_event events[EVENTS];
    int n = epoll_wait(epoll, events, EVENTS, timeout_ms);
    for (int i = 0; i < n; i++) {
        conn *c = events[i].data.ptr;
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) fill(c);
        read_frames(c);
        if (after) after(c);
        flush(c);
    }
}
static void open_all(int count, role (*role_of)(int index)) { /* returns when all have been greeted */
    double end = now() + PATIENCE;
    nconns = count;
    conns = need((size_t)count, sizeof *conns);
    for (int i = 0; i < count; i++) dial(&conns[i], i, role_of(i)), flush(&conns[i]);
    while (ready < nconns) {
        wait_and_read(100, NULL);
        if (server_closed) refused("the server closed a connection before it was ready", "", 0);
        if (now() > end) refused("the server did not greet all connections in 20 seconds", "", 0);
    }
    say("ready");
    told.began = told.first = told.last = now();
}
static role only_publishers(int index) { return (void)index, PUBLISHES; }
static role only_consumers(int index) { return (void)index, CONSUMES; }
static role only_declares(int index) { return (void)index, DECLARES; }
static role only_asks(int index) { return (void)index, ASKS_DEPTH; }
static role first_publishes(int index) { return index ? CONSUMES : PUBLISHES; }
static int status(bool is_short) { return server_closed ? 3 : is_short ? 4 : 0; }

/* modes */

static int declare(void) {
    open_all(1, only_declares);
    hang_up(conns);
    printf("mode=declare ready=%d\n", ready);
    return status(!ready);
}
static int depth(void) {
    open_all(1, only_asks);
    hang_up(conns);
    printf("mode=depth depth=%llu\n", (unsigned long long)told.depth);
    return status(!ready);
}
static int publish(void) {
    if (set.acked) told.acked = need(BITS / 8, 1);
    if (set.count) set.count = (set.count + (uint64_t)set.batch - 1) / (uint64_t)set.batch * (uint64_t)set.batch;
    told.room_for = (uint64_t)set.window * (uint64_t)set.batch;
    open_all(set.conns, only_publishers);
    for (int i = 0; i < nconns; i++) pay(&conns[i]), flush(&conns[i]);
    double t, end = told.began + set.seconds;
    while ((t = now()) < end && !server_closed && (!set.count || told.confirmed < set.count)) {
        bool is_first = !told.confirmed;
        wait_and_read(100, pay);
        if (is_first && told.confirmed) say("accepted");
    }
    if (set.acked) write_acked();
    printf("mode=pub conns=%d batch=%d size=%d window=%d seconds=%.4f sent=%llu msgs=%llu msgs_per_s=%.1f closed=%d\n", nconns,
           set.batch, set.size, set.window, t - told.began, (unsigned long long)told.numbered,
           (unsigned long long)told.confirmed, (double)told.confirmed / (t - told.began), server_closed);
    return status(set.count && told.confirmed < set.count);
}
static void note_time(conn *c) {
    static uint64_t before;
    (void)c;
    if (told.received > before) told.last = now();
    if (!before) told.first = told.last;
    before = told.received;
}
static bool is_silent(double t) { return set.quiet > 0 && t - told.last > set.quiet; }
static int consume(void) {
    if (set.expect) read_expected();
    open_all(set.conns, only_consumers);
    uint64_t early = told.received; /* came with the handshake, before there was a clock */
    double t, patience = set.seconds > PATIENCE ? set.seconds : PATIENCE;
    while ((t = now()) < (told.received ? told.first + set.seconds : told.began + patience) && !server_closed &&
           (!set.count || told.received < set.count) && !is_silent(t) && !(set.expect && !told.missing))
        wait_and_read(10, note_time);
    for (int i = 0; i < nconns && !server_closed; i++) hang_up(&conns[i]);
    bool is_short = (set.count && told.received < set.count) || (told.missing && !is_silent(t));
    double took = (is_short ? t : told.last) - told.began; /* a server that stalls has not been quick */
    printf("mode=sub conns=%d window=%d seconds=%.4f msgs=%llu msgs_per_s=%.1f closed=%d", nconns, set.window, took,
           (unsigned long long)told.received, took > 0 ? (double)(told.received - early) / took : 0, server_closed);
    printf(" missing=%llu\n", (unsigned long long)told.missing);
    return status(is_short);
}
static int latency(void) {
    told.room_for = (uint64_t)(set.rate * set.seconds) + 16;
    told.took = need(told.room_for, sizeof *told.took);
    open_all(1 + set.consumers, first_publishes);
    double t, end = told.began + set.seconds;
    bool is_behind = false;
    while (((t = now()) < end || told.received < told.numbered) && t < end + 1 && !server_closed && !is_behind) {
        while (t < end && (double)told.numbered < (t - told.began) * set.rate) speaks->publish(conns, 1);
        is_behind = (double)(told.numbered - told.received) > set.rate * BEHIND;
        flush(conns);
        wait_and_read(0, NULL);
    }
    if (told.received > told.numbered) refused("more messages came than were sent: the queue was not empty", "", 0);
    qsort(told.took, told.received, sizeof *told.took, compare);
    is_behind |= told.received < told.numbered;
    printf("mode=lat rate=%.0f size=%d behind=%d sent=%llu confirmed=%llu received=%llu p50_us=%.1f p99_us=%.1f p999_us=%.1f "
           "max_us=%.1f closed=%d\n", set.rate, set.size, is_behind, (unsigned long long)told.numbered, (unsigned long long)told.confirmed,
           (unsigned long long)told.received, quantile(.5), quantile(.99), quantile(.999), quantile(1), server_closed);
    return status(told.received < told.numbered);
}

/* the command line */

static const char *value_of(const char *argument, const char *key) {
    size_t n = strlen(key);
    return !strncmp(argument, key, n) && argument[n] == '=' ? argument + n + 1 : NULL;
}
static void read_setting(const char *argument) {
    struct { const char *key; int *into; } integers[] = {
        {"conns", &set.conns}, {"consumers", &set.consumers}, {"batch", &set.batch}, {"size", &set.size}, {"window", &set.window}};
    struct { const char *key; double *into; } reals[] = {{"seconds", &set.seconds}, {"quiet", &set.quiet}, {"rate", &set.rate}};
    struct { const char *key; const char **into; } texts[] = {{"kind", &set.kind}, {"acked", &set.acked}, {"expect", &set.expect}};
    const char *value;
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        if ((value = value_of(argument, integers[i].key))) { *integers[i].into = atoi(value); return; }
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        if ((value = value_of(argument, reals[i].key))) { *reals[i].into = atof(value); return; }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if ((value = value_of(argument, texts[i].key))) { *texts[i].into = value; return; }
    if ((value = value_of(argument, "count"))) set.count = strtoull(value, NULL, 10);
    else usage(argument);
}
static const protocol *protocol_named(const char *name) {
    static const protocol *all[] = {&nsq, &redis, &nats, &amqp, &beanstalk};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i]->name, name)) return all[i];
    usage("unknown protocol");
    return NULL;
}
static void check_settings(void) {
    if (set.conns < 1 || set.consumers < 1 || set.batch < 1 || set.window < 1) usage("conns, consumers, batch and window are at least 1");
    if (set.size < LEAST_SIZE || set.size > LARGEST_SIZE) usage("size is between 16 and 65536");
    if (mode_is("lat") && (set.rate <= 0 || set.batch != 1)) usage("lat needs a rate, and no batch");
    if (strlen(set.queue) > 60) usage("a queue's name has at most 60 characters");
}
int main(int argc, char **argv) {
    if (argc < 5) usage("too few arguments");
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* never outlive who measures */
    set.mode = argv[1], set.port = atoi(argv[3]), set.queue = argv[4];
    speaks = protocol_named(argv[2]);
    for (int i = 5; i < argc; i++) read_setting(argv[i]);
    check_settings();
    told.template = need((size_t)set.size, 1);
    memset(told.template, 'x', (size_t)set.size);
    told.room_for = 1;
    epoll = epoll_create1(EPOLL_CLOEXEC);
    if (mode_is("declare")) return declare();
    if (mode_is("depth")) return depth();
    if (mode_is("pub")) return publish();
    if (mode_is("sub")) return consume();
    if (mode_is("lat")) return latency();
    usage("unknown mode");
}
