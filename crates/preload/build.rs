//! How the library is linked, beyond what Cargo knows.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Our constructor runs ahead of every other library's: so our fork handlers are the first to
    // be entered, and `prepare` runs after all that may still allocate.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Never unloaded: objects in use, fork handlers and the thread key's destructor point into it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A symbol that nobody has is an error now, not when a program starts.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
}
