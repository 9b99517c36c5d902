// Deletes an object of a derived class through its base, whose destructor is not virtual: the size
// that the compiler passes is the base's.
struct base {
    char a[16];
};
struct derived : base {
    char b[100];
};

int main() {
    base *volatile object = new derived;
    delete object;
    return 0;
}
