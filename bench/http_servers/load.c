/* The load client for HTTP: sends one request again and again on each of some connections.
 *
 *   load PORT CONNECTIONS WARM_MS MEASURE_MS REQUEST_FILE TEXT [CPU]
 *
 * REQUEST_FILE holds a whole HTTP request. Ten bytes `@@@@@@@@@@` in it are the id, and are replaced by another
 * number each time. A response must be 200, and its body (by length or in chunks) must contain the id and TEXT.
 * Reports one JSON object. So that the caller
 * can read the CPU clock of the server, the program writes a line `measuring` when the warm-up is over,
 * and `measured` when the time has passed, and waits for a byte on stdin after each.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define ID_DIGITS 10
#define FIRST_ID 1000000000LL
#define BUFFER (256 * 1024)
#define MOST_SAMPLES (4 * 1024 * 1024)

typedef struct {
    int fd;
    long long id;
    int64_t sent_ns;
    size_t filled;
    char *buffer;
} Connection;

static char *request, *text;
static size_t request_bytes, id_at;
static long long next_id = FIRST_ID;
static uint32_t *samples;
static size_t sample_count;
static long long answered, wrong, status_other;
static bool is_measuring;

static _Noreturn void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void read_request(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail("%s: %s", path, strerror(errno));
    request = malloc(65536);
    request_bytes = fread(request, 1, 65536, file);
    fclose(file);
    char *mark = memmem(request, request_bytes, "@@@@@@@@@@", ID_DIGITS);
    if (mark == NULL) fail("%s: no place for the id", path);
    id_at = mark - request;
}

static int connect_to(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) fail("connect: %s", strerror(errno));
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void send_request(Connection *connection) {
    char id[ID_DIGITS + 1];
    connection->id = next_id++;
    snprintf(id, sizeof id, "%lld", connection->id);
    memcpy(request + id_at, id, ID_DIGITS);
    connection->filled = 0;
    connection->sent_ns = now_ns();
    if (write(connection->fd, request, request_bytes) != (ssize_t)request_bytes) fail("write: %s", strerror(errno));
}

/* Return the size of the response when it is complete, and 0 before. */
static size_t complete_size(const Connection *connection) {
    char *begin = connection->buffer;
    char *head_end = memmem(begin, connection->filled, "\r\n\r\n", 4);
    if (head_end == NULL) return 0;
    size_t head = head_end + 4 - begin;
    *head_end = 0;
    char *length = strcasestr(begin, "\r\ncontent-length:");
    bool chunked = strcasestr(begin, "\r\ntransfer-encoding: chunked") != NULL;
    *head_end = '\r';
    if (length != NULL) {
        size_t size = head + strtoul(length + 17, NULL, 10);
        return connection->filled >= size ? size : 0;
    }
    if (!chunked) fail("a response without a length: %.200s", begin);
    size_t at = head;
    while (at < connection->filled) {
        char *line_end = memmem(begin + at, connection->filled - at, "\r\n", 2);
        if (line_end == NULL) return 0;
        size_t size = strtoul(begin + at, NULL, 16);
        at = line_end + 2 - begin + size + 2;
        if (size == 0) return connection->filled >= at ? at : 0;
    }
    return 0;
}

static void check(Connection *connection, size_t size) {
    char id[32];
    snprintf(id, sizeof id, "%lld", connection->id);
    bool ok = memcmp(connection->buffer, "HTTP/1.1 200", 12) == 0;
    if (!ok) status_other++;
    if (!ok || memmem(connection->buffer, size, id, ID_DIGITS) == NULL ||
        memmem(connection->buffer, size, text, strlen(text)) == NULL) {
        if (wrong++ == 0) fprintf(stderr, "first wrong answer: %.600s\n", connection->buffer);
    }
    if (is_measuring) {
        answered++;
        if (sample_count < MOST_SAMPLES) samples[sample_count++] = (now_ns() - connection->sent_ns) / 10;
    }
}

static void receive(Connection *connection) {
    ssize_t got = read(connection->fd, connection->buffer + connection->filled, BUFFER - 1 - connection->filled);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) fail("the server has closed a connection: %.300s", connection->filled ? connection->buffer : "");
    connection->filled += got;
    connection->buffer[connection->filled] = 0;
    size_t size = complete_size(connection);
    if (size == 0) return;
    if (size != connection->filled) fail("more than one response to a request");
    check(connection, size);
    send_request(connection);
}

static void run_until(int poll, int64_t end_ns) {
    struct epoll_event events[256];
    int64_t seen_ns = now_ns();
    while (now_ns() < end_ns) {
        int count = epoll_wait(poll, events, 256, 1000);
        for (int i = 0; i < count; i++) receive(events[i].data.ptr);
        if (count > 0) seen_ns = now_ns();
        else if (now_ns() - seen_ns > 20000000000LL) fail("no answer for 20 s");
    }
}

static void tell(const char *word) {
    puts(word);
    fflush(stdout);
    char byte;
    if (read(0, &byte, 1) != 1) exit(1);
}

static int compare(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

int main(int count, char **arguments) {
    if (count < 7) fail("expected PORT CONNECTIONS WARM_MS MEASURE_MS REQUEST_FILE TEXT [CPU]");
    int port = atoi(arguments[1]), connections = atoi(arguments[2]);
    read_request(arguments[5]);
    text = arguments[6];
    if (count > 7) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(atoi(arguments[7]), &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    samples = malloc(MOST_SAMPLES * sizeof *samples);
    int poll = epoll_create1(0);
    Connection *all = calloc(connections, sizeof *all);
    for (int i = 0; i < connections; i++) {
        all[i].fd = connect_to(port);
        all[i].buffer = malloc(BUFFER);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &event);
        send_request(&all[i]);
    }
    run_until(poll, now_ns() + atoll(arguments[3]) * 1000000LL);
    tell("measuring");
    is_measuring = true;
    int64_t begin_ns = now_ns();
    run_until(poll, begin_ns + atoll(arguments[4]) * 1000000LL);
    double seconds = (now_ns() - begin_ns) / 1e9;
    is_measuring = false;
    tell("measured");
    qsort(samples, sample_count, sizeof *samples, compare);
    double p50 = sample_count ? samples[sample_count / 2] / 100.0 : 0;
    double p99 = sample_count ? samples[sample_count * 99 / 100] / 100.0 : 0;
    printf("{\"calls\": %lld, \"seconds\": %.6f, \"p50_us\": %.2f, \"p99_us\": %.2f, \"wrong\": %lld, \"other_status\": %lld}\n",
           answered, seconds, p50, p99, wrong, status_other);
    return 0;
}
