/* beanstalkd: put; reserve and delete. https://github.com/beanstalkd/beanstalkd/blob/master/doc/protocol.txt
 *
 * A connection may have several reserves on their way, but one that waits holds up all commands behind it. So only
 * the last one waits, and those before it have a timeout of 0. A batch is so many puts in one write. */
#include "load.h"
#include <string.h>

enum { FIRST, WATCHING };

static void reserve(conn *c, bool may_wait) {
    add_text(&c->out, "reserve-with-timeout %d\r\n", may_wait);
    c->a++; /* reserves on their way */
}
static void hello(conn *c) {
    if (c->role == CONSUMES) add_text(&c->out, "watch %s\r\nignore default\r\n", set.queue);
    else add_text(&c->out, "use %s\r\n", set.queue);
}
static void publish(conn *c, int n) {
    for (int i = 0; i < n; i++) {
        add_text(&c->out, "put 0 0 600 %d\r\n", set.size);
        put_body(c);
        add(&c->out, "\r\n", 2);
    }
}
static void refill(conn *c) {
    if (!c->a) reserve(c, true);
    else
        for (int i = 0; i < 2 && c->a < (uint64_t)set.window; i++) reserve(c, false);
}
static bool reserved(conn *c, const char *line, size_t n) { /* false: the body is not here yet */
    const char *at = line + strlen("RESERVED"), *end = line + n;
    uint64_t id = number_in(&at, end), size = number_in(&at, end);
    size_t have, head = n + 2;
    const uint8_t *all = unread(c, &have);
    if (have < head + size + 2) return false;
    message_came(all + head, size);
    c->in.off += head + size + 2;
    add_text(&c->out, "delete %llu\r\n", (unsigned long long)id);
    c->a--;
    refill(c);
    return true;
}
static void depth(conn *c, const char *line, size_t n) { /* OK bytes, then a line of YAML for each figure */
    static const char wanted[] = "\ncurrent-jobs-ready: ";
    const char *at = line + strlen("OK"), *end = line + n;
    uint64_t size = number_in(&at, end);
    size_t have;
    const uint8_t *all = unread(c, &have);
    if (have < n + 2 + size + 2) return;
    const char *found = memmem(all, have, wanted, strlen(wanted));
    if (!found) refused("no current-jobs-ready", all, have);
    found += strlen(wanted);
    depth_is(number_in(&found, (const char *)all + have));
    c->in.off += n + 2 + size + 2;
    is_ready(c);
}
static void begin(conn *c, const char *line, size_t n) {
    bool is_known = begins(line, n, "USING") || begins(line, n, "WATCHING");
    if (!is_known) refused("beanstalkd", line, n);
    if (c->role == ASKS_DEPTH) add_text(&c->out, "stats-tube %s\r\n", set.queue);
    else if (c->role == CONSUMES && c->stage == FIRST) c->stage = WATCHING;
    else {
        if (c->role == CONSUMES) reserve(c, true);
        is_ready(c);
    }
}
static void timed_out(conn *c) {
    c->a--;
    if (!c->a) reserve(c, true);
}
static void take(conn *c) {
    size_t n;
    for (const char *line; (line = line_of(c, &n));) {
        if (begins(line, n, "RESERVED ")) {
            if (!reserved(c, line, n)) return;
            continue;
        }
        if (c->role == ASKS_DEPTH && begins(line, n, "OK ")) { depth(c, line, n); return; }
        c->in.off += n + 2;
        if (!c->ready) begin(c, line, n);
        else if (begins(line, n, "INSERTED ")) confirm_next(c, 1);
        else if (begins(line, n, "TIMED_OUT")) timed_out(c);
        else if (!begins(line, n, "DELETED")) refused("beanstalkd", line, n);
    }
}
const protocol beanstalk = {"beanstalk", hello, take, publish};
