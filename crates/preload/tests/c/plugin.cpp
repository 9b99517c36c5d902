// A C++ library for a program that has none. It brings the C++ library for itself alone: as a
// library beside it, or within itself.
#include <new>
#include <stddef.h>
#include <stdint.h>

static const auto line = static_cast<std::align_val_t>(64);
static volatile size_t too_much = static_cast<size_t>(PTRDIFF_MAX) - 4096;
static int handler_calls;

template <class make> static bool is_refused(make made) {
    try {
        made();
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

// Returns 0 if a `new` that finds no memory does what C++ says.
extern "C" int plugin_runs_out(void) {
    if (!is_refused([] { ::operator delete(::operator new(too_much)); })) return 1;
    if (!is_refused([] { ::operator delete[](::operator new[](too_much)); })) return 2;
    if (!is_refused([] { ::operator delete[](::operator new[](too_much, line), line); })) return 3;
    if (::operator new[](too_much, line, std::nothrow)) return 4;
    std::set_new_handler([] {
        handler_calls++;
        std::set_new_handler(nullptr);
    });
    if (::operator new(too_much, std::nothrow) || handler_calls != 1) return 5;
    std::set_new_handler([] { throw 7; });
    try {
        ::operator delete(::operator new(too_much));
        return 6;
    } catch (int thrown) {
        if (thrown != 7) return 7;
    }
    return 0;
}
