/* How much a program that has fallen idle still holds. It frees 7 MB of blocks and sleeps for 2.6
   s, then prints by how many KiB it has shrunk meanwhile. With an argument, it does so in a forked
   child. */
#include "check.h"
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file);
    CHECK(fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void fall_idle(void) {
    enum { BLOCKS = 70, BYTES = 100000 };
    char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BYTES);
        CHECK(blocks[i]);
        memset(blocks[i], i, BYTES);
    }
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    long before = resident_kib();
    struct timespec time = {2, 600000000};
    while (nanosleep(&time, &time)) {}
    printf("%ld\n", before - resident_kib());
    fflush(stdout);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc == 1) {
        fall_idle();
        return 0;
    }
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        fall_idle();
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
