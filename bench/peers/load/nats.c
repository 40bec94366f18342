/* NATS JetStream over the text protocol: PUB with a reply subject, on which the PubAck comes; a durable pull consumer
 * and an explicit ack for each message. https://docs.nats.io/reference/reference-protocols/nats-protocol
 *
 * Subjects of answers: _INBOX.PID.CONNECTION.WHAT, where WHAT is `api`, `pull`, or the running number of a publish.
 * A batch is so many PUBs in one write. */
#include "load.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GREETED, CONNECTED, STREAM_ASKED, CONSUMER_ASKED };
typedef struct { const char *subject, *reply, *payload; size_t subject_n, reply_n, head_n, size; } delivery;

static void hello(conn *c) { c->stage = GREETED; } /* the server speaks first */

static void inbox(conn *c, char *text, size_t n) { snprintf(text, n, "_INBOX.%d.%d.", (int)getpid(), c->index); }
static void ask(conn *c, const char *what, const char *subject, const char *json) {
    char mine[64];
    inbox(c, mine, sizeof mine);
    add_text(&c->out, "PUB %s %s%s %zu\r\n%s\r\n", subject, mine, what, strlen(json), json);
}
static void connect_to(conn *c) {
    char mine[64];
    inbox(c, mine, sizeof mine);
    add_text(&c->out, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true,"
                      "\"lang\":\"c\",\"version\":\"1\",\"protocol\":1}\r\nSUB %s* 1\r\nPING\r\n", mine);
    c->stage = CONNECTED;
}
static void ask_for_stream(conn *c) {
    char subject[200], json[300] = "";
    snprintf(subject, sizeof subject, "$JS.API.STREAM.%s.%s", c->role == ASKS_DEPTH ? "INFO" : "CREATE", set.queue);
    if (c->role != ASKS_DEPTH)
        snprintf(json, sizeof json, "{\"name\":\"%s\",\"subjects\":[\"%s\"],\"storage\":\"file\",\"retention\":\"limits\","
                 "\"discard\":\"old\",\"max_consumers\":-1,\"max_msgs\":-1,\"max_bytes\":-1,\"num_replicas\":1}", set.queue, set.queue);
    ask(c, "api", subject, json);
    c->stage = STREAM_ASKED;
}
static void ask_for_consumer(conn *c) {
    char subject[200], json[300];
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.DURABLE.CREATE.%s.w", set.queue);
    snprintf(json, sizeof json, "{\"stream_name\":\"%s\",\"config\":{\"durable_name\":\"w\",\"ack_policy\":\"explicit\","
             "\"deliver_policy\":\"all\",\"max_ack_pending\":20000,\"ack_wait\":600000000000}}", set.queue);
    ask(c, "api", subject, json);
    c->stage = CONSUMER_ASKED;
}
static void pull(conn *c, int n) {
    char subject[200], json[100];
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.MSG.NEXT.%s.w", set.queue);
    snprintf(json, sizeof json, "{\"batch\":%d,\"expires\":600000000000}", n);
    ask(c, "pull", subject, json);
    c->a += (uint64_t)n; /* messages asked for and not here yet */
}
static void publish(conn *c, int n) {
    char mine[64];
    inbox(c, mine, sizeof mine);
    for (int i = 0; i < n; i++) {
        add_text(&c->out, "PUB %s %s%llu %d\r\n", set.queue, mine, (unsigned long long)c->sent, set.size);
        put_body(c);
        add(&c->out, "\r\n", 2);
    }
}
static void after_api(conn *c, const delivery *d) {
    static const char messages[] = "\"messages\":";
    if (memmem(d->payload, d->size, "\"error\"", 7)) refused("JetStream", d->payload, d->size);
    if (c->role == ASKS_DEPTH) {
        const char *found = memmem(d->payload, d->size, messages, strlen(messages));
        if (!found) refused("no count of messages", d->payload, d->size);
        found += strlen(messages);
        depth_is(number_in(&found, d->payload + d->size));
    } else if (c->role != PUBLISHES && c->stage == STREAM_ASKED) { ask_for_consumer(c); return; }
    if (c->role == CONSUMES) pull(c, set.window);
    is_ready(c);
}
static void message(conn *c, const delivery *d) {
    message_came((const uint8_t *)d->payload + d->head_n, d->size - d->head_n);
    add(&c->out, "PUB ", 4);
    add(&c->out, d->reply, d->reply_n);
    add(&c->out, " 4\r\n+ACK\r\n", 10);
    int half = set.window / 2 ? set.window / 2 : 1;
    if (--c->a + (uint64_t)half <= (uint64_t)set.window) pull(c, half);
}
static void delivered(conn *c, const delivery *d) {
    if (!begins(d->subject, d->subject_n, "_INBOX.")) { message(c, d); return; }
    const char *end = d->subject + d->subject_n, *what = end;
    while (what[-1] != '.') what--;
    if (d->head_n || begins(what, (size_t)(end - what), "pull")) refused("JetStream", d->payload, d->size);
    if (begins(what, (size_t)(end - what), "api")) { after_api(c, d); return; }
    bool is_stored = memmem(d->payload, d->size, "\"seq\"", 5) && !memmem(d->payload, d->size, "\"error\"", 7);
    if (!is_stored) refused("no PubAck", d->payload, d->size);
    confirm(c, number_in(&what, end));
}
static int words(const char *line, size_t n, const char **starts, size_t *lengths, int most) {
    int count = 0;
    for (size_t i = 0; i < n && count < most;) {
        size_t from = i;
        while (i < n && line[i] != ' ') i++;
        if (i > from) starts[count] = line + from, lengths[count++] = i - from;
        i += i < n;
    }
    return count;
}
static bool take_message(conn *c, const char *line, size_t n) { /* MSG subject sid [reply] size; HMSG ... head size */
    const char *word[6];
    size_t length[6], have;
    bool has_head = *line == 'H';
    int count = words(line, n, word, length, 6), sizes = 1 + has_head;
    if (count < 3 + sizes) refused("nats-server", line, n);
    bool has_reply = count > 3 + sizes;
    const char *size_at = word[count - 1], *head_at = word[count - 2], *end = line + n;
    const uint8_t *all = unread(c, &have);
    delivery d = {.subject = word[1], .subject_n = length[1], .size = number_in(&size_at, end), .payload = (const char *)all + n + 2};
    if (has_reply) d.reply = word[3], d.reply_n = length[3];
    if (has_head) d.head_n = number_in(&head_at, end);
    if (have < n + 2 + d.size + 2) return false;
    c->in.off += n + 2 + d.size + 2;
    delivered(c, &d);
    return true;
}
static void take_line(conn *c, const char *line, size_t n) {
    if (begins(line, n, "PING")) add_text(&c->out, "PONG\r\n");
    else if (begins(line, n, "INFO") && c->stage == GREETED) connect_to(c);
    else if (begins(line, n, "PONG") && c->stage == CONNECTED) ask_for_stream(c);
    else if (!begins(line, n, "INFO") && !begins(line, n, "PONG") && !begins(line, n, "+OK")) refused("nats-server", line, n);
}
static void take(conn *c) {
    size_t n;
    for (const char *line; (line = line_of(c, &n));) {
        if (begins(line, n, "MSG ") || begins(line, n, "HMSG ")) {
            if (!take_message(c, line, n)) return;
        } else {
            c->in.off += n + 2;
            take_line(c, line, n);
        }
    }
}
const protocol nats = {"nats", hello, take, publish};
