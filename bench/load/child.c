/* The server process: spawned on a given core with pipes, its CPU time and memory read from outside, and ended. */
#define _GNU_SOURCE
#include "load.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXIT_PATIENCE_MS 5000
#define MOST_PROCESSES 64 /* of one server's process tree */

pid_t running_child = 0;

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    if (running_child > 0) kill(running_child, SIGKILL);
    exit(1);
}

static int64_t clock_ns(clockid_t clock) {
    struct timespec time;
    if (clock_gettime(clock, &time) != 0) return -1;
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

int64_t own_cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) fail("cannot pin to core %d: %s", cpu, strerror(errno));
}

Child spawn(const Options *options) {
    int to_child[2], from_child[2];
    if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0) fail("pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid < 0) fail("fork: %s", strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a killed benchmark leaves no server behind */
        pin(options->server_cpu);         /* threads started later inherit it */
        int log = open(options->stderr_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (log < 0 || dup2(to_child[0], 0) < 0 || dup2(from_child[1], 1) < 0 || dup2(log, 2) < 0) _exit(126);
        signal(SIGPIPE, SIG_DFL);
        alarm(0);
        execvp(options->argv[0], options->argv);
        _exit(127);
    }
    running_child = pid;
    close(to_child[0]);
    close(from_child[1]);
    return (Child){.pid = pid, .in = to_child[1], .out = from_child[0]};
}

static pid_t parent_of(pid_t pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) return -1;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    char *after_name = strrchr(text, ')'); /* the name may hold anything, parentheses too */
    int parent = -1;
    char state;
    if (after_name == NULL || sscanf(after_name + 1, " %c %d", &state, &parent) != 2) return -1;
    return parent;
}

/* The process and everything below it. Linear passes over /proc: read a few times per measurement, never while timing. */
static int tree(pid_t root, pid_t found[MOST_PROCESSES]) {
    int count = 0;
    found[count++] = root;
    for (int before = 0; before != count && count < MOST_PROCESSES;) {
        before = count;
        DIR *directory = opendir("/proc");
        if (directory == NULL) break;
        for (struct dirent *entry; (entry = readdir(directory)) != NULL && count < MOST_PROCESSES;) {
            pid_t pid = atoi(entry->d_name);
            if (pid <= 0) continue;
            bool known = false;
            for (int i = 0; i < count; i++) known |= found[i] == pid;
            if (known) continue;
            pid_t parent = parent_of(pid);
            for (int i = 0; i < before; i++)
                if (found[i] == parent) {
                    found[count++] = pid;
                    break;
                }
        }
        closedir(directory);
    }
    return count;
}

/* CPU time of the server process, all threads, to the nanosecond. Servers here are one process each; were one a tree,
 * its children would not be counted (memory does count them). */
int64_t child_cpu_ns(const Child *child) {
    clockid_t clock;
    if (clock_getcpuclockid(child->pid, &clock) != 0) return -1;
    return clock_ns(clock);
}

double child_rss_mb(const Child *child) {
    pid_t found[MOST_PROCESSES];
    int count = tree(child->pid, found);
    long total_kb = 0;
    for (int i = 0; i < count; i++) {
        char path[64], line[256];
        snprintf(path, sizeof path, "/proc/%d/status", (int)found[i]);
        FILE *file = fopen(path, "r");
        if (file == NULL) continue;
        long kb = 0;
        while (fgets(line, sizeof line, file) != NULL)
            if (sscanf(line, "VmRSS: %ld kB", &kb) == 1) break;
        fclose(file);
        total_kb += kb;
    }
    return total_kb * 1024 / 1e6;
}

/* Close its stdin and wait; a server that stays is killed, and the answer says so. */
Ending end_child(Child *child) {
    Ending ending = {0};
    int64_t start = now_ns();
    close(child->in);
    /* Go on reading, so that a server which still has something to say is not held up by a full pipe. */
    char rest[65536];
    struct pollfd ready = {.fd = child->out, .events = POLLIN};
    while ((now_ns() - start) / 1000000 < EXIT_PATIENCE_MS) {
        if (poll(&ready, 1, 50) <= 0) continue;
        ssize_t got = read(child->out, rest, sizeof rest);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
    }
    struct rusage usage;
    int status;
    pid_t ended = 0;
    while ((ended = wait4(child->pid, &status, WNOHANG, &usage)) == 0) {
        if ((now_ns() - start) / 1000000 > EXIT_PATIENCE_MS) {
            ending.forced = true;
            kill(child->pid, SIGKILL);
            ended = wait4(child->pid, &status, 0, &usage);
            break;
        }
        usleep(200);
    }
    running_child = 0;
    close(child->out);
    ending.exit_ms = (now_ns() - start) / 1e6;
    if (ended == child->pid) {
        ending.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        ending.life_cpu_ms = usage.ru_utime.tv_sec * 1e3 + usage.ru_utime.tv_usec / 1e3 + usage.ru_stime.tv_sec * 1e3 +
                             usage.ru_stime.tv_usec / 1e3;
    }
    return ending;
}
