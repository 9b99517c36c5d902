/* Takes and gives back one object, as often as it is told: pairs CALLS BYTES. */
#include "check.h"

int main(int argc, char **argv) {
    long calls = argc > 1 ? atol(argv[1]) : 0;
    size_t bytes = argc > 2 ? (size_t)atol(argv[2]) : 64;
    for (long i = 0; i < calls; i++) free(opaque(malloc(bytes)));
    return 0;
}
