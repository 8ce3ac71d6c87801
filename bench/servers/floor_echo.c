/* Floor in C: every line in is answered with its own text, without understanding it. No server can be faster.
 *
 * It trusts the load generator: `"id":` and `"text":"` occur once, the text holds no quotation mark. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES 65536

static const char HELLO[] =
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{\"tools\":{}},"
    "\"serverInfo\":{\"name\":\"floor\",\"version\":\"1\"}}}\n";
static const char HEAD[] = "{\"jsonrpc\":\"2.0\",\"id\":";
static const char BODY[] = ",\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"";
static const char TAIL[] = "\"}]}}\n";

static char *put(char *at, const char *bytes, size_t size) {
    memcpy(at, bytes, size);
    return at + size;
}

/* Append the answer to one line; notifications have none. */
static char *answer(char *out, const char *line, size_t size) {
    const char *end = line + size;
    const char *id = memmem(line, size, "\"id\":", 5);
    if (id == NULL) return out;
    const char *text = memmem(id, (size_t)(end - id), "\"text\":\"", 8);
    if (text == NULL) return put(out, HELLO, sizeof HELLO - 1);
    id += 5;
    text += 8;
    const char *id_end = memchr(id, ',', (size_t)(end - id)), *text_end = memchr(text, '"', (size_t)(end - text));
    if (id_end == NULL || text_end == NULL) return out;
    out = put(out, HEAD, sizeof HEAD - 1);
    out = put(out, id, (size_t)(id_end - id));
    out = put(out, BODY, sizeof BODY - 1);
    out = put(out, text, (size_t)(text_end - text));
    return put(out, TAIL, sizeof TAIL - 1);
}

int main(void) {
    size_t capacity = 1 << 20, used = 0, scanned = 0;
    char *in = malloc(capacity), *out = malloc(2 * capacity);
    while (in != NULL && out != NULL) {
        if (capacity - used < READ_BYTES) {
            capacity *= 2;
            in = realloc(in, capacity);
            out = realloc(out, 2 * capacity);
            if (in == NULL || out == NULL) break;
        }
        ssize_t got = read(0, in + used, READ_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        used += (size_t)got;
        char *line = in, *end = in + used, *to = out, *newline;
        while ((newline = memchr(in + scanned, '\n', used - scanned)) != NULL) {
            to = answer(to, line, (size_t)(newline - line));
            line = newline + 1;
            scanned = (size_t)(line - in);
        }
        used = (size_t)(end - line);
        scanned = used;
        memmove(in, line, used);
        for (char *from = out; from < to;) {
            ssize_t wrote = write(1, from, (size_t)(to - from));
            if (wrote < 0 && errno != EINTR) return 1;
            if (wrote > 0) from += wrote;
        }
    }
    return 1;
}
