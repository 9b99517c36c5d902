/* What every test program uses: checks that say what they found, and a table of cases. */
#define _GNU_SOURCE 1
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition, ...)                                              \
    do {                                                                   \
        if (!(condition)) {                                                \
            fprintf(stderr, "%s:%d: not %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, "" __VA_ARGS__);                               \
            fputc('\n', stderr);                                           \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

/* Runs `run` in a forked child, which must end well, and soon. */
static inline void run_in_child(void *(*run)(void *), void *argument) {
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        run(argument);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child's status is %#x", status);
}

/* A case of a program, which runs when its name is the first argument. */
struct test_case {
    const char *name;
    void (*run)(void);
};

static inline int run_case(const struct test_case *cases, size_t count, int argc, char **argv) {
    for (size_t i = 0; i < count; i++) {
        if (argc > 1 && strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    }
    fprintf(stderr, "no such case: %s\n", argc > 1 ? argv[1] : "(none)");
    return 2;
}

#define CASE(name) {#name, name}

/* Random numbers, the same in every run (xorshift64*). */
static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

/* Sizes as programs ask for them: mostly small, some of pages, now and then huge. */
static inline size_t random_size(uint64_t *state) {
    uint64_t r = next_random(state);
    unsigned kind = r & 1023;
    r >>= 10;
    if (kind < 900) return r % 512;
    if (kind < 1000) return r % 32768;
    if (kind < 1022) return r % 300000;
    return r % 6000000;
}

/* How many mappings the process has. */
static inline size_t mappings(void) {
    FILE *file = fopen("/proc/self/maps", "r");
    size_t lines = 0;
    for (int c; (c = fgetc(file)) != EOF;) lines += c == '\n';
    fclose(file);
    return lines;
}

static inline size_t resident_bytes(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1) exit(3);
    fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Returns `p`. The compiler may not look through the call. */
static inline void *opaque(void *p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}
