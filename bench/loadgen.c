/* NSQ load generator: one thread, one epoll, as little work for each message as possible, so that the server is what
 * is measured.  cc -O2 -o loadgen loadgen.c
 *
 *   loadgen pub  HOST PORT TOPIC      conns batch size seconds [window] [key=value...]
 *   loadgen http HOST PORT TOPIC      conns batch size seconds [window] [key=value...]
 *   loadgen sub  HOST PORT TOPIC CHAN conns rdy seconds                 [key=value...]
 *   loadgen lat  HOST PORT TOPIC CHAN rate size seconds
 *   loadgen idle HOST PORT -          conns seconds
 *
 * pub   batch 1 sends PUB, more sends MPUB; window is the number of commands in flight on each connection.
 * http  the same over keep-alive HTTP: POST /pub, or POST /mpub?binary=true.
 * sub   FINs every message.
 * lat   one publisher at a steady rate, one consumer; microseconds from send to receipt.
 * idle  connects, identifies, says "ready", answers heartbeats.
 *
 * keys of pub and http
 *   count=N     stop when N messages are confirmed; `seconds` is then the limit
 *   topics=K    TOPIC_0 to TOPIC_K-1 in turn
 *   verify=1    a running number in the first 8 bytes of each body
 *   noise=1     random bytes, which nobody can compress; otherwise all are the same letter
 *   rate=R      at most R messages a second in all
 *   defer=MS    DPUB (pub with batch 1) or &defer= (http with batch 1)
 *   headers=1   HPUB or HMPUB: the first 202 bytes of what would be the body are five headers (pub without defer)
 *   groups=N    the same, but these are 29 bytes, the header nsq-group: customer-000000 to customer-(N-1) in turn, whose
 *               number is in the bytes 8 to 11 of the body
 *   group=F     the first of the groups has the number F
 *   draw=random|half     groups at random; half: every second message belongs to the first group
 *   stamp=1     the time of sending in the first 8 bytes of each body, for waits= of a consumer
 *   keys=PREFIX a key of its own for each command: PREFIX and a running number of 8 digits (pub without defer)
 * keys of sub
 *   count=N     stop when N messages are finished; `seconds` is then the limit
 *   headers=1   asks for messages with their headers
 *   quiet=S     stop when nothing has come for S seconds (after the first message)
 *   topics=K    connection i subscribes to TOPIC_(i mod K)
 *   channels=K  connection i subscribes to CHAN_(i mod K)
 *   verify=N    expect the running numbers 0 to N-1 once on each channel; prints lost= and duplicate=
 *   first=fin|hold|req   what happens to a message that comes for the first time: hold lets it time out, req requeues
 *                        it at once; when it comes again it is finished
 *   timeout=MS  the message timeout to ask for; with first=hold and verify, prints how late messages came back
 *   work=MS     a message is finished after a time between half and one and a half of this
 *   apart=G     messages of the group with this number are finished, but count nowhere
 *   stuck=1     and with this they are not even finished
 *   waits=FILE  the microseconds from the sending to the receipt of each stamped message, one a line
 *
 * SIGTERM ends a consumer as its time does.
 *
 * Prints one line of key=value pairs. Exit status: 0 done, 2 wrong usage or system error, 3 the server closed the
 * connection (the line is printed all the same), 4 the limit came before the count. Loopback only. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 256, MESSAGE_HEAD = 34, RESPONSE = 0, ERROR = 1, MESSAGE = 2, HEADED_MESSAGE = 3, FIRST_BUFFER = 1 << 20, READ_ROOM = 65536 };

typedef struct { uint8_t *data; size_t len, off, cap; } buffer;
typedef struct { int fd, index; bool writable_wanted, started; buffer in, out; uint64_t turns; unsigned owed; } conn;
typedef struct { const char *host, *topic, *channel; int port; } target;
typedef struct {
    uint64_t count, rate, verify, noise;
    int topics, channels, defer, timeout, window;
    int groups, group, apart, work;
    const char *keys, *waits;
    bool headers, stamp, stuck;
    double quiet;
    enum { FIN_FIRST, HOLD_FIRST, REQ_FIRST } first;
    enum { IN_TURN, AT_RANDOM, HALF_TO_FIRST } draw;
} settings;

static int epoll;
static bool server_closed;
static volatile sig_atomic_t stopping;

/* small things */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static void die(const char *what) {
    fprintf(stderr, "loadgen: %s: %s\n", what, strerror(errno));
    exit(2);
}
static void usage(const char *what) {
    fprintf(stderr, "loadgen: %s; usage: see the head of loadgen.c\n", what);
    exit(2);
}
static void *need(void *memory) {
    if (!memory) die("memory");
    return memory;
}
static uint64_t next_random(void) { /* xorshift: the same numbers in every run */
    static uint64_t state = 88172645463325252;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}
static uint32_t get32(const uint8_t *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }
static void put32(uint8_t *p, uint32_t v) { p[0] = v >> 24, p[1] = v >> 16, p[2] = v >> 8, p[3] = v; }

static void room(buffer *b, size_t n) {
    if (b->cap - b->len >= n) return;
    if (b->off) { memmove(b->data, b->data + b->off, b->len - b->off); b->len -= b->off; b->off = 0; }
    if (b->cap - b->len >= n) return;
    b->cap = (b->len + n) * 2;
    b->data = need(realloc(b->data, b->cap));
}
static void add(buffer *b, const void *data, size_t n) {
    room(b, n);
    memcpy(b->data + b->len, data, n);
    b->len += n;
}
static void add32(buffer *b, uint32_t v) {
    uint8_t bytes[4];
    put32(bytes, v);
    add(b, bytes, 4);
}
static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double quantile(double *sorted, uint64_t n, double q) { return n ? sorted[(uint64_t)((n - 1) * q)] : 0; }

/* connections */

static void dial(conn *c, int index, const target *to) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(to->port)};
    int one = 1;
    if (strncmp(to->host, "127.", 4)) usage("loopback only");
    inet_pton(AF_INET, to->host, &address.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0) die("socket");
    if (connect(c->fd, (void *)&address, sizeof address)) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->index = index;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event)) die("epoll_ctl");
}
static void identify(conn *c, int heartbeat_ms, int timeout_ms, const char *extension) {
    char body[320];
    int n = snprintf(body, sizeof body,
                     "{\"client_id\":\"loadgen\",\"hostname\":\"loadgen\",\"user_agent\":\"loadgen/2\","
                     "\"heartbeat_interval\":%d,\"output_buffer_timeout\":25", heartbeat_ms);
    if (timeout_ms) n += snprintf(body + n, sizeof body - n, ",\"msg_timeout\":%d", timeout_ms);
    if (extension) n += snprintf(body + n, sizeof body - n, ",\"feature_negotiation\":true,\"extensions\":[\"%s\"]", extension);
    body[n++] = '}';
    add(&c->out, "  V2IDENTIFY\n", 13);
    add32(&c->out, n);
    add(&c->out, body, n);
}
static void flush(conn *c) { /* sends what it can; EPOLLOUT tells when the rest can go */
    buffer *out = &c->out;
    while (out->off < out->len) {
        ssize_t n = send(c->fd, out->data + out->off, out->len - out->off, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno == EPIPE || errno == ECONNRESET) server_closed = true;
            else if (errno != EAGAIN) die("send");
            break;
        }
        out->off += n;
    }
    if (out->off == out->len) out->off = out->len = 0;
    bool wanted = out->len > 0;
    if (wanted != c->writable_wanted) {
        struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
        c->writable_wanted = wanted;
    }
}
static void fill(conn *c) {
    room(&c->in, c->in.cap ? READ_ROOM : FIRST_BUFFER);
    ssize_t n = recv(c->fd, c->in.data + c->in.len, c->in.cap - c->in.len, 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) server_closed = true;
    else if (n < 0 && errno != EAGAIN && errno != EINTR) die("recv");
    else if (n > 0) c->in.len += n;
}
static const uint8_t *next_frame(conn *c, uint32_t *size, uint32_t *type) { /* NULL: more bytes are needed */
    buffer *in = &c->in;
    const uint8_t *frame = in->data + in->off;
    if (in->len - in->off < 8 || in->len - in->off < 4 + (size_t)(*size = get32(frame))) return NULL;
    *type = get32(frame + 4);
    in->off += 4 + (size_t)*size;
    return frame;
}
static void done_reading(conn *c) { /* what is left is the beginning of a frame */
    buffer *in = &c->in;
    if (in->off == in->len) in->off = in->len = 0;
    else if (in->off) { memmove(in->data, in->data + in->off, in->len - in->off); in->len -= in->off; in->off = 0; }
}
static bool is_response(const uint8_t *frame, uint32_t size, uint32_t type, const char *text) {
    return type == RESPONSE && size == 4 + strlen(text) && !memcmp(frame + 8, text, strlen(text));
}
static void show_error(uint64_t *errors, const uint8_t *text, size_t n) {
    if (++*errors == 1) fprintf(stderr, "loadgen: the server says: %.*s\n", (int)(n > 300 ? 300 : n), text);
}
static void hang_up(conn *conns, int n) { /* lets the server read our last bytes: close() with unread input resets */
    uint8_t sink[65536];
    double end = now() + 1;
    for (int i = 0; i < n; i++) { flush(&conns[i]); shutdown(conns[i].fd, SHUT_WR); }
    for (int i = 0; i < n; i++) {
        for (ssize_t k; now() < end && ((k = recv(conns[i].fd, sink, sizeof sink, 0)) > 0 || (k < 0 && errno == EAGAIN));)
            if (k < 0) usleep(500);
        close(conns[i].fd);
    }
}

/* publishing */

static const uint8_t group_header[] = "\0\33\11nsq-group\0\17customer-000000";
enum { GROUP_HEADER = sizeof group_header - 1, GROUP_DIGITS = 6 };

typedef struct { buffer bytes; size_t first_body, key; } command;
typedef struct {
    settings set;
    int batch, size, conns;
    command *commands; /* one for each topic */
    double start;
    uint64_t sent, confirmed, errors;
} publishing;

static void add_body(buffer *b, const publishing *p) {
    room(b, p->size);
    uint8_t *body = b->data + b->len;
    memset(body, 'x', p->size);
    for (int i = 0; p->set.noise && i < p->size; i++) body[i] = next_random();
    if (p->set.headers) {
        static const uint8_t pair[10] = "\7header0\0\36"; /* and a value of 30 bytes */
        body[0] = 0, body[1] = 200;
        for (int i = 0; i < 5; i++) {
            memcpy(body + 2 + 40 * i, pair, sizeof pair);
            body[2 + 40 * i + 7] = '0' + i;
        }
    }
    if (p->set.groups) memcpy(body, group_header, GROUP_HEADER);
    b->len += p->size;
}
static void add_bodies(command *c, const publishing *p) { /* as MPUB has them: count, then size and body of each */
    add32(&c->bytes, p->batch);
    c->first_body = c->bytes.len + 4;
    for (int i = 0; i < p->batch; i++) {
        add32(&c->bytes, p->size);
        add_body(&c->bytes, p);
    }
}
static void make_command(command *c, const publishing *p, const target *to, int number, bool http) {
    char line[512], topic[128];
    size_t body = p->batch == 1 ? (size_t)p->size : 4 + (size_t)p->batch * (4 + p->size);
    int n;
    if (p->set.topics > 1) snprintf(topic, sizeof topic, "%s_%d", to->topic, number);
    else snprintf(topic, sizeof topic, "%s", to->topic);
    if (http) {
        char query[64] = "";
        if (p->batch > 1) strcpy(query, "&binary=true");
        else if (p->set.defer) snprintf(query, sizeof query, "&defer=%d", p->set.defer);
        n = snprintf(line, sizeof line, "POST /%spub?topic=%s%s HTTP/1.1\r\nHost: %s:%d\r\nUser-Agent: loadgen/2\r\nContent-Length: %zu\r\n\r\n",
                     p->batch > 1 ? "m" : "", topic, query, to->host, to->port, body);
    } else if (p->set.keys) {
        n = snprintf(line, sizeof line, "%sPUB %s %s00000000\n", p->batch > 1 ? "M" : "", topic, p->set.keys);
        c->key = n - 9;
    } else if (p->set.headers || p->set.groups) n = snprintf(line, sizeof line, "H%sPUB %s\n", p->batch > 1 ? "M" : "", topic);
    else if (p->batch > 1) n = snprintf(line, sizeof line, "MPUB %s\n", topic);
    else if (p->set.defer) n = snprintf(line, sizeof line, "DPUB %s %d\n", topic, p->set.defer);
    else n = snprintf(line, sizeof line, "PUB %s\n", topic);
    add(&c->bytes, line, n);
    if (!http) add32(&c->bytes, body);
    if (p->batch > 1) { add_bodies(c, p); return; }
    c->first_body = c->bytes.len;
    add_body(&c->bytes, p);
}
static bool may_send(const publishing *p) {
    if (p->set.count && p->sent >= p->set.count) return false;
    return !p->set.rate || p->sent < (now() - p->start) * p->set.rate;
}
static uint32_t group_of(const publishing *p, uint64_t number) {
    uint32_t first = p->set.group, n = p->set.groups;
    if (p->set.draw == AT_RANDOM) return first + next_random() % n;
    if (p->set.draw == HALF_TO_FIRST) return number % 2 ? first : first + 1 + number / 2 % (n - 1);
    return first + number % n;
}
static void name_groups(const publishing *p, uint8_t *message) { /* of all messages of a command */
    double stamp = now();
    for (int i = 0; i < p->batch; i++, message += 4 + p->size) {
        uint32_t group = group_of(p, p->sent + i);
        memcpy(message + GROUP_HEADER + 8, &group, sizeof group);
        if (p->set.stamp) memcpy(message + GROUP_HEADER, &stamp, sizeof stamp);
        for (uint8_t *digit = message + GROUP_HEADER; digit > message + GROUP_HEADER - GROUP_DIGITS; group /= 10) *--digit = '0' + group % 10;
    }
}
static void send_command(publishing *p, conn *c) {
    command *next = &p->commands[(c->index + c->turns++) % p->set.topics];
    if (p->set.groups) name_groups(p, next->bytes.data + next->first_body);
    if (p->set.verify)
        for (int i = 0; i < p->batch; i++) {
            uint64_t number = p->sent + i;
            memcpy(next->bytes.data + next->first_body + (size_t)i * (4 + p->size), &number, sizeof number);
        }
    if (next->key)
        for (uint64_t i = 0, number = p->sent / p->batch; i < 8; i++, number /= 10) next->bytes.data[next->key + 7 - i] = '0' + number % 10;
    add(&c->out, next->bytes.data, next->bytes.len);
    p->sent += p->batch;
}
static void pay(publishing *p, conn *c) { /* sends what the window allows */
    while (c->owed && may_send(p)) { send_command(p, c); c->owed--; }
}
static unsigned read_responses(publishing *p, conn *c) { /* how many commands were answered */
    uint32_t size, type;
    unsigned answered = 0;
    for (const uint8_t *frame; (frame = next_frame(c, &size, &type));) {
        if (is_response(frame, size, type, "_heartbeat_")) { add(&c->out, "NOP\n", 4); continue; }
        if (type == ERROR) show_error(&p->errors, frame + 8, size - 4);
        else if (c->started && !is_response(frame, size, type, "OK")) continue;
        else if (c->started) p->confirmed += p->batch;
        answered++;
    }
    return answered;
}
static unsigned read_answers(publishing *p, conn *c) { /* the same for HTTP */
    unsigned answered = 0;
    for (;;) {
        buffer *in = &c->in;
        char *head = (char *)in->data + in->off, *blank = memmem(head, in->len - in->off, "\r\n\r\n", 4);
        if (!blank) return answered;
        size_t length = 0, head_length = blank + 4 - head;
        bool known = false;
        for (char *line = head; line < blank; line = (char *)memmem(line, blank + 2 - line, "\r\n", 2) + 2)
            if (!strncasecmp(line, "content-length:", 15)) { length = strtoul(line + 15, NULL, 10); known = true; }
        if (!known) usage("an answer without Content-Length");
        if (in->len - in->off < head_length + length) return answered;
        if (memcmp(head + 9, "200", 3)) show_error(&p->errors, (uint8_t *)head, head_length + length);
        else p->confirmed += p->batch;
        in->off += head_length + length;
        answered++;
    }
}
static int publish(const target *to, settings set, int nconns, int batch, int size, double seconds, bool http) {
    publishing p = {.set = set, .batch = batch, .size = size, .conns = nconns};
    if (set.verify && size < 8) usage("verify needs bodies of 8 bytes");
    if (set.headers && (size <= 202 || set.verify || set.keys)) usage("headers need more than 202 bytes, and neither verify nor keys");
    if (set.groups && (size < GROUP_HEADER + 12 || http || set.headers || set.keys || set.verify || set.defer))
        usage("groups need 41 bytes, and neither http, headers, keys, verify nor defer");
    if (set.stamp && !set.groups) usage("stamp needs groups");
    if (set.draw == HALF_TO_FIRST && set.groups < 2) usage("draw=half needs two groups");
    if (set.count) p.set.count = (set.count + batch - 1) / batch * batch;
    p.commands = need(calloc(set.topics, sizeof *p.commands));
    for (int i = 0; i < set.topics; i++) make_command(&p.commands[i], &p, to, i, http);
    conn *conns = need(calloc(nconns, sizeof *conns));
    int identified = 0;
    for (int i = 0; i < nconns; i++) {
        dial(&conns[i], i, to);
        if (http) conns[i].started = true, conns[i].owed = set.window;
        else identify(&conns[i], -1, 0, set.keys ? "keys" : set.headers || set.groups ? "headers" : NULL);
    }
    double t = p.start = now(), end = t + seconds;
    for (int i = 0; i < nconns; i++) { pay(&p, &conns[i]); flush(&conns[i]); }
    struct epoll_event events[EVENTS];
    while ((t = now()) < end && !server_closed) {
        if (p.set.count && p.sent >= p.set.count && p.confirmed + p.errors * batch >= p.set.count) break;
        int n = epoll_wait(epoll, events, EVENTS, set.rate ? 1 : 100);
        for (int i = 0; i < n; i++) {
            conn *c = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) fill(c);
            unsigned answered = http ? read_answers(&p, c) : read_responses(&p, c);
            done_reading(c);
            if (!c->started && answered) { /* nobody sends before all are there: then the clock starts */
                c->started = true;
                answered = 0;
                if (++identified == nconns) {
                    p.start = now();
                    end = p.start + seconds;
                    for (int k = 0; k < nconns; k++) { conns[k].owed = set.window; pay(&p, &conns[k]); flush(&conns[k]); }
                }
            }
            c->owed += answered;
            pay(&p, c);
            flush(c);
        }
        if (set.rate)
            for (int i = 0; i < nconns; i++) { pay(&p, &conns[i]); flush(&conns[i]); }
    }
    double took = t - p.start;
    bool is_short = p.set.count && p.confirmed < p.set.count;
    printf("mode=%s conns=%d batch=%d size=%d window=%d seconds=%.3f sent=%llu msgs=%llu msgs_per_s=%.0f errors=%llu closed=%d\n",
           http ? "http" : "pub", nconns, batch, size, set.window, took, (unsigned long long)p.sent,
           (unsigned long long)p.confirmed, p.confirmed / took, (unsigned long long)p.errors, server_closed);
    return server_closed ? 3 : is_short ? 4 : 0;
}

/* consuming */

enum { SLOTS = 1 << 15 }; /* of a tenth of a millisecond each */

typedef struct worked_on { struct worked_on *next; conn *c; uint8_t id[16]; } worked_on;
typedef struct {
    settings set;
    uint64_t got, finished, redelivered, duplicate, foreign, errors, lates;
    uint8_t **seen; /* for each channel, a bit for each running number */
    double *first_at, *late, first, last;
    worked_on **slots, *spare; /* messages that are finished later, by the slot of their time, modulo SLOTS */
    uint64_t slot;             /* the next one to be finished */
    FILE *waits;
} consuming;

static uint64_t slot_at(double time) { return time * 1e4; }

static void say_fin(conn *c, const uint8_t *id) {
    uint8_t line[21] = "FIN 0123456789abcdef\n";
    memcpy(line + 4, id, 16);
    add(&c->out, line, sizeof line);
}
static void work_on(consuming *s, conn *c, const uint8_t *id) {
    worked_on *it = s->spare ? s->spare : need(malloc(sizeof *it));
    if (it == s->spare) s->spare = it->next;
    worked_on **slot = &s->slots[slot_at(now() + s->set.work * 1e-3 * (.5 + next_random() % 1000 * 1e-3)) % SLOTS];
    *it = (worked_on){.next = *slot, .c = c};
    memcpy(it->id, id, sizeof it->id);
    *slot = it;
}
static void finish_worked_on(consuming *s) { /* what is due now */
    for (uint64_t due = slot_at(now()); s->slot <= due; s->slot++) {
        worked_on *it = s->slots[s->slot % SLOTS], *next;
        s->slots[s->slot % SLOTS] = NULL;
        for (; it; it = next) {
            say_fin(it->c, it->id);
            s->finished++;
            next = it->next, it->next = s->spare, s->spare = it;
        }
    }
}
static void note_wait(consuming *s, const uint8_t *frame, uint32_t size) {
    double stamp = 0, arrived = now();
    if (size >= 30 + sizeof stamp) memcpy(&stamp, frame + MESSAGE_HEAD, sizeof stamp);
    if (stamp > 0 && stamp <= arrived) fprintf(s->waits, "%.0f\n", (arrived - stamp) * 1e6); /* letters are a huge number */
}
static bool is_apart(const consuming *s, const uint8_t *frame, uint32_t size) {
    uint32_t group = 0;
    if (s->set.apart < 0 || size < 30 + 8 + sizeof group) return false;
    memcpy(&group, frame + MESSAGE_HEAD + 8, sizeof group);
    return group == (uint32_t)s->set.apart;
}
static void finish_or_not(consuming *s, conn *c, const uint8_t *frame, uint32_t size) {
    unsigned attempts = (unsigned)frame[16] << 8 | frame[17];
    uint64_t number = UINT64_MAX;
    if (is_apart(s, frame, size)) {
        if (!s->set.stuck) say_fin(c, frame + 18);
        return;
    }
    if (s->waits && attempts == 1) note_wait(s, frame, size);
    if (s->set.verify && size >= 30 + sizeof number) memcpy(&number, frame + MESSAGE_HEAD, sizeof number);
    s->got++;
    if (attempts > 1) s->redelivered++;
    if (attempts == 1 && s->set.first == HOLD_FIRST) {
        if (number < s->set.verify) s->first_at[number] = now();
        return;
    }
    if (attempts == 1 && s->set.first == REQ_FIRST) {
        uint8_t line[23] = "REQ 0123456789abcdef 0\n";
        memcpy(line + 4, frame + 18, 16);
        add(&c->out, line, sizeof line);
        return;
    }
    if (s->set.work) { work_on(s, c, frame + 18); return; }
    say_fin(c, frame + 18);
    s->finished++;
    if (!s->set.verify) return;
    if (number >= s->set.verify) { s->foreign++; return; }
    uint8_t *byte = &s->seen[c->index % s->set.channels][number / 8], bit = 1 << number % 8;
    if (*byte & bit) s->duplicate++;
    *byte |= bit;
    if (s->set.first == HOLD_FIRST && s->first_at[number] && s->lates < s->set.verify)
        s->late[s->lates++] = (now() - s->first_at[number]) * 1e3 - s->set.timeout;
}
static uint64_t count_lost(const consuming *s) {
    uint64_t lost = 0;
    for (int k = 0; k < s->set.channels; k++)
        for (uint64_t i = 0; i < s->set.verify; i++) lost += !(s->seen[k][i / 8] >> i % 8 & 1);
    return lost;
}
static void stop(int number) { stopping = number; }
static int wait_for_events(struct epoll_event *events, const consuming *s) {
    if (!s->set.work) return epoll_wait(epoll, events, EVENTS, 100);
    struct pollfd any = {.fd = epoll, .events = POLLIN};
    ppoll(&any, 1, &(struct timespec){.tv_nsec = 100000}, NULL); /* epoll_wait counts in milliseconds */
    return epoll_wait(epoll, events, EVENTS, 0);
}
static int consume(const target *to, settings set, int nconns, int rdy, double seconds) {
    consuming s = {.set = set};
    if (set.work && (set.verify || set.work * 15 >= SLOTS)) usage("work is at most 2184, and without verify");
    if (set.waits && !(s.waits = fopen(set.waits, "w"))) die(set.waits);
    signal(SIGTERM, stop);
    s.slots = need(calloc(SLOTS, sizeof *s.slots));
    s.slot = slot_at(now());
    char line[300], topic[128], channel[128];
    conn *conns = need(calloc(nconns, sizeof *conns));
    s.seen = need(calloc(set.channels, sizeof *s.seen));
    for (int k = 0; k < set.channels; k++) s.seen[k] = need(calloc(set.verify / 8 + 1, 1));
    s.first_at = need(calloc(set.first == HOLD_FIRST ? set.verify + 1 : 1, sizeof *s.first_at));
    s.late = need(calloc(set.first == HOLD_FIRST ? set.verify + 1 : 1, sizeof *s.late));
    for (int i = 0; i < nconns; i++) {
        dial(&conns[i], i, to);
        identify(&conns[i], 30000, set.timeout, set.headers ? "headers" : NULL);
        snprintf(topic, sizeof topic, set.topics > 1 ? "%s_%d" : "%s", to->topic, i % set.topics);
        snprintf(channel, sizeof channel, set.channels > 1 ? "%s_%d" : "%s", to->channel, i % set.channels);
        add(&conns[i].out, line, snprintf(line, sizeof line, "SUB %s %s\nRDY %d\n", topic, channel, rdy));
        flush(&conns[i]);
    }
    struct epoll_event events[EVENTS];
    double start = now(), end = start + seconds, t;
    s.last = start;
    while ((t = now()) < end && !server_closed && !stopping) {
        if (set.count && s.finished >= set.count) break;
        if (set.quiet && s.got && t - s.last > set.quiet) break;
        int n = wait_for_events(events, &s);
        for (int i = 0; i < n; i++) {
            conn *c = events[i].data.ptr;
            uint32_t size, type;
            uint64_t before = s.got;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) fill(c);
            if (!s.got) s.first = now();
            for (const uint8_t *frame; (frame = next_frame(c, &size, &type));) {
                if (type == MESSAGE || type == HEADED_MESSAGE) finish_or_not(&s, c, frame, size);
                else if (type == ERROR) show_error(&s.errors, frame + 8, size - 4);
                else if (is_response(frame, size, type, "_heartbeat_")) add(&c->out, "NOP\n", 4);
            }
            if (s.got > before) s.last = now();
            done_reading(c);
            flush(c);
        }
        if (!set.work) continue;
        finish_worked_on(&s);
        for (int i = 0; i < nconns; i++) flush(&conns[i]);
    }
    if (s.waits && fclose(s.waits)) die(set.waits);
    double took = s.got ? s.last - s.first : t - start;
    hang_up(conns, nconns);
    qsort(s.late, s.lates, sizeof *s.late, compare);
    printf("mode=sub conns=%d rdy=%d seconds=%.3f msgs=%llu msgs_per_s=%.0f finished=%llu finished_per_s=%.0f redelivered=%llu errors=%llu closed=%d",
           nconns, rdy, took, (unsigned long long)s.got, took > 0 ? s.got / took : 0, (unsigned long long)s.finished,
           took > 0 ? s.finished / took : 0, (unsigned long long)s.redelivered, (unsigned long long)s.errors, server_closed);
    if (set.verify)
        printf(" lost=%llu duplicate=%llu foreign=%llu", (unsigned long long)count_lost(&s), (unsigned long long)s.duplicate,
               (unsigned long long)s.foreign);
    if (s.lates)
        printf(" early_ms=%.2f late_p50_ms=%.2f late_p99_ms=%.2f late_max_ms=%.2f", s.late[0], quantile(s.late, s.lates, .5),
               quantile(s.late, s.lates, .99), s.late[s.lates - 1]);
    printf("\n");
    return server_closed ? 3 : set.count && s.finished < set.count ? 4 : 0;
}

/* latency: the send time travels in the body. It is taken when the message is queued, so a server that stops reading
 * is seen; a load generator that was not scheduled is not. */

static int latency(const target *to, double rate, int size, double seconds) {
    conn publisher = {0}, consumer = {0};
    char line[300];
    uint64_t room_for = (uint64_t)(rate * seconds) + 16, received = 0, sent = 0, errors = 0;
    double *took = need(malloc(room_for * sizeof *took));
    if (size < 8) size = 8;
    uint8_t *body = need(malloc(size));
    memset(body, 'x', size);
    dial(&publisher, 0, to);
    dial(&consumer, 1, to);
    identify(&publisher, -1, 0, NULL);
    identify(&consumer, 60000, 0, NULL);
    add(&consumer.out, line, snprintf(line, sizeof line, "SUB %s %s\nRDY 2500\n", to->topic, to->channel));
    flush(&consumer);
    flush(&publisher);
    usleep(300000);
    int line_length = snprintf(line, sizeof line, "PUB %s\n", to->topic);
    struct epoll_event events[EVENTS];
    double start = now(), end = start + seconds, t;
    while (((t = now()) < end || received < sent) && t < end + 1 && !server_closed) {
        while (t < end && sent < (t - start) * rate && sent < room_for) {
            double stamp = now();
            memcpy(body, &stamp, sizeof stamp);
            add(&publisher.out, line, line_length);
            add32(&publisher.out, size);
            add(&publisher.out, body, size);
            sent++;
        }
        flush(&publisher);
        int n = epoll_wait(epoll, events, EVENTS, 0); /* never sleeps: its own wake-up is not the server's */
        for (int i = 0; i < n; i++) {
            conn *c = events[i].data.ptr;
            uint32_t frame_size, type;
            fill(c);
            double arrived = now();
            for (const uint8_t *frame; (frame = next_frame(c, &frame_size, &type));) {
                if (type == ERROR) show_error(&errors, frame + 8, frame_size - 4);
                if (type != MESSAGE) continue;
                double stamp;
                memcpy(&stamp, frame + MESSAGE_HEAD, sizeof stamp);
                if (stamp >= start && stamp <= arrived && received < room_for) took[received++] = (arrived - stamp) * 1e6;
                uint8_t fin[21] = "FIN 0123456789abcdef\n";
                memcpy(fin + 4, frame + 18, 16);
                add(&c->out, fin, sizeof fin);
            }
            done_reading(c);
            flush(c);
        }
    }
    qsort(took, received, sizeof *took, compare);
    printf("mode=lat rate=%.0f size=%d sent=%llu received=%llu p50_us=%.0f p99_us=%.0f p999_us=%.0f max_us=%.0f errors=%llu closed=%d\n",
           rate, size, (unsigned long long)sent, (unsigned long long)received, quantile(took, received, .5),
           quantile(took, received, .99), quantile(took, received, .999), quantile(took, received, 1),
           (unsigned long long)errors, server_closed);
    return server_closed ? 3 : received < sent ? 4 : 0;
}

/* connections that do nothing */

static int idle(const target *to, int nconns, double seconds) {
    conn *conns = need(calloc(nconns, sizeof *conns));
    uint64_t errors = 0, heartbeats = 0;
    int identified = 0;
    for (int i = 0; i < nconns; i++) {
        dial(&conns[i], i, to);
        conns[i].in.data = need(malloc(conns[i].in.cap = 4096));
        identify(&conns[i], 30000, 0, NULL);
        flush(&conns[i]);
    }
    struct epoll_event events[EVENTS];
    double end = now() + seconds;
    while (now() < end && !server_closed) {
        int n = epoll_wait(epoll, events, EVENTS, 100);
        for (int i = 0; i < n; i++) {
            conn *c = events[i].data.ptr;
            uint32_t size, type;
            ssize_t k = recv(c->fd, c->in.data + c->in.len, c->in.cap - c->in.len, 0);
            if (k == 0) server_closed = true;
            if (k > 0) c->in.len += k;
            for (const uint8_t *frame; (frame = next_frame(c, &size, &type));) {
                if (type == ERROR) show_error(&errors, frame + 8, size - 4);
                else if (is_response(frame, size, type, "_heartbeat_")) { heartbeats++; add(&c->out, "NOP\n", 4); }
                else if (++identified == nconns) { printf("ready conns=%d\n", nconns); fflush(stdout); }
            }
            done_reading(c);
            flush(c);
        }
    }
    printf("mode=idle conns=%d identified=%d heartbeats=%llu errors=%llu closed=%d\n", nconns, identified,
           (unsigned long long)heartbeats, (unsigned long long)errors, server_closed);
    return server_closed ? 3 : identified < nconns ? 4 : 0;
}

/* the command line */

static void read_setting(settings *set, const char *argument) {
    const char *value = strchr(argument, '=');
    size_t n = value ? (size_t)(value++ - argument) : 0;
    if (!value) { set->window = atoi(argument); return; }
#define IS(word) (n == strlen(word) && !strncmp(argument, word, n))
    if (IS("count")) set->count = strtoull(value, NULL, 10);
    else if (IS("rate")) set->rate = strtoull(value, NULL, 10);
    else if (IS("verify")) set->verify = strtoull(value, NULL, 10);
    else if (IS("noise")) set->noise = strtoull(value, NULL, 10);
    else if (IS("topics")) set->topics = atoi(value);
    else if (IS("channels")) set->channels = atoi(value);
    else if (IS("defer")) set->defer = atoi(value);
    else if (IS("keys")) set->keys = value;
    else if (IS("headers")) set->headers = atoi(value);
    else if (IS("groups")) set->groups = atoi(value);
    else if (IS("group")) set->group = atoi(value);
    else if (IS("draw")) set->draw = !strcmp(value, "random") ? AT_RANDOM : !strcmp(value, "half") ? HALF_TO_FIRST : IN_TURN;
    else if (IS("stamp")) set->stamp = atoi(value);
    else if (IS("work")) set->work = atoi(value);
    else if (IS("apart")) set->apart = atoi(value);
    else if (IS("stuck")) set->stuck = atoi(value);
    else if (IS("waits")) set->waits = value;
    else if (IS("timeout")) set->timeout = atoi(value);
    else if (IS("quiet")) set->quiet = atof(value);
    else if (IS("first")) set->first = !strcmp(value, "hold") ? HOLD_FIRST : !strcmp(value, "req") ? REQ_FIRST : FIN_FIRST;
    else usage(argument);
#undef IS
}
int main(int argc, char **argv) {
    settings set = {.topics = 1, .channels = 1, .window = 1, .apart = -1};
    struct rlimit files;
    if (argc < 7) usage("too few arguments");
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* never outlive who measures */
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    const char *mode = argv[1];
    target to = {.host = argv[2], .port = atoi(argv[3]), .topic = argv[4], .channel = argv[5]};
    bool http = !strcmp(mode, "http");
    int positional = !strcmp(mode, "idle") ? 7 : 9;
    if (argc < positional) usage("too few arguments");
    for (int i = positional; i < argc; i++) read_setting(&set, argv[i]);
    if (set.topics < 1 || set.channels < 1 || set.window < 1) usage("topics, channels and window are at least 1");
    if (http || !strcmp(mode, "pub")) return publish(&to, set, atoi(argv[5]), atoi(argv[6]), atoi(argv[7]), atof(argv[8]), http);
    if (!strcmp(mode, "sub")) return consume(&to, set, atoi(argv[6]), atoi(argv[7]), atof(argv[8]));
    if (!strcmp(mode, "lat")) return latency(&to, atof(argv[6]), atoi(argv[7]), atof(argv[8]));
    if (!strcmp(mode, "idle")) return idle(&to, atoi(argv[5]), atof(argv[6]));
    usage("unknown mode");
}
