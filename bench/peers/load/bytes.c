/* Buffers that grow, numbers in network order, lines. */
#include "load.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void room(buffer *b, size_t n) {
    if (b->cap - b->len >= n) return;
    if (b->off) {
        memmove(b->data, b->data + b->off, b->len - b->off);
        b->len -= b->off;
        b->off = 0;
        if (b->cap - b->len >= n) return;
    }
    b->cap = (b->len + n) * 2;
    b->data = realloc(b->data, b->cap);
    if (!b->data) fail("memory");
}
void add(buffer *b, const void *data, size_t n) {
    room(b, n);
    memcpy(b->data + b->len, data, n);
    b->len += n;
}
void add_text(buffer *b, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (n < 0 || (size_t)n >= sizeof text) fail("a text that is too long");
    add(b, text, n);
}
void add8(buffer *b, uint8_t v) { add(b, &v, 1); }
void add16(buffer *b, uint16_t v) { add8(b, v >> 8), add8(b, v & 255); }
void add32(buffer *b, uint32_t v) { add16(b, v >> 16), add16(b, v & 65535); }
void add64(buffer *b, uint64_t v) { add32(b, v >> 32), add32(b, (uint32_t)v); }
uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
uint32_t get32(const uint8_t *p) { return (uint32_t)get16(p) << 16 | get16(p + 2); }
uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

const uint8_t *unread(const conn *c, size_t *n) {
    *n = c->in.len - c->in.off;
    return c->in.data + c->in.off;
}
const char *line_of(const conn *c, size_t *n) {
    size_t have;
    const char *start = (const char *)unread(c, &have);
    const char *end = have ? memchr(start, '\n', have) : NULL;
    if (!end || end == start) return NULL;
    *n = (size_t)(end - start) - (end[-1] == '\r');
    return start;
}
bool begins(const void *data, size_t n, const char *word) { return n >= strlen(word) && !memcmp(data, word, strlen(word)); }
uint64_t number_in(const char **at, const char *end) {
    uint64_t number = 0;
    while (*at < end && **at == ' ') ++*at;
    if (*at == end || **at < '0' || **at > '9') refused("expected a number", *at, (size_t)(end - *at));
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) number = number * 10 + (uint64_t)(**at - '0');
    return number;
}
