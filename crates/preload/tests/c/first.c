/* What the first allocation of a process costs in page faults: most processes are short. */
#include "check.h"
#include <sys/resource.h>

static long faults(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt;
}

int main(void) {
    faults();
    long before = faults();
    void *object = opaque(malloc(100));
    long after = faults();
    CHECK(object && after > before);
    CHECK(after - before <= 22, "%ld page faults", after - before);
    free(object);
    return 0;
}
