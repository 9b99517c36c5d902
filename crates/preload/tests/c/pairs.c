/* Takes and gives back one object, as often as it is told: pairs CALLS BYTES FUNCTION. FUNCTION is
   what is counted. If it is free_sized, the object is freed by its size, as operators of C++ do. If
   it is memalign or posix_memalign, the object is aligned to 64 bytes. If it is malloc_usable_size,
   the object's size is asked for. If it is realloc, one object is asked to become a byte shorter
   and as long as it was, in turn; it stays where it is. */
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>

int main(int argc, char **argv) {
    long calls = argc > 1 ? atol(argv[1]) : 0;
    size_t bytes = argc > 2 ? (size_t)atol(argv[2]) : 64;
    if (argc > 3 && strcmp(argv[3], "free_sized") == 0) {
        void (*free_sized)(void *, size_t) = dlsym(RTLD_DEFAULT, "free_sized");
        for (long i = 0; i < calls; i++) free_sized(opaque(malloc(bytes)), bytes);
    } else if (argc > 3 && strcmp(argv[3], "memalign") == 0) {
        for (long i = 0; i < calls; i++) free(opaque(memalign(64, bytes)));
    } else if (argc > 3 && strcmp(argv[3], "posix_memalign") == 0) {
        for (long i = 0; i < calls; i++) {
            void *object = NULL;
            CHECK(posix_memalign(&object, 64, bytes) == 0);
            free(opaque(object));
        }
    } else if (argc > 3 && strcmp(argv[3], "malloc_usable_size") == 0) {
        for (long i = 0; i < calls; i++) {
            void *object = opaque(malloc(bytes));
            CHECK(malloc_usable_size(object) >= bytes);
            free(object);
        }
    } else if (argc > 3 && strcmp(argv[3], "realloc") == 0) {
        char *object = malloc(bytes);
        for (long i = 0; i < calls; i++) object = opaque(realloc(object, bytes - i % 2));
        free(object);
    } else {
        for (long i = 0; i < calls; i++) free(opaque(malloc(bytes)));
    }
    return 0;
}
