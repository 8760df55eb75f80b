//! A list that only grows, and that threads read without a lock.

use std::sync::OnceLock;

/// A list that only grows. Reading it takes no lock, and writes to no memory that other threads
/// read.
#[derive(Debug)]
pub(crate) struct AppendList<T> {
    first: Link<T>,
}

/// The next element, once it is added.
type Link<T> = OnceLock<Box<Element<T>>>;

#[derive(Debug)]
struct Element<T> {
    value: T,
    next: Link<T>,
}

impl<T> AppendList<T> {
    pub(crate) const fn new() -> Self {
        AppendList {
            first: OnceLock::new(),
        }
    }

    /// Adds an element at the end.
    pub(crate) fn push(&self, value: T) {
        let mut element = Box::new(Element {
            value,
            next: OnceLock::new(),
        });
        let mut link = &self.first;
        while let Err(refused) = link.set(element) {
            element = refused;
            // `set` refuses only if the link is set already.
            if let Some(taken) = link.get() {
                link = &taken.next;
            }
        }
    }

    /// Returns the elements in the order in which they were added.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::successors(self.first.get(), |element| element.next.get())
            .map(|element| &element.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_element_is_lost_when_threads_add_at_once() {
        const EACH: usize = 200;
        let list = AppendList::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let list = &list;
                scope.spawn(move || (0..EACH).for_each(|number| list.push((thread, number))));
            }
        });
        for thread in 0..4 {
            let of_thread = list.iter().filter(|(of, _)| *of == thread);
            assert!(of_thread.map(|(_, number)| *number).eq(0..EACH), "{thread}");
        }
    }
}
