/* The load generator: `load MEASURE [--name value ...] -- COMMAND ...` runs one server, takes one measure, and prints
 * one JSON object. Everything is bounded by --limit-s: when it strikes the server is killed and the exit code is 1. */
#define _GNU_SOURCE
#include "load.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *name;
    void (*take)(const Options *);
} Measure;

static const Measure MEASURES[] = {
    {"cold", measure_cold},           {"memory", measure_memory},         {"sequential", measure_sequential},
    {"pipelined", measure_pipelined}, {"concurrent", measure_concurrent}, {"large", measure_large},
};

static void on_alarm(int signal_number) {
    (void)signal_number;
    static const char message[] = "time limit reached\n";
    if (running_child > 0) kill(running_child, SIGKILL);
    if (write(2, message, sizeof message - 1) < 0) _exit(1);
    _exit(1);
}

int main(int argc, char **argv) {
    Options options = {
        .stderr_path = "/dev/null", .tool = "echo", .text_bytes = 100, .window = 64, .repeats = 1, .warm_s = 0.3,
        .measure_s = 1.0,
    };
    int limit_s = 60, at = 2;
    for (; at + 1 < argc && strcmp(argv[at], "--") != 0; at += 2) {
        const char *name = argv[at], *value = argv[at + 1];
        if (strcmp(name, "--era") == 0) options.modern = strcmp(value, "modern") == 0;
        else if (strcmp(name, "--tool") == 0) options.tool = value;
        else if (strcmp(name, "--stderr") == 0) options.stderr_path = value;
        else if (strcmp(name, "--client-cpu") == 0) options.client_cpu = atoi(value);
        else if (strcmp(name, "--server-cpu") == 0) options.server_cpu = atoi(value);
        else if (strcmp(name, "--bytes") == 0) options.text_bytes = strtoul(value, NULL, 10);
        else if (strcmp(name, "--window") == 0) options.window = atoi(value);
        else if (strcmp(name, "--repeats") == 0) options.repeats = atoi(value);
        else if (strcmp(name, "--warm-s") == 0) options.warm_s = atof(value);
        else if (strcmp(name, "--measure-s") == 0) options.measure_s = atof(value);
        else if (strcmp(name, "--limit-s") == 0) limit_s = atoi(value);
        else fail("unknown option %s", name);
    }
    if (argc < 2 || at + 1 >= argc) fail("usage: load MEASURE [--name value ...] -- COMMAND ...");
    options.argv = argv + at + 1;
    if (options.window < 1 || options.repeats < 1 || options.text_bytes < ID_DIGITS || limit_s < 1)
        fail("--window, --repeats and --limit-s start at 1, --bytes at %d", ID_DIGITS);

    signal(SIGPIPE, SIG_IGN);
    signal(SIGALRM, on_alarm);
    alarm((unsigned)limit_s);
    pin(options.client_cpu);
    for (size_t i = 0; i < sizeof MEASURES / sizeof *MEASURES; i++)
        if (strcmp(argv[1], MEASURES[i].name) == 0) {
            printf("{\"measure\":\"%s\"", argv[1]);
            MEASURES[i].take(&options);
            printf("}\n");
            return 0;
        }
    fail("unknown measure %s", argv[1]);
}
