/* What the load generator's parts share. One thread, one epoll; a protocol puts bytes into `out`, takes whole answers
 * out of `in`, and tells the load what they mean. */
#ifndef LOAD_H
#define LOAD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct { uint8_t *data; size_t off, len, cap; } buffer;
typedef enum { DECLARES, PUBLISHES, CONSUMES, ASKS_DEPTH } role;

typedef struct conn {
    int fd, index;
    role role;
    bool ready, writable_wanted, left;
    buffer in, out;
    int stage;           /* of the handshake; the protocol's own */
    uint64_t a, b;       /* the protocol's own, too */
    uint64_t sent, open; /* running numbers on this connection: the next one, and the oldest without an answer */
    uint64_t *numbers;   /* a ring: the number in each body ... */
    bool *is_open;       /* ... and whether its answer is still due */
} conn;

typedef struct {
    const char *name;
    void (*hello)(conn *c);          /* the first bytes of a connection */
    void (*read)(conn *c);           /* takes whole frames out of c->in */
    void (*publish)(conn *c, int n); /* n messages, each with put_body(), as one command if there is such */
    void (*leave)(conn *c);          /* asks for an answer that comes after all that was sent; NULL: hanging up will do */
} protocol;

extern const protocol nsq, redis, nats, amqp, beanstalk;

typedef struct {
    const char *mode, *queue, *kind; /* kind: of an AMQP queue */
    int port, conns, consumers, batch, size, window;
    double seconds, quiet, rate;
    uint64_t count;
    const char *acked, *expect; /* files with a bit for each number */
} settings;
extern settings set;

/* a protocol tells the load */
void is_ready(conn *c);                        /* the handshake is over */
void confirm_next(conn *c, uint64_t n);        /* the n oldest messages are accepted */
void confirm(conn *c, uint64_t sent);          /* this one is, by its running number on this connection */
void confirm_up_to(conn *c, uint64_t sent);    /* all up to this one are */
void message_came(const uint8_t *body, size_t size);
void depth_is(uint64_t depth);
void has_left(conn *c);                        /* the answer to leave() */
_Noreturn void refused(const char *what, const void *said, size_t n); /* an answer that is an error, or not expected */
_Noreturn void fail(const char *what);         /* a system call failed */

/* bytes */
void room(buffer *b, size_t n);
void add(buffer *b, const void *data, size_t n);
void add_text(buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void add8(buffer *b, uint8_t v);
void add16(buffer *b, uint16_t v);
void add32(buffer *b, uint32_t v);
void add64(buffer *b, uint64_t v);
uint16_t get16(const uint8_t *p);
uint32_t get32(const uint8_t *p);
uint64_t get64(const uint8_t *p);
void put_body(conn *c);                        /* adds one numbered, stamped body to c->out */
const uint8_t *unread(const conn *c, size_t *n);
const char *line_of(const conn *c, size_t *n); /* the line that c->in begins with, without CR LF; NULL: not complete */
bool begins(const void *data, size_t n, const char *word);
uint64_t number_in(const char **at, const char *end); /* skips blanks, reads digits */
#endif
