/* A signal that asks for statistics finds a thread that ends and is just giving back what it
   has. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

static __thread int is_last;
static volatile sig_atomic_t raised;

/* The library calls this function when a list goes to a pool. There is one CPU, so one cache is
   left to the next thread. */
int sched_getcpu(void) {
    if (is_last && !raised) {
        raised = 1;
        raise(SIGUSR1);
    }
    return 0;
}

static pthread_barrier_t both;

static void *allocate_and_end(void *last) {
    static __thread void *objects[1000];
    for (int i = 0; i < 1000; i++) objects[i] = malloc(100);
    for (int i = 0; i < 1000; i++) free(objects[i]);
    pthread_barrier_wait(&both);
    if (last) pthread_join(*(pthread_t *)last, NULL);
    is_last = last != NULL;
    return NULL;
}

static off_t told_bytes(int file) {
    struct stat stat;
    CHECK(fstat(file, &stat) == 0);
    return stat.st_size;
}

int main(void) {
    pthread_t first, last;
    FILE *told = tmpfile();
    int before = dup(STDERR_FILENO);
    CHECK(told && before >= 0 && dup2(fileno(told), STDERR_FILENO) >= 0);
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&first, NULL, allocate_and_end, NULL);
    pthread_create(&last, NULL, allocate_and_end, &first);
    pthread_join(last, NULL);
    off_t bytes = told_bytes(STDERR_FILENO);
    dup2(before, STDERR_FILENO);
    CHECK(raised, "the thread gave nothing to a pool");
    CHECK(bytes > 0, "its wish waits for another's call");
    return 0;
}
