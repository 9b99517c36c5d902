/* Where the first search for an object is in vain, but later ones are not. (With -rdynamic, so that this is the
 * search that others find.) */
#include "check.h"
#include <dlfcn.h>

/* C libraries before 2.35 have neither. */
struct dl_find_object;
typedef int (*find_object)(void *, struct dl_find_object *);
extern char _start[];

int _dl_find_object(void *address, struct dl_find_object *found) {
    static int searches;
    find_object next = (find_object)dlsym(RTLD_NEXT, "_dl_find_object");
    return searches++ == 0 || !next ? -1 : next(address, found);
}

__attribute__((noinline)) static void allocate(void) { opaque(malloc(100)); }

int main(void) {
    /* That fails, and so looks for a library of its caller's that knows what to do then: who called is asked for. */
    void *(*new)(size_t, const void *) = dlsym(RTLD_DEFAULT, "_ZnwmRKSt9nothrow_t");
    CHECK(new && !new(PTRDIFF_MAX, ""));
    allocate();
    printf("%p %p\n", (void *)allocate, (void *)_start);
    return 0;
}
