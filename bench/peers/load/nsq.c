/* NSQ: PUB and MPUB; SUB, RDY and FIN. https://nsq.io/clients/tcp_protocol_spec.html */
#include "load.h"
#include <string.h>

enum { RESPONSE, ERROR, MESSAGE };
enum { HEAD = 8 + 2 + 16 }; /* of a message: timestamp, attempts, id */
enum { IDENTIFIED, SUBSCRIBED };

static void hello(conn *c) {
    static const char publisher[] = "{\"client_id\":\"load\",\"heartbeat_interval\":-1}";
    static const char consumer[] = "{\"client_id\":\"load\",\"heartbeat_interval\":30000,\"output_buffer_timeout\":25}";
    const char *text = c->role == PUBLISHES ? publisher : consumer;
    add_text(&c->out, "  V2IDENTIFY\n");
    add32(&c->out, (uint32_t)strlen(text));
    add_text(&c->out, "%s", text);
}
static void publish(conn *c, int n) {
    uint32_t one = (uint32_t)set.size, all = 4 + (uint32_t)n * (4 + one);
    add_text(&c->out, "%s %s\n", n > 1 ? "MPUB" : "PUB", set.queue);
    if (n > 1) add32(&c->out, all), add32(&c->out, (uint32_t)n);
    for (int i = 0; i < n; i++) add32(&c->out, one), put_body(c);
}
static void subscribe(conn *c) {
    add_text(&c->out, "SUB %s ch\n", set.queue);
    c->stage = SUBSCRIBED;
}
static void response(conn *c, const uint8_t *text, size_t n) {
    if (begins(text, n, "_heartbeat_")) add_text(&c->out, "NOP\n");
    else if (!begins(text, n, "OK")) refused("expected OK", text, n);
    else if (c->ready) confirm_next(c, (uint64_t)set.batch);
    else if (c->stage == IDENTIFIED && c->role != PUBLISHES) subscribe(c);
    else {
        if (c->role == CONSUMES) add_text(&c->out, "RDY %d\n", set.window);
        is_ready(c);
    }
}
static void message(conn *c, const uint8_t *frame, size_t size) {
    message_came(frame + HEAD, size - HEAD);
    add(&c->out, "FIN ", 4);
    add(&c->out, frame + HEAD - 16, 16);
    add(&c->out, "\n", 1);
}
static void take(conn *c) {
    size_t n;
    for (const uint8_t *p; p = unread(c, &n), n >= 8 && n >= 4 + (size_t)get32(p);) {
        uint32_t size = get32(p), type = get32(p + 4);
        c->in.off += 4 + (size_t)size;
        if (type == RESPONSE) response(c, p + 8, size - 4);
        else if (type == MESSAGE && size >= 4 + HEAD) message(c, p + 8, size - 4);
        else refused("nsqd", p + 8, size - 4);
    }
}
const protocol nsq = {"nsq", hello, take, publish};
