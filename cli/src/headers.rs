//! The C headers that the command contains, for building programs where none are installed.

use std::fs;
use std::io;
use std::path::Path;

/// Pairs of the name and text of headers.
macro_rules! headers {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../include/", $name)))),*]
    };
}

const HEADERS: &[(&str, &str)] = headers! {
    "infiniband/ib.h"
    "infiniband/sa.h"
    "infiniband/verbs.h"
    "infiniband/verbs/address.h"
    "infiniband/verbs/completion.h"
    "infiniband/verbs/context.h"
    "infiniband/verbs/data_path.h"
    "infiniband/verbs/device.h"
    "infiniband/verbs/event.h"
    "infiniband/verbs/flow.h"
    "infiniband/verbs/memory.h"
    "infiniband/verbs/qp.h"
    "infiniband/verbs/queue.h"
    "infiniband/verbs/work.h"
    "infiniband/verbs_api.h"
    "rdma/rdma_cma.h"
    "rdma/rdma_verbs.h"
    "rdma/rsocket.h"
};

/// Writes the headers that are missing or differ to this directory.
///
/// # Errors
/// Fails if a file or directory cannot be written.
pub fn write(directory: &Path) -> io::Result<()> {
    for (name, text) in HEADERS {
        let path = directory.join(name);
        if fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
            continue;
        }
        let parent = path.parent().unwrap_or(directory);
        fs::create_dir_all(parent)?;
        // Renamed when complete, because a compiler may be reading the file.
        let draft = parent.join(format!(".header.{}", std::process::id()));
        fs::write(&draft, text)?;
        fs::rename(&draft, &path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn files(directory: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("the headers are in the source tree") {
            let path = entry.expect("readable").path();
            match path.is_dir() {
                true => files(&path, into),
                false => into.push(path),
            }
        }
    }

    #[test]
    fn all_headers_of_the_source_tree_are_contained() {
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        let mut found = Vec::new();
        files(&include, &mut found);
        found.sort();
        let mut listed: Vec<PathBuf> = HEADERS.iter().map(|(name, _)| include.join(name)).collect();
        listed.sort();
        assert_eq!(found, listed);
    }
}
