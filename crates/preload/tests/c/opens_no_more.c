/* Ends when it may open no more files. */
#include <stdlib.h>
#include <sys/resource.h>

int main(void) {
    const struct rlimit standard_streams = {3, 3};
    free(malloc(100));
    return setrlimit(RLIMIT_NOFILE, &standard_streams) != 0;
}
