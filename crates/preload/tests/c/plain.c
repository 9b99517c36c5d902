/* A program that says whether it is a secure one, and allocates a little. */
#include "check.h"
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
    void *p = malloc(1000);
    free(p);
    opaque(malloc(54321));
    printf("secure %lu\n", getauxval(AT_SECURE));
    if (argc > 1 && strcmp(argv[1], "fork") == 0) {
        fflush(stdout);
        if (fork() == 0) return 0;
        wait(NULL);
    }
    if (argc > 1 && strcmp(argv[1], "cancelled") == 0) {
        fflush(stdout);
        pthread_cancel(pthread_self());
        exit(3);
    }
    /* As servers do, to show a title in the place of the environment. */
    if (argc > 1 && strcmp(argv[1], "title") == 0)
        for (char **entry = environ; *entry; entry++) memset(*entry, ' ', strlen(*entry));
    return 0;
}
