/* Takes and gives back one small object, as often as it is told. */
#include "check.h"

int main(int argc, char **argv) {
    long calls = argc > 1 ? atol(argv[1]) : 0;
    for (long i = 0; i < calls; i++) free(opaque(malloc(64)));
    return 0;
}
