/* Redis Streams over RESP2: XADD; XREADGROUP and one XACK for all that came. https://redis.io/docs/latest/develop/data-types/streams/
 *
 * A batch is so many XADDs in one write: no command adds several entries. */
#include "load.h"
#include <string.h>

typedef struct { const char *at, *end; } cursor;
typedef struct { char type; int64_t value; const char *text; } token; /* value: the number, or the length */

static void hello(conn *c) {
    if (c->role == ASKS_DEPTH) add_text(&c->out, "XLEN %s\r\n", set.queue);
    else if (c->role == PUBLISHES) add_text(&c->out, "PING\r\n");
    else add_text(&c->out, "XGROUP CREATE %s g 0 MKSTREAM\r\n", set.queue);
}
static void publish(conn *c, int n) {
    for (int i = 0; i < n; i++) {
        add_text(&c->out, "*5\r\n$4\r\nXADD\r\n$%zu\r\n%s\r\n$1\r\n*\r\n$1\r\nb\r\n$%d\r\n", strlen(set.queue), set.queue, set.size);
        put_body(c);
        add(&c->out, "\r\n", 2);
    }
}
static void ask_for_more(conn *c) {
    add_text(&c->out, "XREADGROUP GROUP g c%d COUNT %d BLOCK 1000 STREAMS %s >\r\n", c->index, set.window, set.queue);
}
static bool next(cursor *from, token *t) { /* false: more bytes are needed */
    const char *line_end = memchr(from->at, '\n', (size_t)(from->end - from->at));
    if (!line_end) return false;
    bool is_negative = from->at[1] == '-';
    const char *digits = from->at + 1 + is_negative;
    *t = (token){.type = *from->at, .text = from->at + 1, .value = line_end - from->at - 2};
    if (strchr(":$*", t->type)) t->value = (int64_t)number_in(&digits, line_end) * (is_negative ? -1 : 1);
    from->at = line_end + 1;
    if (t->type != '$' || t->value < 0) return true;
    t->text = from->at;
    if (from->end - from->at < t->value + 2) return false;
    from->at += t->value + 2;
    return true;
}
static bool is_whole(cursor at, size_t *size) { /* whether a reply is complete, with all that is nested in it */
    const char *start = at.at;
    token t;
    for (int64_t due = 1; due; due--) {
        if (!next(&at, &t)) return false;
        if (t.type == '*' && t.value > 0) due += t.value;
    }
    *size = (size_t)(at.at - start);
    return true;
}
static token expect(cursor *from, char type) {
    token t;
    if (!next(from, &t) || t.type != type) refused("a reply of another shape", from->at, (size_t)(from->end - from->at));
    return t;
}
static void entries(conn *c, cursor from) { /* [[stream, [[id, [field, body]], ...]]] */
    if (expect(&from, '*').value < 0) { ask_for_more(c); return; } /* nothing came in time */
    expect(&from, '*'), expect(&from, '$');
    int64_t count = expect(&from, '*').value;
    add_text(&c->out, "*%lld\r\n$4\r\nXACK\r\n$%zu\r\n%s\r\n$1\r\ng\r\n", (long long)count + 3, strlen(set.queue), set.queue);
    for (int64_t i = 0; i < count; i++) {
        expect(&from, '*');
        token id = expect(&from, '$');
        expect(&from, '*'), expect(&from, '$');
        token body = expect(&from, '$');
        message_came((const uint8_t *)body.text, (size_t)body.value);
        add_text(&c->out, "$%lld\r\n", (long long)id.value);
        add(&c->out, id.text, (size_t)id.value + 2);
    }
    c->a = (uint64_t)count;
    ask_for_more(c);
}
static void begin(conn *c, const uint8_t *reply, size_t n) {
    if (*reply == '-' && !begins(reply, n, "-BUSYGROUP")) refused("redis", reply, n);
    if (c->role == ASKS_DEPTH) depth_is((uint64_t)expect(&(cursor){(const char *)reply, (const char *)reply + n}, ':').value);
    if (c->role == CONSUMES) ask_for_more(c);
    is_ready(c);
}
static void acknowledged(conn *c, cursor from) {
    if (expect(&from, ':').value != (int64_t)c->a) refused("XACK acknowledged fewer than came", "", 0);
}
static void take(conn *c) {
    size_t n, size;
    for (const uint8_t *p; p = unread(c, &n), n;) {
        cursor all = {(const char *)p, (const char *)p + n};
        if (!is_whole(all, &size)) return;
        all.end = all.at + size;
        c->in.off += size;
        if (!c->ready) begin(c, p, size);
        else if (*p == '*') entries(c, all);
        else if (*p == ':') acknowledged(c, all);
        else if (*p == '$') confirm_next(c, 1);
        else refused("redis", p, size);
    }
}
const protocol redis = {"redis", hello, take, publish};
