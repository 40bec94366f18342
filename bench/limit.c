/* The physical limit of publishing: what a broker with a log could do at best, because it makes only the system calls that
 * such a broker needs.  cc -O2 -o limit limit.c; ./limit PORT FILE
 *
 * One thread and one epoll. A turn has three steps:
 *
 *   1. receive what the ready connections have sent, and cut it into commands;
 *   2. write the messages of all connections to the file, with one write;
 *   3. send each of these connections its OKs, with one send.
 *
 * So an OK promises what nsqd's `--ack written` does: the message is in the file, and a `kill -9` doesn't take it.
 *
 * It isn't a broker: nobody can consume. IDENTIFY and SUB are answered so that load generators can connect; PUB and MPUB
 * are cut by their sizes and kept, whatever the topic. Anything else closes the connection. SIGTERM ends it, and so does
 * the end of its parent. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 256, BACKLOG = 1024, MAGIC = 4, PREFIX = 4, OK_SIZE = 10, OKS_PER_SEND = 4096 };
enum { LONGEST_LINE = 256, LARGEST_BODY = 5 << 20 }; /* nsqd's default for a body */
/* The longest command fits, so there is always room for the rest of it. Pages that nothing reaches take no memory. */
enum { INPUT = LONGEST_LINE + PREFIX + LARGEST_BODY };
enum { INCOMPLETE = 0, INVALID = -1 };

typedef struct { int fd; bool greeted; size_t owed, length; uint8_t input[INPUT]; } conn; /* owed: OKs, length: of the input */

static int poller;
static uint8_t oks[OKS_PER_SEND * OK_SIZE];
static struct { int fd; size_t length, capacity; uint8_t *data; } records; /* of this turn, not yet in the file */

static void fail(const char *what) {
    fprintf(stderr, "limit: %s: %s\n", what, strerror(errno));
    exit(2);
}
static void hang_up(conn *c) {
    close(c->fd); /* which also takes it out of the epoll */
    free(c);
}

/* 1. receive and cut */

static void record(const uint8_t *data, size_t size) {
    if (records.length + size > records.capacity) {
        records.capacity = 2 * (records.length + size);
        records.data = realloc(records.data, records.capacity);
        if (!records.data) fail("memory");
    }
    memcpy(records.data + records.length, data, size);
    records.length += size;
}
static uint32_t number(const uint8_t *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }
static bool begins(const uint8_t *line, size_t size, const char *word) {
    return size > strlen(word) && !memcmp(line, word, strlen(word));
}

/* Returns the size of the command at the start of the input, INCOMPLETE, or INVALID. */
static long cut_command(const uint8_t *input, size_t size) {
    const uint8_t *end = memchr(input, '\n', size < LONGEST_LINE ? size : LONGEST_LINE);
    if (!end) return size < LONGEST_LINE ? INCOMPLETE : INVALID;
    size_t line = (size_t)(end - input) + 1;
    if (begins(input, line, "SUB ")) return (long)line;
    bool one = begins(input, line, "PUB "), many = begins(input, line, "MPUB ");
    if (!one && !many && !begins(input, line, "IDENTIFY")) return INVALID;
    if (size < line + PREFIX) return INCOMPLETE;
    size_t body = number(input + line), whole = line + PREFIX + body;
    if (body > LARGEST_BODY || (many && body < PREFIX)) return INVALID;
    if (size < whole) return INCOMPLETE;
    /* The file gets each message behind its size, as the wire has it. An MPUB starts with the number of its messages; that
     * they fill its body exactly is for a broker to check. */
    if (one) record(input + line, PREFIX + body);
    if (many) record(input + line + 2 * PREFIX, body - PREFIX);
    return (long)whole;
}

/* Returns whether the connection is still open. */
static bool cut(conn *c) {
    size_t at = 0;
    if (!c->greeted) {
        if (memcmp(c->input, "  V2", c->length < MAGIC ? c->length : MAGIC)) return hang_up(c), false;
        if (c->length < MAGIC) return true;
        c->greeted = true;
        at = MAGIC;
    }
    for (long size; (size = cut_command(c->input + at, c->length - at)) != INCOMPLETE; at += (size_t)size, c->owed++)
        if (size == INVALID) return hang_up(c), false;
    c->length -= at;
    if (at && c->length) memmove(c->input, c->input + at, c->length);
    return true;
}
static bool receive(conn *c) {
    ssize_t n = recv(c->fd, c->input + c->length, INPUT - c->length, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return hang_up(c), false;
    c->length += (size_t)n;
    return cut(c);
}

/* 2. write */

static void write_records(void) {
    for (size_t at = 0; at < records.length;) { /* once, unless the disk is nearly full */
        ssize_t n = write(records.fd, records.data + at, records.length - at);
        if (n < 0 && errno != EINTR) fail("write"); /* before any OK */
        if (n > 0) at += (size_t)n;
    }
    records.length = 0;
}

/* 3. answer */

static void answer(conn *c) {
    while (c->owed) {
        size_t count = c->owed < OKS_PER_SEND ? c->owed : OKS_PER_SEND;
        ssize_t n = send(c->fd, oks, count * OK_SIZE, MSG_NOSIGNAL);
        /* Not all of it fits only if the peer has left hundreds of thousands of OKs unread: we don't wait for that one. */
        if (n != (ssize_t)(count * OK_SIZE)) { hang_up(c); return; }
        c->owed -= count;
    }
}

/* connections */

static void watch(int fd, conn *c) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
}
static void accept_all(int listener) {
    int one = 1;
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        conn *c = malloc(sizeof *c);
        if (!c) fail("memory");
        c->fd = fd, c->greeted = false, c->owed = c->length = 0;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        watch(fd, c);
    }
}
static int listen_on(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&address, sizeof address) || listen(fd, BACKLOG)) fail("listen");
    return fd;
}
static void turn(int listener) {
    struct epoll_event events[EVENTS];
    conn *received[EVENTS];
    int count = 0, n = epoll_wait(poller, events, EVENTS, -1);
    if (n < 0 && errno != EINTR) fail("epoll_wait");
    for (int i = 0; i < n; i++) {
        conn *c = events[i].data.ptr;
        if (!c) accept_all(listener);
        else if (receive(c)) received[count++] = c;
    }
    write_records();
    for (int i = 0; i < count; i++) answer(received[i]);
}
int main(int argc, char **argv) {
    if (argc != 3) return fputs("usage: limit PORT FILE\n", stderr), 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < OKS_PER_SEND; i++) memcpy(oks + i * OK_SIZE, "\0\0\0\6\0\0\0\0OK", OK_SIZE);
    records.fd = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (records.fd < 0) fail(argv[2]);
    poller = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_on(atoi(argv[1]));
    watch(listener, NULL);
    for (;;) turn(listener);
}
