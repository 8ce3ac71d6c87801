/* A server in C for measuring clients: it opens by the handshake of the older revisions, lists one tool, and answers every call of it with
 * the text it was sent. What it costs is next to nothing, so what is measured is the client.
 *
 * It trusts its clients to write `"id":`, `"method":"` and `"text":"` without a space behind the colon or with one, and no escaped quotation
 * mark in the text. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES 65536

static const char HELLO[] =
    ",\"result\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{\"tools\":{}},"
    "\"serverInfo\":{\"name\":\"floor\",\"version\":\"1\"}}}\n";
static const char TOOLS[] =
    ",\"result\":{\"tools\":[{\"name\":\"echo\",\"inputSchema\":{\"type\":\"object\",\"properties\":"
    "{\"text\":{\"type\":\"string\"}}}}]}}\n";
static const char EMPTY[] = ",\"result\":{}}\n";
static const char REFUSED[] = ",\"error\":{\"code\":-32601,\"message\":\"method not found\"}}\n";
static const char HEAD[] = "{\"jsonrpc\":\"2.0\",\"id\":";
static const char BODY[] = ",\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"";
static const char TAIL[] = "\"}]}}\n";

static char *put(char *at, const char *bytes, size_t size) {
    memcpy(at, bytes, size);
    return at + size;
}

/* The place behind `"name":` and blanks, or NULL. */
static const char *member(const char *line, const char *end, const char *name) {
    const char *at = memmem(line, (size_t)(end - line), name, strlen(name));
    if (at == NULL) return NULL;
    at += strlen(name);
    while (at < end && *at == ' ') at++;
    return at;
}

static int is(const char *at, const char *end, const char *word) {
    size_t size = strlen(word);
    return (size_t)(end - at) >= size && memcmp(at, word, size) == 0;
}

/* Append the answer to one line; notifications have none. */
static char *answer(char *out, const char *line, size_t size) {
    const char *end = line + size;
    /* The id stands before or behind params, which hold none: a progress token and a request id are members of other names. */
    const char *id = member(line, end, "\"id\":"), *method = member(line, end, "\"method\":");
    if (id == NULL || method == NULL) return out;
    const char *id_end = id;
    while (id_end < end && *id_end != ',' && *id_end != '}') id_end++;
    out = put(out, HEAD, sizeof HEAD - 1);
    out = put(out, id, (size_t)(id_end - id));
    if (is(method, end, "\"tools/call\"")) {
        const char *text = member(line, end, "\"text\":");
        if (text == NULL) return put(out, REFUSED, sizeof REFUSED - 1);
        text++;
        const char *text_end = memchr(text, '"', (size_t)(end - text));
        if (text_end == NULL) return put(out, REFUSED, sizeof REFUSED - 1);
        out = put(out, BODY, sizeof BODY - 1);
        out = put(out, text, (size_t)(text_end - text));
        return put(out, TAIL, sizeof TAIL - 1);
    }
    if (is(method, end, "\"initialize\"")) return put(out, HELLO, sizeof HELLO - 1);
    if (is(method, end, "\"tools/list\"")) return put(out, TOOLS, sizeof TOOLS - 1);
    if (is(method, end, "\"ping\"")) return put(out, EMPTY, sizeof EMPTY - 1);
    return put(out, REFUSED, sizeof REFUSED - 1);
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
