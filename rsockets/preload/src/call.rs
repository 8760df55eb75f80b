//! Macros that define interposed functions.

/// Defines interposed functions with a socket as the first argument: of librdmacm for an rsocket,
/// else of the C library.
macro_rules! sockets {
    (by $find:path; $(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty => $of_rdma:ident;)*) => {
        $(
            /// Interposes the C function of this name.
            ///
            /// # Safety
            /// The contract of the C function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(socket: c_int, $($argument: $type),*) -> $result {
                // SAFETY: both functions take these arguments, which are the caller's under the
                // same contract.
                unsafe {
                    match $find(socket) {
                        Some(found) if found.is_rsocket() => {
                            let function = crate::rdma::$of_rdma
                                .get::<unsafe extern "C" fn(c_int, $($type),*) -> $result>();
                            let Some(function) = function else {
                                return crate::next::Failure::FAILURE;
                            };
                            crate::rdma::inside(|| function(found.target(), $($argument),*))
                        }
                        found => {
                            let socket = found.map_or(socket, |found| found.target());
                            crate::call::next!(
                                $name(socket: c_int, $($argument: $type),*) -> $result
                            )
                        }
                    }
                }
            }
        )*
    };
}

/// Calls the C library's function of this name, which `NEXT` of the module contains.
macro_rules! next {
    ($name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty) => {
        match real::$name.get::<unsafe extern "C" fn($($type),*) -> $result>() {
            Some(next) => next($($argument),*),
            None => crate::next::Failure::FAILURE,
        }
    };
}

/// Declares the C library's functions of these names as `real`, with a list of them.
macro_rules! real {
    ($($name:ident)*) => {
        mod real {
            #![allow(non_upper_case_globals, reason = "the names are C's")]
            use crate::next::Next;
            $(pub(super) static $name: Next = Next::new(concat!(stringify!($name), "\0"));)*
        }
        /// The C library's functions behind the interposed ones.
        pub static NEXT: &[&crate::next::Next] = &[$(&real::$name),*];
    };
}

pub(crate) use {next, real, sockets};
