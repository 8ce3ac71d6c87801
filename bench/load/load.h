/* What the rooms of the load generator offer each other.
 *
 *   child.c     the server process: spawn it on a core, read its CPU time and memory, end it
 *   wire.c      MCP messages as bytes: request templates, and answers checked one by one
 *   measures.c  what is measured, one function each
 *   main.c      arguments in, one JSON object out
 */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FIRST_ID 100000000LL /* ids have nine digits always, so a template is patched in place */
#define ID_DIGITS 9
#define MOST_CALLS (16 * 1024 * 1024) /* per process; one byte of memory each, touched only when used */

typedef struct {
    char **argv;
    const char *stderr_path; /* what the server says goes here, so that a failure can be shown */
    int server_cpu, client_cpu;
    bool modern;      /* 2026-07-28 per-request _meta instead of initialize */
    const char *tool; /* echo or echo_def */
    size_t text_bytes;
    int window;       /* calls in flight */
    int repeats;
    double warm_s, measure_s;
} Options;

/* child.c */
typedef struct {
    pid_t pid;
    int in, out; /* we write to `in`, and read from `out` */
} Child;
typedef struct {
    double life_cpu_ms; /* user + system of the whole life, from wait4 */
    double exit_ms;     /* from closing its stdin to its end */
    int status;         /* exit code, or -signal */
    bool forced;        /* it did not end by itself */
} Ending;

int64_t now_ns(void);
int64_t own_cpu_ns(void);
void pin(int cpu);
Child spawn(const Options *options);
int64_t child_cpu_ns(const Child *child);
double child_rss_mb(const Child *child);
Ending end_child(Child *child);
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* wire.c */
typedef struct {
    char *bytes;
    size_t size, id_at, text_at, text_bytes; /* text_bytes 0: the answer is the word "ok" */
} Template;
typedef struct {
    char *bytes;
    size_t capacity, start, scanned, end;
} Inbox;
typedef struct {
    uint8_t *answered;
    int64_t sent, right, wrong, doubled, unknown, notifications;
    char sample[400]; /* the first answer that was not right */
} Ledger;

Template call_template(const Options *options, const char *tool, size_t text_bytes);
void free_template(Template *template);
void patch(Template *template, char *message, int64_t number);
Inbox new_inbox(size_t capacity);
char *next_line(Inbox *inbox, size_t *size);
ssize_t fill(Inbox *inbox, int fd, size_t at_most);
Ledger new_ledger(void);
bool enter(Ledger *ledger, const Template *template, const char *line, size_t size);
void write_all(int fd, const char *bytes, size_t size);
void open_session(const Options *options, const Child *child, Inbox *inbox);
void first_answer(const Options *options, const Child *child, Inbox *inbox);

/* measures.c: each prints the members of a JSON object, without the braces */
void measure_cold(const Options *options);
void measure_memory(const Options *options);
void measure_sequential(const Options *options);
void measure_pipelined(const Options *options);
void measure_concurrent(const Options *options);
void measure_large(const Options *options);

extern pid_t running_child; /* killed when the time limit strikes; 0 when there is none */

#endif
