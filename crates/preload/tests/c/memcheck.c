/* What valgrind's memcheck sees if it takes the library's names for an allocator's: a write behind
   an object, and a leak. */
#include <stdlib.h>

char *volatile sink;

int main(void) {
    sink = malloc(30);
    sink[30] = 1;
    free(sink);
    sink = malloc(77);
    sink = 0;
    return 0;
}
