/* Processes that a handler ends by `exit`, most of them in the midst of malloc or free. Handlers
   must not do that, but many do. Nothing else here runs at the end of the processes. */
#include "check.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/time.h>

enum { CHILDREN = 16, ROUNDS = 5, OBJECTS = 2000 };

static void end_here(int signal) {
    (void)signal;
    exit(0);
}

static void churn(void) {
    static void *objects[OBJECTS];
    for (uint64_t random = 1;;) {
        size_t at = next_random(&random) % OBJECTS;
        free(objects[at]);
        objects[at] = malloc(next_random(&random) % (at % 50 ? 3000 : 60000));
    }
}

int main(void) {
    for (int round = 0; round < ROUNDS; round++) {
        pid_t children[CHILDREN];
        for (int i = 0; i < CHILDREN; i++) {
            children[i] = fork();
            CHECK(children[i] >= 0);
            if (children[i]) continue;
            /* A child that waits for ever ends with this process. */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            signal(SIGALRM, end_here);
            struct itimerval timer = {{0, 0}, {0, 3000 + 700 * i + 61 * round}};
            setitimer(ITIMER_REAL, &timer, NULL);
            churn();
        }
        for (int i = 0; i < CHILDREN; i++) {
            int status = 0;
            CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0, "the child's status is %#x", status);
        }
    }
    return 0;
}
