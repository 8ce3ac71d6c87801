/* What is measured, one function each. Every function runs its own server, prints the members of a JSON object
 * (units in the names), and checks every single answer on the way. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_SAMPLES 200000 /* sequential round trips kept for the percentiles */

typedef struct {
    Child child;
    Inbox inbox;
    Ledger ledger;
} Run;

static Run start(const Options *options, size_t answer_bytes) {
    Run run = {.child = spawn(options), .inbox = new_inbox(4 * answer_bytes + (1 << 20)), .ledger = new_ledger()};
    open_session(options, &run.child, &run.inbox);
    return run;
}

static void print_string(const char *text) {
    putchar('"');
    for (; *text != 0; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\') printf("\\%c", byte);
        else if (byte < 0x20 || byte > 0x7e) printf("\\u%04x", byte);
        else putchar(byte);
    }
    putchar('"');
}

static void finish(Run *run) {
    Ending ending = end_child(&run->child);
    const Ledger *ledger = &run->ledger;
    printf(",\"sent\":%lld,\"lost\":%lld,\"wrong\":%lld,\"doubled\":%lld,\"unknown\":%lld,\"notifications\":%lld",
           (long long)ledger->sent, (long long)(ledger->sent - ledger->right - ledger->wrong), (long long)ledger->wrong,
           (long long)ledger->doubled, (long long)ledger->unknown, (long long)ledger->notifications);
    if (ledger->sample[0] != 0) {
        printf(",\"sample\":");
        print_string(ledger->sample);
    }
    printf(",\"exit_ms\":%.1f,\"exit_status\":%d,\"exit_forced\":%s,\"life_cpu_ms\":%.1f", ending.exit_ms,
           ending.status, ending.forced ? "true" : "false", ending.life_cpu_ms);
}

static int ascending(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static int64_t at_percentile(const int64_t *sorted, int64_t count, double percentile) {
    int64_t index = (int64_t)(percentile / 100 * (double)(count - 1) + 0.5);
    return sorted[index];
}

/* One call and its answer, on blocking descriptors. */
static void round_trip(Run *run, Template *template) {
    patch(template, template->bytes, run->ledger.sent++);
    write_all(run->child.in, template->bytes, template->size);
    for (;;) {
        size_t size;
        char *line = next_line(&run->inbox, &size);
        if (line == NULL) fill(&run->inbox, run->child.out, 65536);
        else if (enter(&run->ledger, template, line, size)) return;
    }
}

/* From spawn to the answer to `initialize` (legacy) or `server/discover` (2026-07-28): wall time and the server's CPU. */
void measure_cold(const Options *options) {
    Inbox inbox = new_inbox(1 << 20);
    int64_t before = now_ns();
    Child child = spawn(options);
    first_answer(options, &child, &inbox);
    int64_t cpu = child_cpu_ns(&child), after = now_ns();
    Ending ending = end_child(&child);
    printf(",\"wall_ms\":%.3f,\"cpu_ms\":%.3f,\"exit_ms\":%.1f,\"exit_status\":%d,\"exit_forced\":%s,"
           "\"life_cpu_ms\":%.1f",
           (after - before) / 1e6, cpu / 1e6, ending.exit_ms, ending.status, ending.forced ? "true" : "false",
           ending.life_cpu_ms);
}

/* Resident memory after the opening and one call, left alone for 300 ms. */
void measure_memory(const Options *options) {
    Run run = start(options, options->text_bytes);
    Template template = call_template(options, options->tool, options->text_bytes);
    round_trip(&run, &template);
    usleep(300000);
    printf(",\"rss_mb\":%.1f", child_rss_mb(&run.child));
    finish(&run);
}

/* One call after the other. `elsewhere` is the share of the time in which neither client nor server ran: with both on one
 * core it is what other programs took, and a figure to distrust the others by. */
void measure_sequential(const Options *options) {
    Run run = start(options, options->text_bytes);
    Template template = call_template(options, options->tool, options->text_bytes);
    int64_t *samples = malloc(MOST_SAMPLES * sizeof *samples), count = 0;
    if (samples == NULL) fail("out of memory");
    for (int64_t until = now_ns() + (int64_t)(options->warm_s * 1e9); now_ns() < until;) round_trip(&run, &template);
    int64_t server_cpu = child_cpu_ns(&run.child), client_cpu = own_cpu_ns(), began = now_ns(), after = began;
    int64_t until = began + (int64_t)(options->measure_s * 1e9);
    while (count < MOST_SAMPLES && after < until) {
        int64_t before = now_ns();
        round_trip(&run, &template);
        after = now_ns();
        samples[count++] = after - before;
    }
    server_cpu = child_cpu_ns(&run.child) - server_cpu;
    client_cpu = own_cpu_ns() - client_cpu;
    qsort(samples, (size_t)count, sizeof *samples, ascending);
    printf(",\"calls\":%lld,\"p50_us\":%.2f,\"p99_us\":%.2f,\"max_us\":%.2f,\"cpu_us\":%.3f,\"client_cpu_us\":%.3f,"
           "\"elsewhere\":%.3f",
           (long long)count, at_percentile(samples, count, 50) / 1e3, at_percentile(samples, count, 99) / 1e3,
           samples[count - 1] / 1e3, server_cpu / 1e3 / (double)count, client_cpu / 1e3 / (double)count,
           1 - (double)(server_cpu + client_cpu) / (double)(after - began));
    finish(&run);
}

/* Unwritten bytes, and a write that stops when the pipe is full. */
typedef struct {
    char *bytes;
    size_t start, end;
} Outbox;

static void push(Outbox *outbox, int fd) {
    while (outbox->start < outbox->end) {
        ssize_t wrote = write(fd, outbox->bytes + outbox->start, outbox->end - outbox->start);
        if (wrote < 0 && errno == EAGAIN) return;
        if (wrote < 0 && errno != EINTR) fail("write: %s", strerror(errno));
        if (wrote > 0) outbox->start += (size_t)wrote;
    }
    outbox->start = outbox->end = 0;
}

static void add_call(Outbox *outbox, Run *run, Template *template) {
    memcpy(outbox->bytes + outbox->end, template->bytes, template->size);
    patch(template, outbox->bytes + outbox->end, run->ledger.sent++);
    outbox->end += template->size;
}

static void unblock(const Child *child) {
    fcntl(child->in, F_SETFL, O_NONBLOCK);
    fcntl(child->out, F_SETFL, O_NONBLOCK);
}

/* Push what is unwritten and read once, waiting until one of the two is possible. Returns how many calls were answered. */
static int64_t turn(Run *run, Template *template, Outbox *outbox, size_t read_bytes) {
    push(outbox, run->child.in);
    if (fill(&run->inbox, run->child.out, read_bytes) < 0) {
        bool unwritten = outbox->start < outbox->end;
        struct pollfd ready[2] = {{.fd = run->child.out, .events = POLLIN}, {.fd = run->child.in, .events = POLLOUT}};
        poll(ready, unwritten ? 2 : 1, 1000);
        return 0;
    }
    int64_t answered = 0;
    size_t size;
    for (char *line; (line = next_line(&run->inbox, &size)) != NULL;)
        answered += enter(&run->ledger, template, line, size);
    return answered;
}

/* `window` calls in flight all the time: each answer is followed by a new call, all answers of one read by one write. */
void measure_pipelined(const Options *options) {
    Run run = start(options, options->text_bytes);
    Template template = call_template(options, options->tool, options->text_bytes);
    Outbox outbox = {.bytes = malloc(template.size * (size_t)options->window)};
    if (outbox.bytes == NULL) fail("out of memory");
    unblock(&run.child);
    for (int i = 0; i < options->window; i++) add_call(&outbox, &run, &template);
    int64_t in_flight = options->window, done = 0, began = 0, ended = 0, first = 0, turns = 0;
    int64_t server_cpu = 0, client_cpu = 0;
    int64_t warm_until = now_ns() + (int64_t)(options->warm_s * 1e9), until = 0;
    while (in_flight > 0) {
        int64_t answered = turn(&run, &template, &outbox, 65536);
        if (answered == 0) continue;
        done += answered;
        in_flight -= answered;
        turns++;
        int64_t now = now_ns();
        if (began == 0 && now >= warm_until) {
            began = now, first = done, turns = 0;
            until = now + (int64_t)(options->measure_s * 1e9);
            server_cpu = child_cpu_ns(&run.child), client_cpu = own_cpu_ns();
        } else if (began != 0 && ended == 0 && (now >= until || run.ledger.sent > MOST_CALLS - options->window)) {
            ended = now, first = done - first;
            server_cpu = child_cpu_ns(&run.child) - server_cpu, client_cpu = own_cpu_ns() - client_cpu;
            printf(",\"calls\":%lld,\"calls_per_s\":%.0f,\"cpu_us\":%.3f,\"client_cpu_us\":%.3f,\"busy\":%.3f,"
                   "\"answers_per_read\":%.1f",
                   (long long)first, first * 1e9 / (double)(ended - began), server_cpu / 1e3 / (double)first,
                   client_cpu / 1e3 / (double)first, (double)server_cpu / (double)(ended - began),
                   (double)first / (double)turns);
        }
        /* Room in the outbox is certain: unwritten and unanswered calls together are never more than the window. */
        if (ended == 0) {
            if (outbox.start > 0) {
                memmove(outbox.bytes, outbox.bytes + outbox.start, outbox.end - outbox.start);
                outbox.end -= outbox.start, outbox.start = 0;
            }
            for (; in_flight < options->window; in_flight++) add_call(&outbox, &run, &template);
        }
    }
    printf(",\"rss_mb\":%.1f", child_rss_mb(&run.child));
    finish(&run);
}

/* `count` calls at once, until the last is answered. Returns the wall time. */
static int64_t volley(Run *run, Template *template, int count, size_t read_bytes) {
    Outbox outbox = {.bytes = malloc(template->size * (size_t)count)};
    if (outbox.bytes == NULL) fail("out of memory");
    for (int i = 0; i < count; i++) add_call(&outbox, run, template);
    int64_t before = now_ns();
    for (int64_t answered = 0; answered < count;) answered += turn(run, template, &outbox, read_bytes);
    int64_t taken = now_ns() - before;
    free(outbox.bytes);
    return taken;
}

static void print_volleys(const Options *options, Run *run, Template *template, int count, size_t read_bytes) {
    int64_t *samples = malloc((size_t)options->repeats * sizeof *samples);
    if (samples == NULL) fail("out of memory");
    unblock(&run->child);
    double first_ms = volley(run, template, count, read_bytes) / 1e6;
    int64_t cpu = child_cpu_ns(&run->child);
    for (int i = 0; i < options->repeats; i++) samples[i] = volley(run, template, count, read_bytes);
    cpu = child_cpu_ns(&run->child) - cpu;
    qsort(samples, (size_t)options->repeats, sizeof *samples, ascending);
    printf(",\"first_ms\":%.3f,\"p50_ms\":%.3f,\"max_ms\":%.3f,\"cpu_ms\":%.3f", first_ms,
           at_percentile(samples, options->repeats, 50) / 1e6, samples[options->repeats - 1] / 1e6,
           cpu / 1e6 / options->repeats);
    free(samples);
}

/* `window` calls of the tool sleep50 at once. The first volley, which grows buffers and warms code, is told apart. */
void measure_concurrent(const Options *options) {
    Run run = start(options, options->text_bytes);
    Template template = call_template(options, "sleep50", 0);
    print_volleys(options, &run, &template, options->window, 65536);
    finish(&run);
}

/* Echo of a large text, one call after the other; both sides read and write at the same time. */
void measure_large(const Options *options) {
    Run run = start(options, options->text_bytes);
    Template template = call_template(options, options->tool, options->text_bytes);
    print_volleys(options, &run, &template, 1, 1 << 20);
    printf(",\"bytes\":%zu,\"rss_mb\":%.1f", options->text_bytes, child_rss_mb(&run.child));
    finish(&run);
}
