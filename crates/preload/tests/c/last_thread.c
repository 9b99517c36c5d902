/* A process ends, by `exit(0)`, when its last thread does. Prints what shows that. */
#include "check.h"
#include <pthread.h>
#include <signal.h>

/* Signals that were not blocked at the beginning are not blocked at the end, either. */
static void at_the_end(void) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    CHECK(!sigismember(&mask, SIGTERM));
    puts("ended");
    fflush(stdout);
}

static void main_thread_ends(void) {
    atexit(at_the_end);
    free(opaque(malloc(10)));
    pthread_exit(NULL);
}

static void *work(void *argument) {
    sleep(3);
    puts("worked");
    return argument;
}

/* The process does not end before the other threads. */
static void others_go_on(void) {
    atexit(at_the_end);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    pthread_exit(NULL);
}

static void *fork_here(void *argument) {
    pid_t child = fork();
    if (child == 0) return argument;
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "%#x", status);
    return argument;
}

/* A child's only thread is the copy of a thread that returns. */
static void childs_thread_ends(void) {
    atexit(at_the_end);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fork_here, NULL) == 0);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(main_thread_ends), CASE(others_go_on), CASE(childs_thread_ends),
    };
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
