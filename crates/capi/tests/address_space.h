/* How much address space the program uses, in bytes. */
#include <stdio.h>
#include <unistd.h>

#include "check.h"

static inline size_t address_space(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long pages = 0;
    CHECK(file != NULL && fscanf(file, "%llu", &pages) == 1);
    fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}
