/* MCP messages as bytes. Requests are templates with the id (and the first digits of the text) patched in; answers are
 * cut at newlines and checked one by one: a known id, answered for the first time, with exactly the text that was sent.
 *
 * No JSON parser: the generator must cost a fraction of a microsecond per call. It finds `"id":` and `"text":` by
 * searching, which is sound because no text it sends holds a quotation mark. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NEAR 96 /* bytes at either end of an answer in which its id is looked for first */

#define INITIALIZE                                                                                              \
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-11-25\"," \
    "\"capabilities\":{},\"clientInfo\":{\"name\":\"bench\",\"version\":\"1\"}}}\n"
#define INITIALIZED "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n"
#define MODERN_META                                                                                     \
    "\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\","                           \
    "\"io.modelcontextprotocol/clientCapabilities\":{},\"io.modelcontextprotocol/clientInfo\":{\"name\":\"bench\"," \
    "\"version\":\"1\"}}"
#define DISCOVER "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"server/discover\",\"params\":{" MODERN_META "}}\n"

static const char PATTERN[] = "the quick brown fox jumps over the lazy dog 0123456789 ";

static void digits(char *at, int64_t number) {
    for (int i = ID_DIGITS - 1; i >= 0; i--, number /= 10) at[i] = (char)('0' + number % 10);
}

Template call_template(const Options *options, const char *tool, size_t text_bytes) {
    char *bytes = malloc(text_bytes + 1024);
    if (bytes == NULL) fail("out of memory");
    size_t at = (size_t)sprintf(bytes, "{\"jsonrpc\":\"2.0\",\"id\":");
    size_t id_at = at;
    at += (size_t)sprintf(bytes + at, "%lld,\"method\":\"tools/call\",\"params\":{\"name\":\"%s\",\"arguments\":{",
                          FIRST_ID, tool);
    size_t text_at = 0;
    if (text_bytes > 0) {
        at += (size_t)sprintf(bytes + at, "\"text\":\"");
        text_at = at;
        for (size_t i = 0; i < text_bytes; i++) bytes[at++] = PATTERN[i % (sizeof PATTERN - 1)];
        bytes[at++] = '"';
    }
    at += (size_t)sprintf(bytes + at, "}%s}}\n", options->modern ? "," MODERN_META : "");
    return (Template){.bytes = bytes, .size = at, .id_at = id_at, .text_at = text_at, .text_bytes = text_bytes};
}

void free_template(Template *template) { free(template->bytes); }

/* Make `message`, a copy of the template, call `number`: its id, and the same digits at the head of its text. */
void patch(Template *template, char *message, int64_t number) {
    digits(message + template->id_at, FIRST_ID + number);
    if (template->text_bytes >= ID_DIGITS) digits(message + template->text_at, FIRST_ID + number);
}

Inbox new_inbox(size_t capacity) {
    char *bytes = malloc(capacity);
    if (bytes == NULL) fail("out of memory");
    return (Inbox){.bytes = bytes, .capacity = capacity};
}

/* One read into the inbox. Returns what read() returns; end of file is fatal, since no server may end by itself here. */
ssize_t fill(Inbox *inbox, int fd, size_t at_most) {
    if (inbox->start == inbox->end) {
        inbox->start = inbox->scanned = inbox->end = 0;
    } else if (inbox->start > 0 && inbox->capacity - inbox->end < at_most) {
        memmove(inbox->bytes, inbox->bytes + inbox->start, inbox->end - inbox->start);
        inbox->scanned -= inbox->start;
        inbox->end -= inbox->start;
        inbox->start = 0;
    }
    size_t room = inbox->capacity - inbox->end;
    if (room == 0) fail("an answer of more than %zu bytes", inbox->capacity);
    ssize_t got = read(fd, inbox->bytes + inbox->end, room < at_most ? room : at_most);
    if (got == 0) fail("the server closed its stdout");
    if (got < 0 && errno != EAGAIN && errno != EINTR) fail("read: %s", strerror(errno));
    if (got > 0) inbox->end += (size_t)got;
    return got;
}

/* The next complete line without its newline, or NULL. Only bytes not seen before are searched. */
char *next_line(Inbox *inbox, size_t *size) {
    char *from = inbox->bytes + inbox->scanned;
    char *newline = memchr(from, '\n', inbox->end - inbox->scanned);
    if (newline == NULL) {
        inbox->scanned = inbox->end;
        return NULL;
    }
    char *line = inbox->bytes + inbox->start;
    *size = (size_t)(newline - line);
    inbox->start = inbox->scanned = (size_t)(newline + 1 - inbox->bytes);
    return line;
}

Ledger new_ledger(void) {
    Ledger ledger = {0};
    ledger.answered = calloc(MOST_CALLS, 1);
    if (ledger.answered == NULL) fail("out of memory");
    return ledger;
}

/* The value of a member, found by its quoted name and a colon; white space around the colon is allowed. */
static const char *value_of(const char *name, const char *from, const char *end) {
    size_t length = strlen(name);
    while (from < end) {
        const char *at = memmem(from, (size_t)(end - from), name, length);
        if (at == NULL) return NULL;
        const char *next = at + length;
        while (next < end && *next == ' ') next++;
        if (next < end && *next == ':') {
            next++;
            while (next < end && *next == ' ') next++;
            return next < end ? next : NULL;
        }
        from = at + length;
    }
    return NULL;
}

/* The id of an answer; -1 when there is none. It stands at the head (Python) or at the tail (TypeScript). */
static int64_t id_of(const char *line, size_t size) {
    const char *end = line + size;
    const char *at = value_of("\"id\"", line, size > NEAR ? line + NEAR : end);
    if (at == NULL && size > NEAR) at = value_of("\"id\"", end - NEAR, end);
    if (at == NULL && size > NEAR) at = value_of("\"id\"", line, end);
    if (at == NULL || *at < '0' || *at > '9') return -1;
    int64_t id = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++) id = id * 10 + (*at - '0');
    return id;
}

static bool has_right_text(const Template *template, const char *line, size_t size, int64_t number) {
    const char *end = line + size;
    const char *at = value_of("\"text\"", line, end);
    if (at == NULL || *at++ != '"') return false;
    if (template->text_bytes == 0) return end - at > 2 && memcmp(at, "ok\"", 3) == 0;
    if ((size_t)(end - at) <= template->text_bytes || at[template->text_bytes] != '"') return false;
    char head[ID_DIGITS];
    digits(head, FIRST_ID + number);
    return memcmp(at, head, ID_DIGITS) == 0 && memcmp(at + ID_DIGITS, template->bytes + template->text_at + ID_DIGITS,
                                                      template->text_bytes - ID_DIGITS) == 0;
}

/* Book one line. True when it answers one of our calls, right or wrong; false for notifications and strangers. */
bool enter(Ledger *ledger, const Template *template, const char *line, size_t size) {
    int64_t number = id_of(line, size) - FIRST_ID;
    bool ours = number >= 0 && number < ledger->sent;
    if (ours && ledger->answered[number]++ == 0) {
        if (has_right_text(template, line, size, number)) {
            ledger->right++;
            return true;
        }
        ledger->wrong++;
    } else if (ours) {
        ledger->doubled++;
    } else if (value_of("\"method\"", line, line + (size < 4096 ? size : 4096)) != NULL) {
        ledger->notifications++;
        return false;
    } else {
        ledger->unknown++;
    }
    if (ledger->sample[0] == 0) {
        size_t length = size < sizeof ledger->sample - 1 ? size : sizeof ledger->sample - 1;
        memcpy(ledger->sample, line, length);
        ledger->sample[length] = 0;
    }
    return ours && ledger->answered[number] == 1;
}

/* Write everything, waiting when the pipe is full. Only for messages that fit a pipe beside what is unanswered. */
void write_all(int fd, const char *bytes, size_t size) {
    while (size > 0) {
        ssize_t wrote = write(fd, bytes, size);
        if (wrote < 0 && errno == EAGAIN) {
            struct pollfd ready = {.fd = fd, .events = POLLOUT};
            poll(&ready, 1, 1000);
        } else if (wrote < 0 && errno != EINTR) {
            fail("write: %s", strerror(errno));
        } else if (wrote > 0) {
            bytes += wrote;
            size -= (size_t)wrote;
        }
    }
}

/* The first request of either era, and its answer: what a cold start is measured to. */
void first_answer(const Options *options, const Child *child, Inbox *inbox) {
    const char *opening = options->modern ? DISCOVER : INITIALIZE;
    write_all(child->in, opening, strlen(opening));
    for (;;) {
        size_t size;
        char *line = next_line(inbox, &size);
        if (line == NULL) {
            fill(inbox, child->out, 65536);
        } else if (id_of(line, size) == 1) {
            if (memmem(line, size, "\"result\"", 8) == NULL) fail("opening refused: %.*s", (int)size, line);
            return;
        }
    }
}

void open_session(const Options *options, const Child *child, Inbox *inbox) {
    first_answer(options, child, inbox);
    if (!options->modern) write_all(child->in, INITIALIZED, strlen(INITIALIZED));
}
