/* The first search for an object is in vain, but later ones are not. (Linked with -rdynamic, so
   that others find this search.) */
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
    /* The call fails, and so looks for a library of the caller's that knows what to do then: it
       asks who called. */
    void *(*new)(size_t, const void *) = dlsym(RTLD_DEFAULT, "_ZnwmRKSt9nothrow_t");
    CHECK(new && !new(PTRDIFF_MAX, ""));
    allocate();
    printf("%p %p\n", (void *)allocate, (void *)_start);
    return 0;
}
