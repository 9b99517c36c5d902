// A C++ library for a program that has none: the C++ library comes with it, for it alone.
#include <new>
#include <stddef.h>
#include <stdint.h>

static volatile size_t too_much = static_cast<size_t>(PTRDIFF_MAX) - 4096;
static int handler_calls;

// 0 if a `new` that finds no memory does what C++ says.
extern "C" int plugin_runs_out(void) {
    try {
        ::operator new(too_much);
        return 1;
    } catch (const std::bad_alloc &) {
    }
    std::set_new_handler([] {
        handler_calls++;
        std::set_new_handler(nullptr);
    });
    if (::operator new(too_much, std::nothrow) || handler_calls != 1) return 2;
    return 0;
}
