/* AMQP 0-9-1 as RabbitMQ speaks it: persistent messages and publisher confirms; basic.consume with a prefetch, and an
 * ack for all that came in one read. https://www.rabbitmq.com/docs/specification
 *
 * One channel on each connection. A batch is so many publishes in one write: AMQP has no publish of several. */
#include "load.h"
#include <string.h>

#define METHOD(class_id, method_id) ((uint32_t)(class_id) << 16 | (method_id))
enum { METHOD_FRAME = 1, HEADER_FRAME, BODY_FRAME, HEARTBEAT_FRAME = 8, FRAME_HEAD = 7, FRAME_END = 0xCE };
enum { LEAVING = 1 }; /* a connection's stage: what still comes will be given to somebody else */
enum { PASSIVE = 1, DURABLE = 2, MULTIPLE = 1, MANDATORY = 1, HAS_DELIVERY_MODE = 0x1000, PERSISTENT = 2 };
enum {
    CONNECTION_START = METHOD(10, 10), CONNECTION_START_OK = METHOD(10, 11), CONNECTION_TUNE = METHOD(10, 30),
    CONNECTION_TUNE_OK = METHOD(10, 31), CONNECTION_OPEN = METHOD(10, 40), CONNECTION_OPEN_OK = METHOD(10, 41),
    CHANNEL_OPEN = METHOD(20, 10), CHANNEL_OPEN_OK = METHOD(20, 11), CHANNEL_CLOSE = METHOD(20, 40),
    CHANNEL_CLOSE_OK = METHOD(20, 41), QUEUE_DECLARE = METHOD(50, 10), QUEUE_DECLARE_OK = METHOD(50, 11),
    BASIC_QOS = METHOD(60, 10), BASIC_QOS_OK = METHOD(60, 11),
    BASIC_CONSUME = METHOD(60, 20), BASIC_CONSUME_OK = METHOD(60, 21), BASIC_PUBLISH = METHOD(60, 40),
    BASIC_DELIVER = METHOD(60, 60), BASIC_ACK = METHOD(60, 80), CONFIRM_SELECT = METHOD(85, 10),
    CONFIRM_SELECT_OK = METHOD(85, 11),
};

static size_t begin_frame(buffer *out, uint8_t type, uint16_t channel) {
    add8(out, type), add16(out, channel), add32(out, 0);
    return out->len - out->off; /* an offset that survives a move of the buffer */
}
static void end_frame(buffer *out, size_t begun) {
    uint8_t *start = out->data + out->off + begun;
    uint32_t size = (uint32_t)(out->data + out->len - start);
    start[-4] = size >> 24, start[-3] = size >> 16, start[-2] = size >> 8, start[-1] = size;
    add8(out, FRAME_END);
}
static void add_short(buffer *out, const char *text) {
    add8(out, (uint8_t)strlen(text));
    add(out, text, strlen(text));
}
static void add_long(buffer *out, const void *data, size_t n) {
    add32(out, (uint32_t)n);
    add(out, data, n);
}
static size_t begin_method(buffer *out, uint16_t channel, uint32_t method) {
    size_t begun = begin_frame(out, METHOD_FRAME, channel);
    add32(out, method);
    return begun;
}

static void hello(conn *c) { add(&c->out, "AMQP\0\0\x09\x01", 8); }

static void start_ok(conn *c) {
    static const char login[] = "\0guest\0guest";
    size_t begun = begin_method(&c->out, 0, CONNECTION_START_OK);
    add32(&c->out, 0); /* no properties, so no extension that would need an answer of ours */
    add_short(&c->out, "PLAIN");
    add_long(&c->out, login, sizeof login - 1);
    add_short(&c->out, "en_US");
    end_frame(&c->out, begun);
}
static void tune_ok(conn *c, const uint8_t *limits) { /* channels and frame size as the server says, no heartbeats */
    size_t begun = begin_method(&c->out, 0, CONNECTION_TUNE_OK);
    add(&c->out, limits, 6);
    add16(&c->out, 0);
    end_frame(&c->out, begun);
    begun = begin_method(&c->out, 0, CONNECTION_OPEN);
    add_short(&c->out, "/"), add_short(&c->out, ""), add8(&c->out, 0);
    end_frame(&c->out, begun);
}
static void open_channel(conn *c) {
    size_t begun = begin_method(&c->out, 1, CHANNEL_OPEN);
    add_short(&c->out, "");
    end_frame(&c->out, begun);
}
static void declare(conn *c) {
    buffer arguments = {0};
    add_short(&arguments, "x-queue-type"), add8(&arguments, 'S'), add_long(&arguments, set.kind, strlen(set.kind));
    size_t begun = begin_method(&c->out, 1, QUEUE_DECLARE);
    add16(&c->out, 0), add_short(&c->out, set.queue), add8(&c->out, DURABLE | (c->role == ASKS_DEPTH ? PASSIVE : 0));
    add_long(&c->out, arguments.data, arguments.len);
    end_frame(&c->out, begun);
}
static void declared(conn *c, const uint8_t *p) { /* the queue's name, its messages, its consumers */
    if (c->role == DECLARES || c->role == ASKS_DEPTH) {
        depth_is(get32(p + 1 + *p));
        is_ready(c);
        return;
    }
    size_t begun = begin_method(&c->out, 1, c->role == PUBLISHES ? CONFIRM_SELECT : BASIC_QOS);
    if (c->role == CONSUMES) add32(&c->out, 0), add16(&c->out, (uint16_t)set.window);
    add8(&c->out, 0);
    end_frame(&c->out, begun);
}
static void consume(conn *c) {
    size_t begun = begin_method(&c->out, 1, BASIC_CONSUME);
    add16(&c->out, 0), add_short(&c->out, set.queue), add_short(&c->out, ""), add8(&c->out, 0), add32(&c->out, 0);
    end_frame(&c->out, begun);
}
static void publish_one(conn *c) {
    size_t begun = begin_method(&c->out, 1, BASIC_PUBLISH);
    add16(&c->out, 0), add_short(&c->out, ""), add_short(&c->out, set.queue), add8(&c->out, MANDATORY);
    end_frame(&c->out, begun);
    begun = begin_frame(&c->out, HEADER_FRAME, 1);
    add16(&c->out, 60), add16(&c->out, 0), add64(&c->out, (uint64_t)set.size);
    add16(&c->out, HAS_DELIVERY_MODE), add8(&c->out, PERSISTENT);
    end_frame(&c->out, begun);
    begun = begin_frame(&c->out, BODY_FRAME, 1);
    put_body(c);
    end_frame(&c->out, begun);
}
static void publish(conn *c, int n) {
    for (int i = 0; i < n; i++) publish_one(c);
}
static void acknowledged(conn *c, const uint8_t *p) { /* tags count from 1, our numbers from 0 */
    if (p[8] & MULTIPLE) confirm_up_to(c, get64(p) - 1);
    else confirm(c, get64(p) - 1);
}
static void method(conn *c, const uint8_t *p, size_t n) {
    uint32_t which = get32(p);
    p += 4, n -= 4;
    switch (which) {
    case CONNECTION_START: start_ok(c); break;
    case CONNECTION_TUNE: tune_ok(c, p); break;
    case CONNECTION_OPEN_OK: open_channel(c); break;
    case CHANNEL_OPEN_OK: declare(c); break;
    case QUEUE_DECLARE_OK: declared(c, p); break;
    case BASIC_QOS_OK: consume(c); break;
    case BASIC_CONSUME_OK: /* the same */
    case CONFIRM_SELECT_OK: is_ready(c); break;
    case CHANNEL_CLOSE_OK: has_left(c); break;
    case BASIC_ACK: acknowledged(c, p); break;
    case BASIC_DELIVER: c->a = get64(p + 1 + *p); break; /* after the consumer's tag; the body follows */
    default: refused("RabbitMQ", p, n); /* close, nack, return */
    }
}
static void content(conn *c, uint8_t type, const uint8_t *p, size_t n) {
    if (type == HEARTBEAT_FRAME) return;
    if (type == HEADER_FRAME && get64(p + 4) == (uint64_t)set.size) return;
    if (type != BODY_FRAME || n != (size_t)set.size) refused("a body that is not ours", p, n < 40 ? n : 40);
    if (c->stage == LEAVING) return;
    message_came(p, n);
    c->b = c->a; /* to be acknowledged */
}
static void acknowledge(conn *c) {
    size_t begun = begin_method(&c->out, 1, BASIC_ACK);
    add64(&c->out, c->b), add8(&c->out, MULTIPLE);
    end_frame(&c->out, begun);
    c->b = 0;
}
static void take(conn *c) {
    size_t n;
    for (const uint8_t *p; p = unread(c, &n), n >= FRAME_HEAD && n >= FRAME_HEAD + (size_t)get32(p + 3) + 1;) {
        if (*p == 'A') refused("RabbitMQ speaks another version", p, 8);
        size_t size = get32(p + 3);
        if (p[FRAME_HEAD + size] != FRAME_END) refused("a frame without its end", p, 8);
        c->in.off += FRAME_HEAD + size + 1;
        if (*p == METHOD_FRAME) method(c, p + FRAME_HEAD, size);
        else content(c, *p, p + FRAME_HEAD, size);
    }
    if (c->b) acknowledge(c);
}
static void leave(conn *c) { /* RabbitMQ forgets acks that it has read but not yet handled when a connection just ends */
    size_t begun = begin_method(&c->out, 1, CHANNEL_CLOSE);
    add16(&c->out, 200), add_short(&c->out, ""), add16(&c->out, 0), add16(&c->out, 0);
    end_frame(&c->out, begun);
    c->stage = LEAVING;
}
const protocol amqp = {"amqp", hello, take, publish, leave};
