//! Reads the output of valgrind's callgrind: instructions by layer.

use std::collections::{BTreeMap, HashMap};

/// Numbers of instructions, by layer.
pub(super) type Layers = BTreeMap<String, f64>;

/// Sums the instructions of each layer in a file that callgrind wrote for one thread.
///
/// An instruction counts for the function that it was compiled into: what the compiler inlined
/// counts for the caller. The kernel's instructions are not recorded.
pub(super) fn layers(text: &str) -> Layers {
    let mut names = Names::default();
    let (mut object, mut function) = (String::new(), String::new());
    let mut is_call = false;
    let mut layers = Layers::new();
    for line in text.lines() {
        if let Some((key, value)) = line.split_once('=') {
            match key {
                "ob" => object = names.objects.resolve(value),
                "fn" => function = names.functions.resolve(value),
                "cob" => drop(names.objects.resolve(value)),
                "cfn" => drop(names.functions.resolve(value)),
                "calls" => is_call = true,
                _ => {}
            }
            continue;
        }
        // A position and a cost. The line after `calls=` has the cost of the called function.
        let cost = (line.split_once(' ')).and_then(|(position, cost)| {
            let is_position =
                position.starts_with(|c: char| "+-*".contains(c) || c.is_ascii_digit());
            is_position.then(|| cost.parse::<f64>().ok())?
        });
        if let Some(cost) = cost
            && !std::mem::take(&mut is_call)
        {
            *layers.entry(layer(&object, &function)).or_default() += cost;
        }
    }
    layers
}

/// The compressed names of a file: `(3) name` defines number 3, and `(3)` refers to it.
#[derive(Default)]
struct Names {
    objects: Table,
    functions: Table,
}

#[derive(Default)]
struct Table(HashMap<String, String>);

impl Table {
    fn resolve(&mut self, value: &str) -> String {
        let Some((number, name)) = value.split_once(')') else {
            return value.to_owned();
        };
        match name.trim() {
            "" => self.0.get(number).cloned().unwrap_or_default(),
            name => {
                self.0.insert(number.to_owned(), name.to_owned());
                name.to_owned()
            }
        }
    }
}

/// Returns the layer of a function: a crate, a part of the C library, or the file that has it.
fn layer(object: &str, function: &str) -> String {
    let file = object.rsplit('/').next().unwrap_or_default();
    let has = |parts: &[&str]| parts.iter().any(|part| function.contains(part));
    if file.starts_with("liburxe") || file == "urxe-polled" {
        return match crate_of(function) {
            Some("core" | "alloc") => "std".to_owned(),
            Some(name) => name.to_owned(),
            // The C ABI's functions have no path.
            None => "urxe_verbs".to_owned(),
        };
    }
    if !file.starts_with("libc.") {
        return match file {
            "" | "???" => "other".to_owned(),
            file => file.to_owned(),
        };
    }
    let part = if has(&["memset", "memcpy", "memmove", "memcmp"]) {
        "libc: memory"
    } else if has(&["malloc", "free", "calloc", "realloc"]) {
        "libc: allocation"
    } else if has(&["cancel"]) {
        "libc: cancellation"
    } else if has(&["clock_gettime"]) {
        "libc: clock"
    } else {
        "libc: system calls and other"
    };
    part.to_owned()
}

/// Returns the first crate in a demangled path, such as `urxe_net` in `<urxe_net::A as B>::c`.
fn crate_of(function: &str) -> Option<&str> {
    let path = function.trim_start_matches(['<', '&']);
    let path = path.strip_prefix("mut ").unwrap_or(path);
    let path = path.strip_prefix("dyn ").unwrap_or(path);
    path.split_once("::").map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
version: 1
events: Ir
ob=(1) /tmp/target/release/deps/liburxe.so
fl=(1) a.rs
fn=(1) urxe_driver::cq::Cq::poll
10 5
+1 7
fi=(2) /rustc/library/core/src/option.rs
12 2
fe=(1)
cob=(2) /lib/libc.so.6
cfi=(3) memset.S
cfn=(2) __memset_avx2_unaligned_erms
calls=4 20
13 400
* 1
fn=(3) <urxe_net::send::SendBatch as urxe_proto::host::Transmit>::commit
1 3
fn=(4) ibv_get_cq_event
1 4

ob=(2)
fn=(2)
20 400
fn=(5) pthread_setcancelstate
-3 6
totals: 428
";

    #[test]
    fn instructions_are_counted_by_layer_and_without_those_of_called_functions() {
        let layers = layers(FILE);
        let expected = [
            ("libc: cancellation", 6.0),
            ("libc: memory", 400.0),
            ("urxe_driver", 15.0),
            ("urxe_net", 3.0),
            ("urxe_verbs", 4.0),
        ];
        let expected = expected.map(|(layer, count)| (layer.to_owned(), count));
        assert_eq!(layers, Layers::from(expected));
        assert_eq!(layers.values().sum::<f64>(), 428.0);
    }

    #[test]
    fn crate_is_the_first_in_a_path() {
        for (function, name) in [
            (
                "core::ptr::drop_in_place<urxe_driver::qp::Posting>",
                Some("core"),
            ),
            ("<&mut urxe_net::receive::Message>::take", Some("urxe_net")),
            ("<dyn tracing::Subscriber>::is", Some("tracing")),
            ("ibv_poll_cq", None),
        ] {
            assert_eq!(crate_of(function), name, "{function}");
        }
    }
}
