/* Takes and gives back one object, as often as it is told: pairs CALLS BYTES FUNCTION. As operators of
   C++ do, by its size, where the function that is counted is free_sized. */
#include "check.h"
#include <dlfcn.h>

int main(int argc, char **argv) {
    long calls = argc > 1 ? atol(argv[1]) : 0;
    size_t bytes = argc > 2 ? (size_t)atol(argv[2]) : 64;
    if (argc > 3 && strcmp(argv[3], "free_sized") == 0) {
        void (*free_sized)(void *, size_t) = dlsym(RTLD_DEFAULT, "free_sized");
        for (long i = 0; i < calls; i++) free_sized(opaque(malloc(bytes)), bytes);
    } else {
        for (long i = 0; i < calls; i++) free(opaque(malloc(bytes)));
    }
    return 0;
}
