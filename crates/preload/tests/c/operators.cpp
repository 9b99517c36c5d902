// The C++ operators new and delete in all their forms.
#include "check.h"
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

static volatile size_t too_much = static_cast<size_t>(PTRDIFF_MAX) - 4096;

template <size_t Align> struct alignas(Align) Aligned {
    char bytes[Align * 3];
};

template <size_t Align> static void with_alignment() {
    auto *one = new Aligned<Align>;
    auto *many = new Aligned<Align>[7];
    auto *quiet = new (std::nothrow) Aligned<Align>;
    auto *quiet_many = new (std::nothrow) Aligned<Align>[3];
    for (void *p : {(void *)one, (void *)many, (void *)quiet, (void *)quiet_many})
        CHECK(p && reinterpret_cast<uintptr_t>(p) % Align == 0, "alignment %zu", Align);
    memset((void *)many, 1, sizeof *many * 7);
    delete one;
    delete[] many;
    delete quiet;
    delete[] quiet_many;
}

static void every_form() {
    for (int round = 0; round < 1000; round++) {
        size_t n = round * 37;
        auto align = std::align_val_t{64};
        ::operator delete(::operator new(n));
        ::operator delete[](::operator new[](n));
        ::operator delete(::operator new(n), n);
        ::operator delete[](::operator new[](n), n);
        ::operator delete(::operator new(n, std::nothrow), std::nothrow);
        ::operator delete[](::operator new[](n, std::nothrow), std::nothrow);
        ::operator delete(::operator new(n, align), align);
        ::operator delete[](::operator new[](n, align), align);
        ::operator delete(::operator new(n, align), n, align);
        ::operator delete[](::operator new[](n, align), n, align);
        ::operator delete(::operator new(n, align, std::nothrow), align, std::nothrow);
        ::operator delete[](::operator new[](n, align, std::nothrow), align, std::nothrow);
        void *empty[2] = {::operator new(0), ::operator new(0)};
        CHECK(empty[0] && empty[1] && empty[0] != empty[1]);
        ::operator delete(empty[0]);
        ::operator delete(empty[1]);
    }
    ::operator delete(nullptr);
    ::operator delete[](nullptr, 5);
    with_alignment<32>();
    with_alignment<128>();
    with_alignment<4096>();
    with_alignment<65536>();
    with_alignment<1 << 20>();
}

template <typename F> static bool throws(F f) {
    try {
        opaque(f());
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

static void bad_alloc() {
    for (int i = 0; i < 100; i++) {
        CHECK(throws([] { return ::operator new(too_much); }));
        CHECK(throws([] { return ::operator new[](too_much); }));
        CHECK(throws([] { return ::operator new(SIZE_MAX / 2); }));
    }
}

static void array_too_long() {
    volatile size_t length = SIZE_MAX / 4;
    CHECK(throws([&] { return static_cast<void *>(new long[length]); }));
    CHECK(throws([&] {
        std::vector<char> v;
        v.reserve(too_much / 2);
        return static_cast<void *>(nullptr);
    }));
}

static int handler_calls;

static void handler_frees_memory() {
    // The handler cannot make room for this much; at its third call it gives up.
    std::set_new_handler([] {
        if (++handler_calls == 3) std::set_new_handler(nullptr);
    });
    CHECK(throws([] { return ::operator new(too_much); }));
    CHECK(handler_calls == 3, "%d", handler_calls);
}

struct Enough {};

static void handler_throws() {
    std::set_new_handler([] { throw Enough(); });
    for (int i = 0; i < 10; i++) {
        bool caught = false;
        try {
            opaque(::operator new(too_much));
        } catch (const Enough &) {
            caught = true;
        }
        CHECK(caught);
    }
}

static void nothrow_is_null() {
    CHECK(::operator new(too_much, std::nothrow) == nullptr);
    CHECK(::operator new[](too_much, std::nothrow) == nullptr);
    CHECK(::operator new(too_much, std::align_val_t{64}, std::nothrow) == nullptr);
    CHECK(::operator new[](too_much, std::align_val_t{64}, std::nothrow) == nullptr);
}

// As the standard says, the form that does not throw calls the one that does, and catches.
static void nothrow_calls_the_handler() {
    std::set_new_handler([] {
        handler_calls++;
        throw std::bad_alloc();
    });
    CHECK(::operator new(too_much, std::nothrow) == nullptr);
    CHECK(handler_calls == 1, "%d", handler_calls);
    CHECK(::operator new[](too_much, std::nothrow) == nullptr);
    CHECK(handler_calls == 2, "%d", handler_calls);
    CHECK(::operator new(too_much, std::align_val_t{64}, std::nothrow) == nullptr);
    CHECK(handler_calls == 3, "%d", handler_calls);
}

static void aligned_failure() {
    std::set_new_handler([] {
        handler_calls++;
        std::set_new_handler(nullptr);
    });
    CHECK(throws([] { return ::operator new(too_much, std::align_val_t{4096}); }));
    CHECK(handler_calls == 1);
    CHECK(throws([] { return ::operator new[](too_much, std::align_val_t{64}); }));
}

// As in libstdc++, this is refused, and no handler can help.
static void odd_alignment() {
    std::set_new_handler([] { handler_calls++; });
    for (size_t align : {0, 3, 24, 1000}) {
        CHECK(throws([=] { return ::operator new(2000, std::align_val_t{align}); }), "%zu", align);
        CHECK(throws([=] { return ::operator new[](2000, std::align_val_t{align}); }), "%zu", align);
        CHECK(::operator new(2000, std::align_val_t{align}, std::nothrow) == nullptr);
    }
    CHECK(handler_calls == 0, "%d", handler_calls);
}

static void containers() {
    std::map<std::string, std::vector<int>> map;
    for (int i = 0; i < 20000; i++) map[std::to_string(i * 7919 % 10007)].push_back(i);
    size_t total = 0;
    for (auto &entry : map) total += entry.second.size();
    CHECK(total == 20000);
    auto shared = std::make_shared<std::string>(100000, 'x');
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++)
        threads.emplace_back([shared] {
            std::string mine = *shared;
            mine += "y";
            CHECK(mine.size() == 100001);
        });
    for (auto &thread : threads) thread.join();
}

// Destructors of thread-local objects free what other threads allocated.
static void thread_locals() {
    for (int round = 0; round < 200; round++) {
        auto *strings = new std::vector<std::string>(100, std::string(200, 'a'));
        std::thread([strings] {
            thread_local std::unique_ptr<std::vector<std::string>> held;
            thread_local std::vector<int> numbers(1000);
            held.reset(strings);
            CHECK(numbers.size() == 1000);
        }).join();
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(every_form), CASE(bad_alloc), CASE(array_too_long), CASE(handler_frees_memory),
        CASE(handler_throws), CASE(nothrow_is_null), CASE(nothrow_calls_the_handler),
        CASE(aligned_failure), CASE(odd_alignment), CASE(containers), CASE(thread_locals),
    };
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
