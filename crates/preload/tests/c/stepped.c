/* Calls that are interrupted after each of their instructions by a signal that asks for statistics.
   The statistics are true, and nothing waits for ever. */
#include "check.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

enum { SIGNAL = SIGUSR1, BYTES = 64, LIVE = 1000, FREED = 200 };

static void *objects[FREED];

/* How many objects of `BYTES` are in use, by the statistics in the file `text`; -1 if there are
   none. */
static long told(int text) {
    static char lines[1 << 16];
    unsigned long bytes, slabs, used, pooled;
    long in_use = -1;
    ssize_t length = pread(text, lines, sizeof lines - 1, 0);
    CHECK(length >= 0);
    lines[length] = 0;
    for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n"))
        if (sscanf(line, "hectare: %lu %lu %lu %lu", &bytes, &slabs, &used, &pooled) == 4 && bytes == BYTES)
            in_use = (long)used;
    return in_use;
}

/* Runs `call` in a child, and interrupts it after `steps` instructions, or never if it has fewer.
   Returns how many it has in that case, else -1. */
static long interrupted(void (*call)(int), int argument, long steps, int text) {
    CHECK(lseek(text, 0, SEEK_SET) == 0 && ftruncate(text, 0) == 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(text, STDERR_FILENO);
        alarm(10);
        for (int i = 0; i < argument; i++) free(objects[i]);
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        call(argument);
        raise(SIGSTOP);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status), "%#x", status);
    for (long step = 0; step < steps; step++) {
        CHECK(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0);
        CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status), "%#x", status);
        if (WSTOPSIG(status) == SIGTRAP) continue;
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        return step;
    }
    for (long signal = SIGNAL; !WIFEXITED(status); signal = WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status)) {
        CHECK(ptrace(PTRACE_CONT, child, NULL, signal) == 0);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(!WIFSIGNALED(status), "interrupted after %ld instructions, it ended by signal %d", steps, WTERMSIG(status));
    }
    long in_use = told(text);
    CHECK(in_use >= LIVE && in_use <= LIVE + FREED + 200, "after %ld instructions: %ld in use", steps, in_use);
    return -1;
}

static void free_one(int at) { free(objects[at]); }

/* A list has no room for this object, so it is freed by a longer way. */
static void free_to_a_full_list(void) {
    int text = fileno(tmpfile());
    for (int i = 0; i < LIVE; i++) CHECK(opaque(malloc(BYTES)));
    for (int i = 0; i < FREED; i++) objects[i] = malloc(BYTES);
    long least = interrupted(free_one, 0, 1 << 20, text);
    int full = 0;
    for (int freed = 1; freed < FREED; freed++) {
        long longest = interrupted(free_one, freed, 1 << 20, text);
        if (longest < least) least = longest;
        if (longest <= least + 50) continue;
        full++;
        for (long steps = 0; steps < least + 50; steps++) interrupted(free_one, freed, steps, text);
    }
    CHECK(full > 0, "no list was full");
}

static void confine(int unused) { CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, unused) == 0); }

/* The heap's locks are taken here, too. */
static void confinement(void) {
    int text = fileno(tmpfile());
    for (int i = 0; i < LIVE; i++) CHECK(opaque(malloc(BYTES)));
    long longest = interrupted(confine, 0, 1 << 20, text);
    for (long steps = 0; steps < longest; steps += 11) interrupted(confine, 0, steps, text);
}

static void can_be(void) { CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0); }

int main(int argc, char **argv) {
    static const struct test_case cases[] = {CASE(can_be), CASE(free_to_a_full_list), CASE(confinement)};
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
